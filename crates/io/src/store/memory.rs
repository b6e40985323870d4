//! Objects in the memory of this process, for tests: real bytes, conditions that hold among threads, and nothing that
//! only a file system has.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use straightway_core::{Direction, Error, Extent, Kind, Object, Reason, Result, Survey};

use super::{
    Condition, Draft, Durability, Handle, LaneSpec, Listing, Missing, Named, Page, Store, Tag,
    Verb, Verbs, own_draft, parts,
};
use crate::engine::{Engine, memory};

/// The most names on one page: as S3.
const PAGE_NAMES_MAX: usize = 1000;

/// Objects by name.
type Objects = BTreeMap<String, Arc<MemoryObject>>;

/// A store in memory. Clones share their objects.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    /// What all names begin with: nothing, or parts that end with `/`.
    prefix: String,
}

#[derive(Debug)]
struct Shared {
    name: String,
    objects: Mutex<Objects>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// An empty store that messages call `memory:name`.
    pub fn new(name: &str) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            objects: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            prefix: String::new(),
        }
    }

    fn key(&self, name: &OsStr) -> Result<String> {
        Ok(format!("{}{}", self.prefix, parts(self, name)?.join("/")))
    }

    fn object(&self, key: String, content: Vec<u8>) -> Arc<MemoryObject> {
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        Arc::new(MemoryObject {
            shared: Arc::clone(&self.shared),
            key,
            bytes: content.len() as u64,
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
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
                None => failed(Kind::NotFound, "there is no such object"),
                Some(found)
                    if named
                        .tag
                        .as_ref()
                        .is_some_and(|tag| *tag != found.own_tag()) =>
                {
                    failed(Kind::Corrupt, "it is another version")
                }
                Some(found) => Ok(Arc::clone(found) as _),
            }
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(memory::Memory::new(lane.settings.depth)))
    }

    fn family(&self) -> &'static str {
        "memory"
    }

    fn survey(
        &self,
        objects: &[Arc<dyn Handle>],
        _hulls: &[Option<Extent>],
        _: Direction,
    ) -> Result<Vec<Survey>> {
        let survey = Survey {
            doubt: Some(Reason::StoreInMemory),
            ..Survey::default()
        };
        Ok(vec![survey; objects.len()])
    }

    fn list(&self, page: &Page) -> Result<Listing> {
        let all = self.shared.lock();
        let inside = all.range(self.prefix.clone()..);
        let inside = inside.map_while(|(key, _)| key.strip_prefix(&self.prefix));
        let mut names: Vec<String> = inside
            .map(|name| name.split_inclusive('/').take(1).collect())
            .collect();
        names.dedup();
        let names_max = page.names_max.min(PAGE_NAMES_MAX);
        let mut listing = Listing::of(
            names,
            &Page {
                names_max,
                ..page.clone()
            },
        );
        for named in &mut listing.objects {
            let object = &all[&self.key(&named.name)?];
            (named.bytes, named.tag) = (Some(object.bytes), Some(object.own_tag()));
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self {
            prefix: format!("{}/", self.key(folder)?),
            ..self.clone()
        }))
    }

    fn create(&self, name: &OsStr, bytes: u64) -> Result<Box<dyn Draft>> {
        let bytes = usize::try_from(bytes).expect("a test's object fits into memory");
        let object = self.object(self.key(name)?, vec![0; bytes]);
        Ok(Box::new(MemoryDraft { object }))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
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

    fn remove(&self, name: &OsStr, _: Durability) -> Result<()> {
        let key = self.key(name)?;
        self.shared.lock().remove(&key);
        Ok(())
    }
}

/// One version of an object.
#[derive(Debug)]
pub struct MemoryObject {
    shared: Arc<Shared>,
    key: String,
    bytes: u64,
    version: u64,
    content: Content,
}

impl MemoryObject {
    /// Its bytes, for engines.
    pub fn content(&self) -> &Content {
        &self.content
    }

    fn own_tag(&self) -> Tag {
        Tag(self.version.to_string())
    }
}

impl Handle for MemoryObject {
    fn object(&self) -> Object {
        let name = format!("memory:{}/{}", self.shared.name, self.key);
        Object::new(name, self.bytes)
    }

    fn tag(&self) -> Option<Tag> {
        Some(self.own_tag())
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.content.read_at(offset, |there| {
            let read = there.len().min(bytes.len());
            bytes[..read].copy_from_slice(&there[..read]);
            read
        });
        if read == bytes.len() {
            return Ok(());
        }
        let message = format!("it ends at byte {}", offset + read as u64);
        Err(Error::new(
            Kind::Corrupt,
            "read",
            self.object().name,
            message,
        ))
    }

    fn check_unchanged(&self) -> Result<()> {
        let version = self.shared.lock().get(&self.key).map(|now| now.version);
        if version == Some(self.version) {
            return Ok(());
        }
        let message = "it was replaced or removed while it was read";
        Err(Error::new(
            Kind::Corrupt,
            "read",
            self.object().name,
            message,
        ))
    }
}

/// An object that nobody sees yet.
#[derive(Debug)]
struct MemoryDraft {
    object: Arc<MemoryObject>,
}

impl Draft for MemoryDraft {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.object) as _
    }

    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        self.object
            .content
            .write_at(offset, bytes.len(), |there| there.copy_from_slice(bytes));
        assert!(
            end <= self.object.bytes,
            "a draft is as long as it was begun"
        );
        Ok(())
    }
}

/// Bytes that are read and written in place. A write beyond their end makes them longer.
#[derive(Debug, Default)]
pub struct Content(RwLock<Vec<u8>>);

impl Content {
    fn new(bytes: Vec<u8>) -> Self {
        Self(RwLock::new(bytes))
    }

    /// Hands over what is from `offset` to the end.
    pub fn read_at<T>(&self, offset: u64, take: impl FnOnce(&[u8]) -> T) -> T {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        take(all.get(offset..).unwrap_or_default())
    }

    /// Hands over `bytes` bytes at `offset` to be filled.
    pub fn write_at(&self, offset: u64, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let offset = usize::try_from(offset).expect("a test's object fits into memory");
        let end = offset + bytes;
        if all.len() < end {
            all.resize(end, 0);
        }
        fill(&mut all[offset..end]);
    }
}
