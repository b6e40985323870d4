//! What this machine can do: the doctor checks, the bench measures, the profile keeps the result.

pub mod backing;
pub mod bench;
pub mod doctor;
pub mod drive;
pub mod learned;
pub mod machine;
pub mod profile;
pub mod topology;
