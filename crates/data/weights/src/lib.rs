//! Model weights: reads safetensors files into one region of host or GPU memory, and writes them.
//!
//! A load has four stages. A path becomes a [`Model`]: every header is read and checked. Filters and slices give a
//! [`Selection`] of its tensors; the rest is not read. A [`Layout`] places each selected tensor in one region. One
//! transfer with one receipt then reads all files.
//!
//! No file is trusted. Every number in a header is checked against the others and against the file's length before
//! memory is allocated for it, and every count has a limit.

mod blocks;
mod cached;
mod dtype;
mod filter;
mod header;
mod index;
mod inspect;
mod layout;
mod load;
mod mapped;
mod model;
mod name;
mod name_table;
mod outline;
mod publish;
mod rectangle;
mod rewrite;
mod save;
mod selection;
mod shape;
mod sharded;
mod slice;
mod stream;
mod tensor;
mod verify;

pub use blocks::{GROUP_BYTES_MAX, MemoryBlock, PreparedBlocks};
pub use dtype::Dtype;
pub use filter::{Filter, Filters};
pub use header::{HEADER_BYTES_MAX, Header, NAME_BYTES_MAX, TENSORS_MAX};
pub use index::{FILES_MAX, WeightIndex};
pub use inspect::{FileFacts, Inspection, TensorFacts};
pub use layout::{LARGE_ALIGN_BYTES, LARGE_BYTES, Layout, Phase, Placed};
pub use load::{Loaded, Loader, Prepared};
pub use mapped::{Mapped, MappedTensor};
pub use model::{Model, Shard};
pub use name::TensorName;
pub use outline::{Outline, TensorEntry};
pub use rectangle::Rectangle;
pub use save::{FileSaver, Held, Holding};
pub use selection::{Pick, RUNS_MAX, Selection};
pub use shape::{RANK_MAX, Shape};
pub use sharded::{DraftedFile, IndexPlan, ModelDraft, ModelFile, REWRITTEN_FILES_MAX};
pub use slice::{Slice, SlicePart};
pub use stream::BatchStream;
pub use tensor::{Tensor, quoted, whole_bytes};
pub use verify::verify_loaded;

pub(crate) use model::{INDEX_NAME, SINGLE_NAME};
