//! What people came for, built on jobs and receipts: copying files and folders.

pub mod copy;
pub mod errand;
pub mod verify;

pub use copy::Copier;
pub use errand::{Errand, Folder, Link, Pair};
