//! A store in the memory of this process, for tests. It has real bytes and conditional writes that are atomic between
//! threads, but none of the features that only a file system has.

mod engine;
mod object;

use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::{
    engine::Engine,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Verb, Verbs, own_draft, parts, text,
    },
};

use object::{Content, MemoryObject, Shared};

pub use engine::MemoryEngine;

/// The most names on one page, as in S3.
const PAGE_NAMES_MAX: usize = 1000;

/// A store in memory. Clones share their objects.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    /// The prefix of all names: empty, or parts that end with `/`.
    prefix: String,
}

impl Memory {
    /// An empty store, which is called `memory:name` in messages.
    pub fn new(name: &str) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            objects: Lock::default(),
        };
        Self {
            shared: Arc::new(shared),
            prefix: String::new(),
        }
    }

    fn key(&self, name: &OsStr) -> Result<String> {
        parts(self, name)?;
        Ok(format!("{}{}", self.prefix, text(self, name)?))
    }

    fn object(&self, key: String, content: Vec<u8>) -> Arc<MemoryObject> {
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        Arc::new(MemoryObject {
            shared: Arc::clone(&self.shared),
            key,
            bytes: content.len() as u64,
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
            modified: SystemTime::now(),
            content: Content::new(content),
        })
    }
}

impl Store for Memory {
    fn describe(&self, name: &OsStr) -> String {
        let Self { shared, prefix } = self;
        format!("memory:{}/{prefix}{}", shared.name, name.display())
    }

    fn verbs(&self) -> Verbs {
        Verbs::of(&Verb::ALL)
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let all = self.shared.lock();
        let one = |named: &Named| -> Result<Arc<dyn Handle>> {
            let failed = |kind, why| Err(Error::new(kind, "open", self.describe(&named.name), why));
            match all.get(&self.key(&named.name)?) {
                None => failed(ErrorKind::NotFound, "there is no such object"),
                Some(found) if named.tag.as_ref().is_some_and(|tag| *tag != found.own_tag()) => {
                    failed(ErrorKind::Precondition, "it is another version")
                }
                Some(found) => Ok(Arc::clone(found) as _),
            }
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(MemoryEngine::new(lane.depth())))
    }

    fn facts(&self) -> Facts<'_> {
        Facts::of("memory")
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        let all = self.shared.lock();
        let inside = all.range(self.prefix.clone()..);
        let inside = inside.map_while(|(key, _)| key.strip_prefix(&self.prefix));
        let mut names: Vec<String> = inside.map(|name| name.split_inclusive('/').take(1).collect()).collect();
        names.dedup();
        let names_max = page.names_max.min(PAGE_NAMES_MAX);
        let mut listing = Listing::of(
            names,
            &ListPage {
                names_max,
                ..page.clone()
            },
        );
        for named in &mut listing.objects {
            let object = &all[&self.key(&named.name)?];
            (named.bytes, named.tag) = (Some(object.bytes), Some(object.own_tag()));
            named.modified = Some(object.modified);
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self {
            prefix: format!("{}/", self.key(folder)?),
            ..self.clone()
        }))
    }

    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        let bytes = usize::try_from(bytes).expect("a test's object fits into memory");
        let object = self.object(self.key(name)?, vec![0; bytes]);
        Ok(Box::new(MemoryDraft { object }))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, _: CommitMode) -> Result<()> {
        let own = drafts.into_iter().map(own_draft::<MemoryDraft>);
        for MemoryDraft { object } in own.collect::<Result<Vec<_>>>()? {
            let key = object.key.clone();
            Arc::clone(&object.shared).lock().insert(key, object);
        }
        Ok(())
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        let key = self.key(name)?;
        let object = self.object(key.clone(), bytes.to_vec());
        let mut all = self.shared.lock();
        let holds = match (on, all.get(&key)) {
            (Condition::Always, _) | (Condition::IfAbsent, None) => true,
            (Condition::IfMatch(tag), Some(there)) => there.own_tag() == *tag,
            (Condition::IfAbsent, Some(_)) | (Condition::IfMatch(_), None) => false,
        };
        if holds {
            all.insert(key, object);
        }
        Ok(holds)
    }

    fn remove_all(&self, removals: &[Removal<'_>], _: Durability) -> Result<Vec<bool>> {
        let one = |removal: &Removal<'_>| {
            let key = self.key(removal.name())?;
            let mut all = self.shared.lock();
            let holds = match removal {
                Removal::Version(_, tag) => all.get(&key).is_some_and(|there| there.own_tag() == **tag),
                Removal::Object(_) | Removal::Tree(_) => true,
            };
            match removal {
                Removal::Tree(_) => all.retain(|name, _| !name.starts_with(&format!("{key}/"))),
                _ if holds => drop(all.remove(&key)),
                _ => {}
            }
            Ok(holds)
        };
        removals.iter().map(one).collect()
    }
}

/// An object that is not visible yet.
#[derive(Debug)]
struct MemoryDraft {
    object: Arc<MemoryObject>,
}

impl Draft for MemoryDraft {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.object) as _
    }

    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.object.bytes),
            "a write stays inside the draft"
        );
        self.object
            .content
            .write_at(offset, bytes.len(), |there| there.copy_from_slice(bytes));
        Ok(())
    }
}
