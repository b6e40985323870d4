//! What this machine can do: bench measures, the profile keeps the result.

pub mod doctor;
