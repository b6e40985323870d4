//! What people came for, built on jobs and receipts: copying files and folders, and the weights of
//! models.

pub mod copy;
pub mod errand;
pub mod verify;
pub mod weights;

pub use copy::Copier;
pub use errand::{Errand, Folder, Link, Pair};
