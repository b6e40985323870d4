//! The capabilities of this machine: the doctor checks them, the bench measures them, the profile stores the results.

pub mod backing;
pub mod bench;
pub mod doctor;
pub mod drive;
mod drive_tuning;
pub mod learned;
pub mod machine;
pub mod profile;
pub mod topology;
