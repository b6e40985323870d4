//! A KV cache on disk.
//!
//! `docs/kv.md` describes the files, the protocol between processes, and how each crash ends.

mod format;
mod key;
mod protocol;
mod record;

pub use format::{CHUNK_BYTES_MAX, Geometry};
pub use key::{Key, Namespace, NamespaceParts};
pub use record::check_record;
