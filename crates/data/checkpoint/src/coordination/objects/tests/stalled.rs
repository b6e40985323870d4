//! The store of a process that stalls in the middle of a removal, while others continue.

use std::{
    ffi::OsStr,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    engine::Engine,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Verb, Verbs, clear_below,
    },
};

/// The work of the other processes.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A store in which the first removal of a name runs `meanwhile` before it.
#[derive(Clone)]
pub(super) struct Stalled {
    pub(super) inner: Arc<dyn Store>,
    pub(super) name: String,
    pub(super) meanwhile: Meanwhile,
    /// Whether it has remove-if-match.
    pub(super) has_condition: bool,
    /// Whether the next listing fails.
    pub(super) fails_to_list: Arc<AtomicBool>,
}

impl Stalled {
    fn stall(&self, name: &OsStr) {
        if name == OsStr::new(&self.name)
            && let Some(meanwhile) = self.meanwhile.lock().unwrap().take()
        {
            meanwhile();
        }
    }
}

impl fmt::Debug for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Store for Stalled {
    fn describe(&self, name: &OsStr) -> String {
        self.inner.describe(name)
    }

    fn verbs(&self) -> Verbs {
        let has = |verb: &Verb| self.has_condition || *verb != Verb::RemoveIfMatch;
        Verbs::of(&Verb::ALL.into_iter().filter(has).collect::<Vec<_>>())
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        self.inner.open(objects)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        self.inner.engine(lane)
    }

    fn facts(&self) -> Facts<'_> {
        self.inner.facts()
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        if self.fails_to_list.swap(false, Ordering::Relaxed) {
            let target = self.describe(OsStr::new(""));
            let why = "there was no response";
            return Err(Error::new(ErrorKind::Transient, "list", target, why));
        }
        self.inner.list(page)
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        let inner = self.inner.below(folder, missing)?;
        Ok(Arc::new(Self { inner, ..self.clone() }))
    }

    fn create(&self, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        self.inner.create(name, bytes, like)
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        self.inner.commit(drafts, mode)
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, how: Durability) -> Result<bool> {
        self.inner.put(name, bytes, on, how)
    }

    fn remove_all(&self, removals: &[Removal<'_>], how: Durability) -> Result<Vec<bool>> {
        let mut done = Vec::new();
        for one in removals {
            if let Removal::Tree(folder) = one {
                clear_below(self, folder)?;
                done.push(true);
            } else {
                self.stall(one.name());
                done.extend(self.inner.remove_all(&[*one], how)?);
            }
        }
        Ok(done)
    }
}
