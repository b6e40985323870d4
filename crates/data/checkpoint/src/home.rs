//! The place where the objects of an attempt are written.

use std::sync::Arc;

use straightway_core::Result;
use straightway_io::store::{Missing, Store};

use super::{
    name::{Attempt, mark, step_folder},
    steps::Steps,
};

/// The place where the objects of an attempt are written.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
    /// The nonce of the saver that writes them.
    pub(crate) writer: String,
    /// The mark in the names of a writer's objects, if other attempts write to the same place.
    pub(crate) mark: Option<String>,
}

impl Steps {
    /// The place where `writer` writes the objects of an attempt.
    pub(crate) fn home(&self, attempt: &Attempt, writer: &str) -> Result<Home> {
        let is_folder = self.root().folder().is_some();
        let (name, mark) = if is_folder {
            (attempt.folder(), None)
        } else {
            (step_folder(attempt.step), Some(mark(writer, attempt)))
        };
        let store = self.root().below(name.as_ref(), Missing::Refuse)?;
        let writer = writer.to_owned();
        Ok(Home {
            name,
            store,
            writer,
            mark,
        })
    }
}
