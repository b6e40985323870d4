//! The operations that users run, built on jobs and receipts: copies of files and folders, model weights, checkpoints.

pub mod checkpoint;
pub mod copy;
pub mod copy_job;
mod parallel;
pub mod verify;
pub mod weights;

pub use copy::Copier;
pub use copy_job::{CopiedFolder, CopiedLink, CopyJob, Pair};
