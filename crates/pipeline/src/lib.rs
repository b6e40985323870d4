//! What people came for, built on jobs and receipts: copying files and folders, the weights of
//! models, and checkpoints.

pub mod checkpoint;
pub mod copy;
pub mod errand;
mod parallel;
pub mod verify;
pub mod weights;

pub use copy::Copier;
pub use errand::{Errand, Folder, Link, Pair};
