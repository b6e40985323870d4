//! What a process has of an open file: its handle, an executor, and its transfers.

use std::{path::Path, sync::Arc};

use straightway_core::{ErrorKind, Result};
use straightway_io::{
    Executor, Handle,
    store::{Draft, Like, Location, Named, Tag},
};
use straightway_stores::{StoreOptions, TransferSpec};
use straightway_sys::Process;

use super::{
    call::{Options, Target},
    transfer::Running,
    writes::Writes,
};
use crate::stores::SESSION;

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    /// A new object, which may be read too if it is a local file.
    Write,
    InPlace,
}

/// What a process has of an open file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) process: Process,
    pub(crate) executor: Executor,
    pub(crate) location: Location,
    pub(crate) handle: Arc<dyn Handle>,
    pub(crate) writes: Arc<Writes>,
    /// Transfers that had not ended when the last one was begun.
    pub(crate) running: Vec<Arc<Running>>,
}

impl Opened {
    /// Opens an object. A tag requests that version.
    pub(crate) fn read(uri: &Path, storage: &StoreOptions, options: Options, tag: Option<Tag>) -> Result<Self> {
        let location = SESSION.stores(storage).locate(uri)?;
        let named = Named {
            tag,
            ..Named::new(&location.name)
        };
        let mut handles = location.store.open(&[named])?;
        let handle = handles.pop().expect("one handle for each name");
        Self::of(location, handle, options)
    }

    /// Begins an object, or opens it to write in place.
    pub(crate) fn written(
        uri: &Path,
        storage: &StoreOptions,
        options: Options,
        (mode, size): (Mode, Option<u64>),
    ) -> Result<(Self, Box<dyn Draft>)> {
        let location = SESSION.stores(storage).locate(uri)?;
        let refuse = |kind, why: &str, hint: &'static str| Err(location.error(kind, "write to", why).with_hint(hint));
        let has_paths = location.path().is_some();
        if mode == Mode::InPlace && !has_paths {
            let hint = "open it with mode=\"w\", which replaces it as a whole";
            return refuse(ErrorKind::Unsupported, "only local files can be written in place", hint);
        }
        if size.is_none() && !has_paths {
            let why = "the store must know the length of a new object from the start";
            return refuse(ErrorKind::Invalid, why, "give its length: size=…");
        }
        let like = if mode == Mode::InPlace {
            Like::InPlace
        } else {
            Like::Replaced
        };
        let draft = location.create(size.unwrap_or(0), &like)?;
        let handle = draft.handle();
        Ok((Self::of(location, handle, options)?, draft))
    }

    fn of(location: Location, handle: Arc<dyn Handle>, options: Options) -> Result<Self> {
        let shared = SESSION.executor_for(TransferSpec {
            ends: vec![&location],
            sizes: vec![handle.object().bytes],
            ..TransferSpec::default()
        })?;
        Ok(Self {
            process: Process::this(),
            executor: options.executor(&shared)?,
            location,
            handle,
            writes: Arc::default(),
            running: Vec::new(),
        })
    }

    /// What the jobs of a call work on. `is_own` says that the options are not those of the file.
    pub(crate) fn target(&self, options: Options, is_own: bool) -> Result<Target> {
        let executor = if is_own {
            options.executor(&self.executor)?
        } else {
            self.executor.clone()
        };
        Ok(Target {
            executor,
            store: Arc::clone(&self.location.store),
            handle: Arc::clone(&self.handle),
            writes: Arc::clone(&self.writes),
        })
    }
}
