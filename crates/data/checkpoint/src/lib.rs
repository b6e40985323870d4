//! Checkpoints: a job's state is saved while the job runs, and restored byte for byte by any number of ranks.
//!
//! A save: each rank lays out its [`SaveSource`]s (parts of tensors in memory) as the image of a shard, a safetensors
//! file. A snapshot copies the state into that image, and the job continues. Lanes write the image; the rank's
//! [`ShardReport`] describes it. The coordinator merges all reports into a [`Manifest`] and commits the step, by
//! putting the manifest or by a rename.
//!
//! A restore: [`Wanted`] rectangles are mapped to the chunks that hold their bytes. Each chunk is read and checked, and
//! only then copied to its target. `docs/checkpoint.md` describes the format and its guarantees.

mod codec;
mod commit;
mod coordination;
mod diff;
mod export;
mod flush;
mod image;
mod inspector;
mod manifest;
mod name;
mod opened;
mod parity;
mod plain;
mod records;
mod removal;
mod rendezvous;
mod restorer;
mod retention;
mod saver;
mod scatter;
mod seal;
mod shard;
mod shard_report;
mod snapshot;
mod source;
mod steps;
mod sum;
mod tags;
mod verify;
mod versions;

pub use codec::Codec;
pub use diff::{Difference, StepChange};
pub use export::{EXPORT_BYTES, Exported, Gathered};
pub use flush::Committed;
pub use manifest::{
    CHUNK_BYTES, ChunkLocation, MANIFEST_BYTES_MAX, Manifest, ObjectVersion, PARITY_MAX, ParityRecord, RANKS_MAX,
    Saved, SavedPart, ShardRecord, VERSION, Versions,
};
pub use name::{Attempt, STEP_MAX, canonical};
pub use opened::Checkpoint;
pub use plain::{Array, DEPTH_MAX, Maker, NumpyField, NumpyType, PLAIN_BYTES_MAX, Plain, PythonName, Sequence};
pub use restorer::{Fetched, Restorer};
pub use retention::{Pruned, Retention};
pub use saver::{Busy, CheckpointSaver, SaverOptions, fresh_run};
pub use scatter::Wanted;
pub use shard::Rank;
pub use shard_report::ShardReport;
pub use source::SaveSource;
pub use steps::Steps;
pub use sum::{Digest, Sum};
pub use verify::VerifyReport;
