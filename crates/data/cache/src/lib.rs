//! A local cache of remote objects: a folder that several processes share.
//!
//! | part | what it is |
//! |---|---|
//! | [`Cache`] | the folder: its permissions, its size limit, its eviction |
//! | [`CachedStore`] | a store on web servers whose reads go through a cache |
//! | `asked` | the versions of objects that the server was asked for, so that it is asked once |
//! | `object` | an open object of such a store: finds its bytes in the cache |
//! | `entry` | one file of the cache: a range of one version of an object, with checksums |
//! | `engine` | reads entries, fetches missing ranges, and stores fetched ranges |
//!
//! An entry is exactly a fetched range, so nothing is fetched that was not requested. Its name is a hash of the
//! object's location, `ETag` and length, followed by the range, so different versions have different names. It is
//! written as a locked draft and renamed when it is complete. If several processes need the same range, the one with
//! the lock fetches it and the others wait for the file. A lock ends with its process.
//!
//! The bytes of an entry are compared with their checksums before any of them reaches the memory of an I/O. An entry
//! that is damaged, truncated or foreign is removed, and its range is fetched again. Checksums are not signatures:
//! anyone who can write to the folder could forge an entry, so a folder that others can write to is refused.
//!
//! A cache does not replace permissions: the server is asked for each object when it is opened, even if all its bytes
//! are cached.
//!
//! A cache never makes a load fail. Bytes that cannot be cached are delivered all the same, with a note in the receipt.

mod asked;
mod cache;
mod engine;
mod entry;
mod entry_name;
mod eviction;
mod object;
mod store;

pub use cache::{BYTES_DEFAULT, BYTES_MIN, Cache};
pub use store::CachedStore;
