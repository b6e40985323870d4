//! A store in the memory of this process, for tests, and the example of `docs/adding-a-store.md`. Its bytes are real,
//! and its conditions are atomic between threads. It has nothing that only a file system has.

use std::{collections::BTreeMap, ffi::OsStr, io, sync::Arc, time::SystemTime};

use straightway_core::{Direction, Error, ErrorKind, Extent, Lock, Object, Reason, Result, SharedLock, Survey};
use straightway_io::{
    engine::{Engine, inline::Inline},
    nonce,
    request::{Done, Io, Op},
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Tag, Verb, Verbs, own_draft, own_handle, parts, text,
    },
};

/// The most names on one page. Few, as in a service, so that tests read several pages.
const PAGE_NAMES_MAX: usize = 1000;

/// Objects by name. Clones share them.
#[derive(Clone, Debug)]
pub struct Memory {
    name: Arc<str>,
    /// The beginning of all names in this store.
    prefix: String,
    objects: Arc<Lock<BTreeMap<String, Arc<Version>>>>,
}

/// One version of an object: the handle that is opened, and the draft that becomes visible.
#[derive(Debug)]
struct Version {
    store: Memory,
    key: String,
    bytes: u64,
    tag: Tag,
    modified: SystemTime,
    content: SharedLock<Vec<u8>>,
}

impl Memory {
    /// An empty store, whose objects are called `memory:NAME/…`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            prefix: String::new(),
            objects: Arc::default(),
        }
    }

    fn key(&self, name: &OsStr) -> Result<String> {
        parts(self, name)?;
        Ok(format!("{}{}", self.prefix, text(self, name)?))
    }

    fn version(&self, key: String, content: Vec<u8>) -> Arc<Version> {
        Arc::new(Version {
            store: self.clone(),
            key,
            bytes: content.len() as u64,
            tag: Tag::Text(nonce().to_string()),
            modified: SystemTime::now(),
            content: SharedLock::new(content),
        })
    }
}

impl Store for Memory {
    fn describe(&self, name: &OsStr) -> String {
        format!("memory:{}/{}{}", self.name, self.prefix, name.display())
    }

    fn facts(&self) -> Facts<'_> {
        Facts::of("memory")
    }

    fn verbs(&self) -> Verbs {
        Verbs::of(&Verb::ALL)
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let all = self.objects.lock();
        let one = |named: &Named| -> Result<Arc<dyn Handle>> {
            let failed = |kind, why| Err(Error::new(kind, "open", self.describe(&named.name), why));
            match all.get(&self.key(&named.name)?) {
                None => failed(ErrorKind::NotFound, "there is no such object"),
                Some(there) if named.tag.as_ref().is_some_and(|tag| *tag != there.tag) => {
                    failed(ErrorKind::Precondition, "it is another version")
                }
                Some(there) => Ok(Arc::clone(there) as _),
            }
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(engine(lane.depth())))
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        let all = self.objects.lock();
        let below = all.range(self.prefix.clone()..);
        let below = below.map_while(|(key, _)| key.strip_prefix(&self.prefix));
        let mut names: Vec<String> = below.map(|name| name.split_inclusive('/').take(1).collect()).collect();
        names.dedup();
        let (after, names_max) = (page.after.clone(), page.names_max.min(PAGE_NAMES_MAX));
        let mut listing = Listing::of(names, &ListPage { after, names_max });
        for named in &mut listing.objects {
            let there = &all[&self.key(&named.name)?];
            (named.bytes, named.tag) = (Some(there.bytes), Some(there.tag.clone()));
            named.modified = Some(there.modified);
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        let prefix = format!("{}/", self.key(folder)?);
        Ok(Arc::new(Self { prefix, ..self.clone() }))
    }

    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        let bytes = usize::try_from(bytes).expect("a test's object fits into memory");
        Ok(Box::new(MemoryDraft(self.version(self.key(name)?, vec![0; bytes]))))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, _: CommitMode) -> Result<()> {
        // All are converted before one is visible.
        let own = drafts.into_iter().map(own_draft::<MemoryDraft>);
        for MemoryDraft(version) in own.collect::<Result<Vec<_>>>()? {
            self.objects.lock().insert(version.key.clone(), version);
        }
        Ok(())
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        let version = self.version(self.key(name)?, bytes.to_vec());
        let mut all = self.objects.lock();
        let holds = on.holds(all.get(&version.key).map(|there| &there.tag));
        if holds {
            all.insert(version.key.clone(), version);
        }
        Ok(holds)
    }

    fn remove_all(&self, removals: &[Removal<'_>], _: Durability) -> Result<Vec<bool>> {
        let mut all = self.objects.lock();
        let one = |removal: &Removal<'_>| {
            let key = self.key(removal.name())?;
            match removal {
                Removal::Tree(_) => all.retain(|name, _| !name.starts_with(&format!("{key}/"))),
                Removal::Version(_, tag) if all.get(&key).is_none_or(|there| there.tag != **tag) => return Ok(false),
                Removal::Object(_) | Removal::Version(..) => drop(all.remove(&key)),
            }
            Ok(true)
        };
        removals.iter().map(one).collect()
    }
}

impl Handle for Version {
    fn object(&self) -> Object {
        Object::new(format!("memory:{}/{}", self.store.name, self.key), self.bytes)
    }

    fn tag(&self) -> Option<Tag> {
        Some(self.tag.clone())
    }

    fn survey(&self, _: Option<Extent>, _: Direction) -> Result<Survey> {
        Ok(Survey {
            doubt: Some(Reason::StoreInMemory),
            ..Survey::default()
        })
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let content = self.content.read();
        let Some(there) = content[self.at(offset)..].get(..bytes.len()) else {
            let message = format!("it ends at byte {}", self.bytes);
            return Err(Error::new(ErrorKind::Corrupt, "read", self.object().name, message));
        };
        bytes.copy_from_slice(there);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        let now = self.store.objects.lock().get(&self.key).cloned();
        if now.is_some_and(|now| now.tag == self.tag) {
            return Ok(());
        }
        let message = "it was replaced or removed while it was read";
        Err(Error::new(ErrorKind::Precondition, "read", self.object().name, message))
    }
}

impl Version {
    /// The index of an offset in its content; the end for all offsets past it.
    fn at(&self, offset: u64) -> usize {
        usize::try_from(offset.min(self.bytes)).expect("a test's object fits into memory")
    }
}

/// An object that is not visible yet.
#[derive(Debug)]
struct MemoryDraft(Arc<Version>);

impl Draft for MemoryDraft {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.0) as _
    }

    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = self.0.at(offset);
        self.0.content.write()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// An engine with queue depth `depth`. Its I/Os complete on submission.
pub fn engine(depth: u32) -> Inline {
    Inline::new("memory", depth as usize, run)
}

fn run(mut io: Io) -> Done {
    let Some(object) = own_handle::<Version>(&io.object) else {
        return Done::new(io, Err(io::Error::other("it is not an object of the memory store")));
    };
    let mut content = object.content.write();
    let there = &mut content[object.at(io.offset)..];
    let inside = there.len().min(io.bytes);
    if io.op == Op::Read {
        io.fill(&there[..inside]);
        return Done::new(io, Ok(inside));
    }
    // A write of whole blocks may reach past the end.
    io.spill(&mut there[..inside]);
    let moved = io.bytes;
    Done::new(io, Ok(moved))
}
