//! A local cache of remote objects: a folder that several processes share.
//!
//! | part | what it does |
//! |---|---|
//! | [`Cache`] | the folder: who may write to it, how much it holds, what is evicted |
//! | [`CachedStore`] | a store on web servers whose reads go through a cache |
//! | `object` | an open object of such a store: where its bytes are |
//! | `entry` | one file of the cache: a range of one version of an object, with checksums |
//! | `engine` | reads entries, has the others fetched, and keeps what was fetched |
//!
//! An entry is exactly the range that was fetched, so nothing is fetched that nobody asked for. Its name is a hash of
//! where the object is, of its `ETag` and of its length, and the range: two versions never meet. It is written under
//! another name that is locked, and renamed when it is whole. Of several processes that want the same range, the one
//! with the lock fetches it and the others wait for the file. A lock ends with its process.
//!
//! Bytes of an entry are compared with their checksums before any of them reaches the memory of an I/O. An entry that
//! is damaged, cut off or foreign is removed, and its range is fetched again. Checksums are no signatures: who may write
//! to the folder could forge an entry, so a folder that others can write to is refused.
//!
//! A cache never makes a load fail. What cannot be kept is delivered all the same, with a note in the receipt.

mod cache;
mod engine;
mod entry;
mod eviction;
mod object;
mod store;

pub use cache::{BYTES_DEFAULT, BYTES_MIN, Cache};
pub use store::CachedStore;
