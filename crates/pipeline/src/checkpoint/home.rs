//! Where the objects of an attempt are written.

use std::sync::Arc;

use straightway_core::Result;
use straightway_io::store::{Missing, Store};

use super::{
    name::{Attempt, mark, step_folder},
    steps::Steps,
};

/// Where the objects of an attempt are written.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
    /// Whose they are: the nonce of a saver.
    pub(crate) writer: String,
    /// What the names of a writer's objects have in them, where other attempts write there too.
    pub(crate) mark: Option<String>,
}

impl Steps {
    /// Where an attempt's objects are written by `writer`.
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
