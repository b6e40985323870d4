//! Checkpoints: the saver of one rank, a folder of steps, and an open step.

mod opened;
mod saver;
mod store;

pub(crate) use opened::Checkpoint;
pub(crate) use saver::Saver;
pub(crate) use store::{Store, fresh_run};
