//! Checkpoints: one rank's saver, a folder of steps, and a step that is open to be read.

mod opened;
mod saver;
mod store;

pub(crate) use opened::Checkpoint;
pub(crate) use saver::Saver;
pub(crate) use store::{STORES, Store, fresh_run};
