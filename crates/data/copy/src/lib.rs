//! Copies files and folders between stores.
//!
//! [`Sources`] are the objects that the user named. A [`CopyJob`] resolves them and the target to pairs of objects. A
//! [`Copier`] runs it, and [`verify`](verify::verify) compares the copies with their originals.
//! [`Copier::receive`] and [`Copier::send`] copy from and to streams.

mod copier;
mod job;
mod links;
mod made;
mod sources;
mod stream;
pub mod verify;
mod walk;

pub use copier::Copier;
pub use job::{CopiedFolder, CopiedLink, CopyJob, CopyOptions, Pair};
pub use links::LinkChoice;
pub use sources::Sources;
pub use stream::STREAM_BYTES_MAX;
