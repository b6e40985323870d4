//! Copies files and folders between stores.
//!
//! A [`CopyJob`] resolves the sources and the target that the user named to pairs of objects. A [`Copier`] runs it, and
//! [`verify`](verify::verify) compares the copies with their originals.

mod copier;
mod job;
pub mod verify;

pub use copier::Copier;
pub use job::{CopiedFolder, CopiedLink, CopyJob, Pair};
