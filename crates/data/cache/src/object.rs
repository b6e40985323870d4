//! An open object whose reads go through a cache.

use std::{io, sync::Arc};

use rustix::fs::{Dir, Mode, OFlags, openat};
use sha2::{Digest, Sha256};
use straightway_core::{Direction, Error, Extent, Lock, Object, Result, Survey};
use straightway_io::{
    request::Io,
    store::{Handle, Tag, own_handle},
};

use crate::{
    cache::Cache,
    entry::{Claim, ClaimResult, Entry},
    entry_name::{self, Key},
};

/// Objects up to this length usually take one request, and their entries are looked up by name only. This avoids a
/// directory listing for each of thousands of small objects.
const LISTED_BYTES_MIN: u64 = 8 << 20;

/// A request ends where an entry of at least this length begins. A shorter entry is not worth splitting the request.
const CUT_BYTES_MIN: u64 = 256 << 10;

/// The most entries that are considered for an offset.
const CANDIDATES_MAX: usize = 16;

/// An open object and its entries in a cache.
#[derive(Debug)]
pub(crate) struct CachedObject {
    pub(crate) remote: Arc<dyn Handle>,
    cache: Arc<Cache>,
    key: Key,
    bytes: u64,
    /// The sorted ranges that were in the cache when the object was first read, or were added since. Some may have been
    /// evicted.
    known: Lock<Option<Vec<Extent>>>,
}

/// The location of an I/O's bytes.
#[derive(Debug)]
pub(crate) enum CacheLookup {
    /// In the cache: this many bytes were copied.
    Copied(usize),
    /// On the server: this many bytes are to be fetched, and with a claim also cached.
    Remote(usize, Option<Claim>),
    /// Another claim is fetching them.
    Busy,
}

impl CachedObject {
    /// An object through a cache. `identity` is its location. `None` if its version cannot be identified reliably.
    pub(crate) fn new(remote: &Arc<dyn Handle>, cache: &Arc<Cache>, identity: &[&[u8]]) -> Option<Self> {
        let bytes = remote.object().bytes;
        let Some(Tag::Text(tag)) = remote.tag() else {
            return None;
        };
        // Only a strong entity tag: dates have a resolution of a second, and weak tags may be shared by versions.
        if !remote.pins_reads() || !tag.starts_with('"') || bytes == 0 {
            return None;
        }
        let mut hash = Sha256::new();
        for part in identity.iter().copied().chain([tag.as_bytes(), &bytes.to_le_bytes()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Some(Self {
            remote: Arc::clone(remote),
            cache: Arc::clone(cache),
            key: hash.finalize().into(),
            bytes,
            known: Lock::default(),
        })
    }

    /// Downcasts a handle to a cached object.
    pub(crate) fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        own_handle(handle)
    }

    /// The hash that identifies its version.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Looks up the front of an I/O's bytes, and copies them if they are cached. Without `waits`, bytes that another
    /// claim is fetching are fetched as well.
    pub(crate) fn lookup(&self, io: &mut Io, waits: bool) -> CacheLookup {
        let end = io.offset.saturating_add(io.bytes as u64).min(self.bytes);
        let wanted = Extent::between(io.offset.min(end), end);
        if wanted.is_empty() {
            return CacheLookup::Remote(io.bytes, None);
        }
        if let Some(copied) = self.copy(io, wanted) {
            return CacheLookup::Copied(copied);
        }
        let missing = self.cut(wanted);
        let bytes = usize::try_from(missing.bytes).expect("it is a part of an I/O");
        if !self.cache.accepts(missing.bytes) {
            return CacheLookup::Remote(bytes, None);
        }
        match Claim::try_new(&self.cache, &self.key, missing) {
            ClaimResult::Claimed(claim) => {
                self.add_known(missing);
                CacheLookup::Remote(bytes, Some(claim))
            }
            ClaimResult::Busy if waits => CacheLookup::Busy,
            ClaimResult::Exists => match self.copy_from(io, missing, wanted) {
                Some(copied) => CacheLookup::Copied(copied),
                None => CacheLookup::Remote(bytes, None),
            },
            ClaimResult::Busy | ClaimResult::Refused => CacheLookup::Remote(bytes, None),
        }
    }

    /// Copies the front of the wanted range if an entry has it. Returns the number of bytes.
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

    /// The same from the entry of range `extent`.
    fn copy_from(&self, io: &mut Io, extent: Extent, wanted: Extent) -> Option<usize> {
        let entry = Entry::open(&self.cache, &self.key, extent)?;
        let part = Extent::between(wanted.offset, wanted.end().min(entry.end()));
        if entry.read(io, part).is_err() {
            let name = entry_name::name(&self.key, extent);
            tracing::warn!(name, "an entry of the cache is damaged, and its range is fetched again");
            self.cache.remove(&name);
            return None;
        }
        Some(usize::try_from(part.bytes).expect("it is a part of an I/O"))
    }

    /// The known ranges that contain an offset, those that end last first.
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

    /// The missing front of the wanted range: up to the next entry of at least `CUT_BYTES_MIN`.
    fn cut(&self, wanted: Extent) -> Extent {
        if self.bytes <= LISTED_BYTES_MIN {
            return wanted;
        }
        let next = self.with_known(|known| {
            let after = &known[known.partition_point(|extent| extent.offset <= wanted.offset)..];
            let inside = after.iter().take_while(|extent| extent.offset < wanted.end());
            let mut worthy = inside.filter(|e| e.end().min(wanted.end()) - e.offset >= CUT_BYTES_MIN);
            worthy
                .find(|e| self.cache.has(&entry_name::name(&self.key, **e)))
                .copied()
        });
        next.map_or(wanted, |next| Extent::between(wanted.offset, next.offset))
    }

    /// Adds a range that is about to be cached.
    fn add_known(&self, extent: Extent) {
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
        let mut known = self.known.lock();
        ask(known.get_or_insert_with(|| self.list().unwrap_or_default()))
    }

    /// The sorted ranges in the cache.
    fn list(&self) -> io::Result<Vec<Extent>> {
        let name = entry_name::name(&self.key, Extent::new(0, 1));
        let (shard, rest) = name.split_once('/').expect("a name has a shard");
        let own = rest.split_once('.').expect("a name has a range").0;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(self.cache(), shard, flags, Mode::empty())?;
        let mut found = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let parsed = entry.file_name().to_str().ok().and_then(entry_name::parse);
            let is_inside = |extent: &Extent| extent.end() <= self.bytes;
            found.extend(parsed.filter(|(key, _)| *key == own).map(|(_, e)| e).filter(is_inside));
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

    fn survey(&self, hull: Option<Extent>, direction: Direction) -> Result<Survey> {
        self.remote.survey(hull, direction)
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
