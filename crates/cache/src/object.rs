//! An open object whose reads go through a cache.

use std::{
    any::Any,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::fs::{Dir, Mode, OFlags, openat};
use sha2::{Digest, Sha256};
use straightway_core::{Error, Extent, Object, Result};
use straightway_io::{
    request::Io,
    store::{Handle, Tag},
};

use crate::{
    cache::Cache,
    entry::{self, Claim, Claiming, Entry, Key},
};

/// Objects up to this length come in one request as a rule, and their entries are looked for by name alone. A folder
/// is not listed for each of thousands of small objects.
const LISTED_BYTES_MIN: u64 = 8 << 20;

/// A request is cut where an entry of at least this length begins. A shorter one is not worth a request of its own.
const CUT_BYTES_MIN: u64 = 256 << 10;

/// Entries around an offset that are looked at.
const CANDIDATES_MAX: usize = 16;

/// An open object and where its bytes are kept.
#[derive(Debug)]
pub(crate) struct CachedObject {
    pub(crate) remote: Arc<dyn Handle>,
    cache: Arc<Cache>,
    key: Key,
    bytes: u64,
    /// Ranges that were in the cache when the object was first read, or were added since, in order. Others may have
    /// been evicted.
    known: Mutex<Option<Vec<Extent>>>,
}

/// Where the bytes of an I/O are.
#[derive(Debug)]
pub(crate) enum Found {
    /// In the cache: so many were copied.
    Copied(usize),
    /// On the server: so many of them can be fetched, and kept where that was claimed.
    Remote(usize, Option<Claim>),
    /// They are on their way into the cache.
    Busy,
}

impl CachedObject {
    /// An object through a cache. `identity` says where it is. `None` where its version cannot be told for sure.
    pub(crate) fn new(
        remote: &Arc<dyn Handle>,
        cache: &Arc<Cache>,
        identity: &[&[u8]],
    ) -> Option<Self> {
        let bytes = remote.object().bytes;
        let Some(Tag::Text(tag)) = remote.tag() else {
            return None;
        };
        // Only an entity tag: dates are the same for a second, and weak tags for whatever is alike.
        if !remote.pins_reads() || !tag.starts_with('"') || bytes == 0 {
            return None;
        }
        let mut hash = Sha256::new();
        for part in identity
            .iter()
            .copied()
            .chain([tag.as_bytes(), &bytes.to_le_bytes()])
        {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Some(Self {
            remote: Arc::clone(remote),
            cache: Arc::clone(cache),
            key: hash.finalize().into(),
            bytes,
            known: Mutex::default(),
        })
    }

    /// The object that a handle is, if it is one.
    pub(crate) fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
        any.downcast().ok()
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Looks for the front of an I/O's bytes, and copies them where they are there. Where it does not wait, bytes that
    /// somebody else is fetching are fetched all the same.
    pub(crate) fn look(&self, io: &mut Io, waits: bool) -> Found {
        let end = io.offset.saturating_add(io.bytes as u64).min(self.bytes);
        let wanted = Extent::between(io.offset.min(end), end);
        if wanted.is_empty() {
            return Found::Remote(io.bytes, None);
        }
        if let Some(copied) = self.copy(io, wanted) {
            return Found::Copied(copied);
        }
        let missing = self.cut(wanted);
        let bytes = usize::try_from(missing.bytes).expect("it is a part of an I/O");
        if !self.cache.takes(missing.bytes) {
            return Found::Remote(bytes, None);
        }
        match Claim::ask(&self.cache, &self.key, missing) {
            Claiming::Claimed(claim) => {
                self.learn(missing);
                Found::Remote(bytes, Some(claim))
            }
            Claiming::Busy if waits => Found::Busy,
            Claiming::There => match self.copy_from(io, missing, wanted) {
                Some(copied) => Found::Copied(copied),
                None => Found::Remote(bytes, None),
            },
            Claiming::Busy | Claiming::Refused => Found::Remote(bytes, None),
        }
    }

    /// Copies the front of what is wanted, where an entry has it. Answers how much.
    fn copy(&self, io: &mut Io, wanted: Extent) -> Option<usize> {
        if let Some(copied) = self.copy_from(io, wanted, wanted) {
            return Some(copied);
        }
        let whole = Extent::new(0, self.bytes);
        let candidates = match self.bytes {
            ..=LISTED_BYTES_MIN if wanted == whole => Vec::new(),
            ..=LISTED_BYTES_MIN => vec![whole],
            _ => self.around(wanted.offset),
        };
        candidates
            .into_iter()
            .find_map(|extent| self.copy_from(io, extent, wanted))
    }

    /// The same, from the entry with a range.
    fn copy_from(&self, io: &mut Io, extent: Extent, wanted: Extent) -> Option<usize> {
        let entry = Entry::open(&self.cache, &self.key, extent)?;
        let part = Extent::between(wanted.offset, wanted.end().min(entry.end()));
        if entry.read(io, part).is_err() {
            let name = entry::name(&self.key, extent);
            tracing::warn!(
                name,
                "an entry of the cache is damaged, and is fetched again"
            );
            self.cache.remove(&name);
            return None;
        }
        Some(usize::try_from(part.bytes).expect("it is a part of an I/O"))
    }

    /// Known ranges with a byte in them, the longest rest first.
    fn around(&self, offset: u64) -> Vec<Extent> {
        self.with_known(|known| {
            let before = &known[..known.partition_point(|extent| extent.offset <= offset)];
            let holds = |extent: &&Extent| extent.end() > offset;
            let found = before.iter().rev().take(CANDIDATES_MAX).filter(holds);
            let mut found: Vec<_> = found.copied().collect();
            found.sort_unstable_by_key(|extent| std::cmp::Reverse(extent.end()));
            found
        })
    }

    /// What is missing at the front of what is wanted: up to the next entry that is worth a cut.
    fn cut(&self, wanted: Extent) -> Extent {
        if self.bytes <= LISTED_BYTES_MIN {
            return wanted;
        }
        let next = self.with_known(|known| {
            let after = &known[known.partition_point(|extent| extent.offset <= wanted.offset)..];
            let inside = after
                .iter()
                .take_while(|extent| extent.offset < wanted.end());
            let mut worthy =
                inside.filter(|e| e.end().min(wanted.end()) - e.offset >= CUT_BYTES_MIN);
            worthy
                .find(|e| self.cache.has(&entry::name(&self.key, **e)))
                .copied()
        });
        next.map_or(wanted, |next| Extent::between(wanted.offset, next.offset))
    }

    /// Takes note of a range that will be there.
    fn learn(&self, extent: Extent) {
        if self.bytes > LISTED_BYTES_MIN {
            self.with_known(|known| {
                let key = |e: &Extent| (e.offset, e.bytes);
                if let Err(at) = known.binary_search_by_key(&key(&extent), key) {
                    known.insert(at, extent);
                }
            });
        }
    }

    fn with_known<T>(&self, ask: impl FnOnce(&mut Vec<Extent>) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        ask(known.get_or_insert_with(|| self.list().unwrap_or_default()))
    }

    /// The ranges that are in the cache, in order.
    fn list(&self) -> io::Result<Vec<Extent>> {
        let name = entry::name(&self.key, Extent::new(0, 1));
        let (shard, rest) = name.split_once('/').expect("a name has a shard");
        let own = rest.split_once('.').expect("a name has a range").0;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(self.cache(), shard, flags, Mode::empty())?;
        let mut found = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let parsed = entry.file_name().to_str().ok().and_then(entry::parse);
            let is_inside = |extent: &Extent| extent.end() <= self.bytes;
            found.extend(
                parsed
                    .filter(|(key, _)| *key == own)
                    .map(|(_, e)| e)
                    .filter(is_inside),
            );
        }
        found.sort_unstable_by_key(|extent| (extent.offset, extent.bytes));
        Ok(found)
    }
}

impl Handle for CachedObject {
    fn object(&self) -> Object {
        self.remote.object()
    }

    fn tag(&self) -> Option<Tag> {
        self.remote.tag()
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.remote.read_exact_at(offset, bytes)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.remote.check_unchanged()
    }

    fn pins_reads(&self) -> bool {
        self.remote.pins_reads()
    }

    fn data_extents(&self) -> Result<Vec<Extent>> {
        self.remote.data_extents()
    }

    fn block_bytes(&self) -> u64 {
        self.remote.block_bytes()
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        self.remote.error(operation, source)
    }
}
