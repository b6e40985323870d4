//! Objects in the memory of this process, for tests: real bytes, conditions that hold among threads, and nothing that
//! only a file system has.

use std::{
    any::Any,
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use straightway_core::{Error, Kind, Object, Result};

use super::{
    Condition, Draft, Durability, Handle, LaneSpec, Listing, Missing, Named, Page, Store, Tag,
    Verb, Verbs, parts,
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

    fn list(&self, page: &Page) -> Result<Listing> {
        let after = page.after.as_ref().and_then(|after| after.to_str());
        let mut from = after.map_or_else(|| self.prefix.clone(), |a| format!("{}{a}", self.prefix));
        let mut listing = Listing::default();
        let most = page.names_max.min(PAGE_NAMES_MAX);
        let all = self.shared.lock();
        // A folder's name ends with a slash. All that is in it is before its name with a mark behind.
        let mut start = if after.is_some() {
            skip(&from)
        } else {
            Bound::Included(from)
        };
        for count in 0.. {
            let mut rest = all.range::<String, _>((start.clone(), Bound::Unbounded));
            let next = rest.next().filter(|(key, _)| key.starts_with(&self.prefix));
            let Some((key, object)) = next else { break };
            let name = &key[self.prefix.len()..];
            if count == most {
                break;
            }
            from = match name.split_once('/') {
                Some((folder, _)) => {
                    listing.folders.push(folder.into());
                    format!("{folder}/")
                }
                None => {
                    listing.objects.push(Named {
                        name: name.into(),
                        bytes: Some(object.bytes),
                        tag: Some(object.own_tag()),
                    });
                    name.to_owned()
                }
            };
            start = skip(&format!("{}{from}", self.prefix));
            listing.next = Some(OsString::from(from));
        }
        let mut rest = all.range::<String, _>((start, Bound::Unbounded));
        let is_more = rest
            .next()
            .is_some_and(|(key, _)| key.starts_with(&self.prefix));
        listing.next = listing.next.filter(|_| is_more);
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
        let own = |draft: Box<dyn Draft>| {
            let name = draft.handle().object().name;
            let own = (draft as Box<dyn Any>).downcast::<MemoryDraft>().ok();
            let own = own.filter(|own| Arc::ptr_eq(&own.object.shared, &self.shared));
            own.map(|own| own.object).ok_or_else(|| {
                let message = "it is a draft of another store";
                Error::new(Kind::Invalid, "commit", name, message)
            })
        };
        let drafts = drafts.into_iter().map(own).collect::<Result<Vec<_>>>()?;
        let mut all = self.shared.lock();
        all.extend(drafts.into_iter().map(|draft| (draft.key.clone(), draft)));
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

/// What comes after a name and, if it is a folder's, after all that is in it.
fn skip(name: &str) -> Bound<String> {
    match name.strip_suffix('/') {
        Some(folder) => Bound::Included(format!("{folder}0")),
        None => Bound::Excluded(name.to_owned()),
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
