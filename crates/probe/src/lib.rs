//! What this machine can do: the doctor checks, the bench measures, the profile keeps the result.

pub mod bench;
pub mod doctor;
pub mod machine;
pub mod profile;
