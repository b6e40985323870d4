//! Checkpoints: the state of a job saved while it goes on, and restored to the byte, by any number
//! of ranks.
//!
//! The way of a save: [`Source`]s (parts of tensors, and where their bytes are) become the image of a
//! shard, which is a safetensors file as it will be; a snapshot fills it, and the job goes on. Lanes then write
//! it, the rank's [`Part`] says what is in it, and the parts of all ranks together become a [`Manifest`]
//! and, by the put of that or a rename, a step. The way of a restore: [`Wanted`] rectangles become chunks that hold some of
//! their bytes; each is read, checked, and only then copied to where it goes.
//!
//! `docs/checkpoint.md` has the format and what it promises.

mod codec;
mod commit;
mod diff;
mod export;
mod flush;
mod home;
mod image;
mod inspector;
mod lock;
mod manifest;
mod meeting;
mod name;
mod opened;
mod parity;
mod part;
mod plain;
mod removal;
mod restorer;
mod retention;
mod saver;
mod scatter;
mod seal;
mod shard;
mod snapshot;
mod source;
mod steps;
mod sum;
mod tags;
mod verify;
mod versions;

pub use codec::Codec;
pub use diff::{Change, Difference};
pub use export::{EXPORT_BYTES, Exported, Gathered};
pub use flush::Committed;
pub use manifest::{
    CHUNK_BYTES, MANIFEST_BYTES_MAX, Manifest, ObjectVersion, PARITY_MAX, ParityRecord, RANKS_MAX,
    Saved, SavedPart, ShardRecord, Stored, VERSION, Versions,
};
pub use name::{Attempt, STEP_MAX, canonical};
pub use opened::Checkpoint;
pub use part::Part;
pub use plain::{Array, DEPTH_MAX, Maker, Name, NumpyType, PLAIN_BYTES_MAX, Plain, Sequence};
pub use restorer::{Fetched, Restorer};
pub use retention::{Pruned, Retention};
pub use saver::{Busy, Options, Saver, fresh_run};
pub use scatter::Wanted;
pub use shard::Rank;
pub use source::Source;
pub use steps::Steps;
pub use sum::{Digest, Sum};
pub use tags::parse_tags;
pub use verify::Verdict;
