//! A KV cache in a folder, through its public interface.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod fixture;
mod full;
mod gpu;
mod kill;
mod limits;
mod loads;
mod processes;
mod trace;
