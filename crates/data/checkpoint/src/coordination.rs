//! How processes that share a store of checkpoints keep out of each other's way.
//!
//! [`FolderCoordination`] uses what a local folder offers: rename, descriptors, a unique number, and a lock that ends
//! with its process. [`ObjectCoordination`] needs only put-if-absent, get, list and remove: marks in names tell the
//! objects of attempts apart, and age tells leftovers. The formats of both are described in `docs/checkpoint.md`.
//! Everything else in this crate is the same for both.

mod folder;
mod lock;
mod objects;

use std::{fmt, sync::Arc, time::Duration};

use hashbrown::HashSet;
use straightway_core::Result;
use straightway_io::{
    Objects,
    store::{CommitMode, Draft, Store, StoreExt},
};

use self::{folder::FolderCoordination, objects::ObjectCoordination};
pub(crate) use self::{lock::Lock, objects::LEFT_AFTER};
use super::{name::Attempt, removal::StepIdentity};

/// The coordination of processes that save, read and remove steps in one store.
pub(crate) trait Coordination: fmt::Debug + Send + Sync {
    /// Takes the lock of a job for `who`, within `timeout`. The error names the holder. A store without locks returns
    /// one that is not held.
    fn lock(&self, who: &str, timeout: Duration) -> Result<Lock>;

    /// Removes the attempts and holds that crashed jobs left, except the attempts of `run`. Without a lock, those to
    /// which nothing was added for `age`. Returns the removed names. `Unsupported` if nothing tells what is left over.
    fn clear_left(&self, lock: &Lock, run: Option<&str>, age: Duration) -> Result<Vec<String>>;

    /// Removes incomplete objects of killed writers. Returns their names, where they have names.
    fn sweep_drafts(&self, age: Duration) -> Result<Vec<String>>;

    /// Begins an attempt, which another rank may have begun already.
    fn begin(&self, attempt: &Attempt) -> Result<()>;

    /// The records of an attempt; `None` if it is over.
    fn records(&self, attempt: &Attempt) -> Result<Option<Records>>;

    /// The place where `writer` writes the objects of an attempt.
    fn home(&self, attempt: &Attempt, writer: &str) -> Result<Home>;

    /// The name of a rank's shard until the step is committed. `file` is its name afterwards.
    fn draft_name(&self, rank: u32, writer: &str, file: &str) -> String;

    /// Creates the shard of a rank. A sweep finds it if its writer is killed.
    fn create_shard(&self, home: &Home, rank: u32, file: &str, bytes: u64) -> Result<ShardDraft>;

    /// Makes the names of an attempt's objects durable.
    fn sync(&self, home: &Home) -> Result<()>;

    /// Gives the shards of an attempt their final names, and removes what else is there.
    fn collect(&self, home: &Home, shards: &[ShardNames]) -> Result<()>;

    /// Prepares the commit of an attempt with this manifest, which is not visible yet.
    fn stage(&self, home: &Home, manifest: &str) -> Result<()>;

    /// Makes the objects of an attempt a step, and removes its records except those of writers other than `writers`.
    /// Returns `false`, with nothing changed, if the step exists.
    fn publish(&self, home: &Home, manifest: &str, writers: &HashSet<String>) -> Result<bool>;

    /// Removes everything that an attempt wrote, unless it may still be committed. Nobody writes to it any more.
    fn abandon(&self, attempt: &Attempt) -> Result<()>;

    /// As [`abandon`](Self::abandon), by the coordinator `own` while other ranks may still write. They find that the
    /// attempt is over, and [`withdraw`](Self::withdraw) their objects.
    fn give_up(&self, attempt: &Attempt, own: &str) -> Result<()>;

    /// Removes the objects of one writer if its attempt is over. Until then the coordinator may still commit them.
    fn withdraw(&self, attempt: &Attempt, writer: &str) -> Result<()>;

    /// Opens a step. It stays readable while it is open where the store can offer that.
    fn open(&self, step: u64) -> Result<Arc<dyn Store>>;

    /// Whether nothing has the name of a step.
    fn is_free(&self, step: u64) -> Result<bool>;

    /// Whether a step exists and has its manifest.
    fn is_complete(&self, step: u64) -> bool;

    /// The number of an open step among all that have had its name; 0 where steps have no numbers.
    fn number(&self, held: &dyn Store) -> Result<u64>;

    /// Deletes an open step and its name, if it still has this identity. A newer step of that name is not touched.
    fn erase(&self, step: u64, held: &dyn Store, identity: &StepIdentity) -> Result<()>;
}

const _: [&dyn Coordination; 0] = [];

/// The coordination that fits a store.
pub(crate) fn of(root: &Arc<dyn Store>) -> Arc<dyn Coordination> {
    let root = Arc::clone(root);
    if root.folder().is_some() {
        Arc::new(FolderCoordination { root })
    } else {
        Arc::new(ObjectCoordination { root })
    }
}

/// The records of an attempt that is not over.
pub(crate) struct Records {
    pub(crate) store: Arc<dyn Store>,
    /// Whether its step may exist already: the records of a commit that is not a rename go after it.
    pub(crate) may_be_committed: bool,
}

/// The place where the objects of an attempt are written.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) attempt: Attempt,
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
    /// The nonce of the saver that writes them.
    pub(crate) writer: String,
    /// The mark in the names of a writer's objects, if other attempts write to the same place.
    pub(crate) mark: Option<String>,
}

/// The names of a shard: until the commit, and afterwards.
pub(crate) struct ShardNames {
    pub(crate) draft: String,
    pub(crate) file: String,
}

/// A shard that is being written.
pub(crate) struct ShardDraft {
    pub(crate) object: Objects,
    /// The draft to commit once the shard is written; `None` if the commit of the step does it.
    pub(crate) draft: Option<Box<dyn Draft>>,
}

impl ShardDraft {
    /// Commits the draft, if there is one.
    pub(crate) fn finish(self, home: &Home) -> Result<()> {
        self.draft
            .map_or(Ok(()), |draft| home.store.commit(vec![draft], CommitMode::InOrder))
    }
}
