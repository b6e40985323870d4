//! The weights of a model: safetensors files read into one region of host or GPU memory, and
//! written.
//!
//! The way of a load: a path becomes a [`Model`] (every header read and checked), filters and slices
//! a [`Selection`] (what of it is wanted: what is not chosen is not read), a [`Layout`] (where each
//! tensor goes in one region), and all files together one transfer with one receipt.
//!
//! Nothing here trusts a file. Every figure of a header is checked against the others and against
//! the file's length before memory is taken for it, and every count has a bound.

mod blocks;
mod directory;
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
mod outline;
mod publish;
mod rectangle;
mod rewrite;
mod save;
mod selection;
mod shape;
mod slice;
mod stream;
mod tensor;

pub use blocks::{Block, GROUP_BYTES_MAX, PreparedBlocks};
pub use dtype::Dtype;
pub use filter::{Filter, Filters};
pub use header::{HEADER_BYTES_MAX, Header, NAME_BYTES_MAX, TENSORS_MAX};
pub use index::{FILES_MAX, Index};
pub use inspect::{FileFacts, Inspection, TensorFacts};
pub use layout::{LARGE_ALIGN_BYTES, LARGE_BYTES, Layout, Phase, Placed};
pub use load::{Loaded, Loader, Prepared};
pub use mapped::{Mapped, MappedTensor};
pub use model::{Model, Shard};
pub use name::Name;
pub use rectangle::Rectangle;
pub use rewrite::REWRITTEN_FILES_MAX;
pub use save::{Held, Holding, Saver};
pub use selection::{Pick, RUNS_MAX, Selection};
pub use shape::{RANK_MAX, Shape};
pub use slice::{Part, Slice};
pub use stream::Stream;
pub use tensor::{Tensor, whole_bytes};

pub(crate) use model::INDEX_NAME;
pub(crate) use outline::{Entry, Outline};
pub(crate) use rewrite::{divide, index_text, shard_name};
pub(crate) use tensor::quoted;
