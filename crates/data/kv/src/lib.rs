//! A KV cache on disk: chunks of one size by a key of 32 bytes, bounded in bytes, checked on every load, and shared
//! between processes.
//!
//! A [`Tier`] is a folder. [`Tier::store`] and [`Tier::load`] begin a [`Batch`], which the executor runs at full queue
//! depth. Its [`KvReceipt`] says what the cache was worth. `docs/kv.md` describes the files, the protocol between
//! processes, and how each crash ends.
//!
//! ```
//! use std::sync::Arc;
//! use straightway_io::{Executor, Region, Settings};
//! use straightway_kv::{ChunkAt, Key, KvNamespace, NamespaceParts, Outcome, Tier, TierOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let executor = Executor::new(Settings::default())?;
//! let tier = Tier::open_or_create(path, (4096, 10 << 20), &executor, TierOptions::default())?;
//! let namespace = KvNamespace::new(NamespaceParts { model: "llama-3-8b", ..NamespaceParts::default() })?;
//!
//! let mut memory = Region::host(8192)?;
//! memory.as_mut_slice().fill(7);
//! let memory = Arc::new(memory);
//! let key = Key::of(b"the first tokens of a prompt");
//! tier.store(namespace, &[ChunkAt::whole(key, &memory, 0, 4096)])?.wait()?;
//!
//! let target = Arc::new(Region::host(4096)?);
//! let done = tier.load(namespace, &[ChunkAt::whole(key, &target, 0, 4096)], None)?.wait()?;
//! assert_eq!(done.outcomes, [Outcome::Hit]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod cipher;
mod eviction;
mod format;
mod index;
mod key;
mod loading;
mod protocol;
mod receipt;
mod record;
mod segment;
mod space;
mod staging;
mod storing;
mod tier;
mod verify;

pub use batch::{Batch, Done};
pub use cipher::KeyFile;
pub use format::{CHUNK_BYTES_MAX, Geometry};
pub use key::{Key, KvNamespace, NamespaceParts};
pub use loading::{ChunkAt, Part};
pub use receipt::{BatchKind, KvCounts, KvReceipt, MissReason, Misses, Outcome, Prefill, SCHEMA};
pub use record::check_record;
pub use tier::{Tier, TierOptions};
pub use verify::{Stats, TierCheck};
