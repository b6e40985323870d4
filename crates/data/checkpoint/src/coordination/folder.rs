//! Coordination in a local folder: rename, descriptors, inode numbers and a kernel lock.
//!
//! Objects are written into the folder of their attempt, which the commit renames: a folder with a step's name is
//! complete. The folder may have been prepared by an attacker, so it is accessed through descriptors, and no link is
//! followed.

use std::{sync::Arc, time::Duration};

use hashbrown::HashSet;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    File,
    store::{Durability, Folder, Missing, Store, StoreExt, Sweep},
};

use super::{Coordination, Home, Lock, Records, ShardDraft, ShardNames};
use crate::{
    name::{Attempt, Hold, MANIFEST, TRASH, shard_draft, step_folder, step_of},
    records::{if_there, names, put},
    removal::StepIdentity,
};

/// The maximum number of times that a step's folder is emptied while another process writes to it.
const ERASE_TRIES: usize = 16;

/// Coordination in a local folder.
#[derive(Debug)]
pub(crate) struct FolderCoordination {
    pub(crate) root: Arc<dyn Store>,
}

/// The folder behind a store of local files.
fn folder(store: &dyn Store) -> &Folder {
    store.folder().expect("a store of local files has a folder")
}

impl FolderCoordination {
    fn below(&self, name: &str) -> Result<Arc<dyn Store>> {
        self.root.below(name.as_ref(), Missing::Refuse)
    }
}

impl Coordination for FolderCoordination {
    fn lock(&self, who: &str, timeout: Duration) -> Result<Lock> {
        Lock::take(folder(&*self.root), who, timeout)
    }

    /// The lock is held, so no save is under way except those of `run`, whose other ranks may have begun already.
    fn clear_left(&self, lock: &Lock, run: Option<&str>, _: Duration) -> Result<Vec<String>> {
        let root = folder(&*self.root).path().display();
        if !lock.is_held() {
            let message = "its file system has no locks, which tell whether a job saves there";
            return Err(Error::new(ErrorKind::Unsupported, "sweep", root, message)
                .with_hint("remove by hand what begins with `.step-`, when no job saves there"));
        }
        let names = names(&*self.root)?;
        if let Some(trash) = names.iter().find(|name| name.starts_with(TRASH)) {
            let message = format!("it has {trash:?}, a step that version 0.1.0 was removing");
            return Err(Error::new(ErrorKind::Invalid, "sweep", root, message)
                .with_hint("rename it to `step-N` if another step refers to step N, or delete it"));
        }
        let mut swept = Vec::new();
        for name in names {
            let is_left = match Attempt::of(&name) {
                Some(attempt) => Some(attempt.run.as_str()) != run,
                // Only a coordinator puts holds, and only one coordinator can hold the lock.
                None => Hold::of(&name).is_some(),
            };
            if is_left {
                self.root.clear(name.as_ref())?;
                swept.push(name);
            }
        }
        Ok(swept)
    }

    /// A killed process may have left the draft of a tag in a step.
    fn sweep_drafts(&self, _: Duration) -> Result<Vec<String>> {
        let steps = names(&*self.root)?.into_iter().filter_map(|name| step_of(&name));
        let steps = steps.filter_map(|step| self.open(step).ok());
        for store in steps.chain([Arc::clone(&self.root)]) {
            store.sweep(Sweep::Dead)?;
        }
        Ok(Vec::new())
    }

    fn begin(&self, attempt: &Attempt) -> Result<()> {
        self.root.below(attempt.folder().as_ref(), Missing::Create).map(drop)
    }

    fn records(&self, attempt: &Attempt) -> Result<Option<Records>> {
        let found = if_there(self.below(&attempt.folder()))?;
        Ok(found.map(|store| Records {
            store,
            may_be_committed: false,
        }))
    }

    fn home(&self, attempt: &Attempt, writer: &str) -> Result<Home> {
        let name = attempt.folder();
        Ok(Home {
            attempt: attempt.clone(),
            store: self.below(&name)?,
            name,
            writer: writer.to_owned(),
            mark: None,
        })
    }

    fn draft_name(&self, rank: u32, writer: &str, _: &str) -> String {
        shard_draft(rank, writer)
    }

    /// No reader looks into the folder of an attempt, so the file needs no draft.
    fn create_shard(&self, home: &Home, rank: u32, file: &str, bytes: u64) -> Result<ShardDraft> {
        let draft = shard_draft(rank, &home.writer);
        let file = File::create_in(folder(&*home.store), &draft, file, bytes)?;
        Ok(ShardDraft {
            object: vec![Arc::new(file)].into(),
            draft: None,
        })
    }

    fn sync(&self, home: &Home) -> Result<()> {
        folder(&*home.store).sync()
    }

    /// A dead process of the same run may have left other files.
    fn collect(&self, home: &Home, shards: &[ShardNames]) -> Result<()> {
        let folder = folder(&*home.store);
        let own: HashSet<_> = shards.iter().map(|shard| shard.draft.as_str()).collect();
        for name in folder.list()? {
            if !own.contains(name.as_str()) {
                folder.remove_tree(&name)?;
            }
        }
        for shard in shards {
            folder.rename_new(&shard.draft, &shard.file)?;
        }
        Ok(())
    }

    fn stage(&self, home: &Home, manifest: &str) -> Result<()> {
        put(&*home.store, MANIFEST, manifest, Durability::Synced).map(drop)
    }

    /// The records go with the folder's old name.
    fn publish(&self, home: &Home, _: &str, _: &HashSet<String>) -> Result<bool> {
        let root = folder(&*self.root);
        match root.rename_new(&home.name, &step_folder(home.attempt.step)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            renamed => renamed.and_then(|()| root.sync()).map(|()| true),
        }
    }

    fn abandon(&self, attempt: &Attempt) -> Result<()> {
        self.root.clear(attempt.folder().as_ref())
    }

    /// Ranks that still write find that the folder is gone.
    fn give_up(&self, attempt: &Attempt, _: &str) -> Result<()> {
        self.abandon(attempt)
    }

    /// The coordinator removes the folder with all objects in it.
    fn withdraw(&self, _: &Attempt, _: &str) -> Result<()> {
        Ok(())
    }

    /// The folder stays open even if it is renamed or removed.
    fn open(&self, step: u64) -> Result<Arc<dyn Store>> {
        self.below(&step_folder(step))
    }

    fn is_free(&self, step: u64) -> Result<bool> {
        Ok(folder(&*self.root).kind(&step_folder(step))?.is_none())
    }

    fn is_complete(&self, step: u64) -> bool {
        let has_manifest = |held: Arc<dyn Store>| folder(&*held).has_file(MANIFEST);
        self.open(step).and_then(has_manifest).unwrap_or(false)
    }

    fn number(&self, held: &dyn Store) -> Result<u64> {
        folder(held).inode()
    }

    fn erase(&self, step: u64, held: &dyn Store, _: &StepIdentity) -> Result<()> {
        let (root, own) = (folder(&*self.root), folder(held));
        // Without its manifest it is not a step, whatever files a power loss brings back.
        own.remove(MANIFEST)?;
        own.sync()?;
        let name = step_folder(step);
        for _ in 0..ERASE_TRIES {
            own.clear()?;
            let is_gone = match if_there(root.open_folder(&name))? {
                // Otherwise the name belongs to another step now.
                Some(now) => now.inode()? != own.inode()? || root.remove_empty(&name)?,
                None => true,
            };
            if is_gone {
                return root.sync();
            }
        }
        let message = "somebody writes to it while it is removed";
        let path = own.path().display();
        Err(Error::new(ErrorKind::Transient, "remove", path, message))
    }
}
