//! Checkpoints: saved by some ranks and restored by others, and all kinds of failures.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod damage;
mod fixture;
mod full;
mod gpu;
mod hostile;
mod housekeeping;
mod kill;
mod power;
mod ranks;
mod removal;
mod reshard;
mod s3;
mod s3_kill;
mod s3_steps;
mod save;
mod smaller;
mod store;
