//! The names of a subsystem: its name index, which Straightway targets have, or the list of its namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Weak},
};

use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_nvme::{
    Nqn,
    admin::{Admin, GetLog, Identify},
    identify::{IDENTIFY_BYTES, LIST_MAX, decode_list, page},
    index::{INDEX_HEADER_BYTES, INDEX_PAGE, INDEX_SCANS, IndexEntry, IndexHeader, NameIndex},
};

use crate::{
    portal::Portal,
    session::{controller::Controller, failure::LinkError, subsystem::Subsystem},
    settings::HostSettings,
};

/// The maximum number of bytes of the index that one command reads.
const READ_BYTES_MAX: usize = 64 << 10;

/// The maximum number of bytes between two entries that one command reads: about 60 other entries, for which the
/// target looks at their files. That takes less time than another command.
const GAP_BYTES_MAX: usize = 4 << 10;

/// The maximum number of reads of an index that changes meanwhile.
const READS_MAX: usize = 5;

/// The reason if that is not enough.
const UNSTABLE: &str = "its index changes faster than it can be read";

/// The maximum number of namespaces that are listed without an index.
const NAMESPACES_MAX: usize = 1 << 16;

/// A subsystem and its name index.
#[derive(Debug)]
pub(crate) struct Catalog {
    pub(crate) subsystem: Subsystem,
    /// The last index of each connected controller.
    caches: Lock<Vec<(Weak<Controller>, Arc<IndexCache>)>>,
}

/// The last index of a controller. It shows where the entry of a name is. The lengths and versions in it may be old.
/// The lock is held while the index is read, so that threads that verify namespaces at once read the whole of it once.
type IndexCache = Lock<Option<CachedIndex>>;

/// An index with its header as it was read. The header has the generation, which changes when the place of an entry or
/// its namespace changes.
#[derive(Debug)]
struct CachedIndex {
    header: Vec<u8>,
    index: Arc<NameIndex>,
}

/// The property by which an entry is looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryKey<'a> {
    /// Its name.
    Name(&'a [u8]),
    /// Its namespace.
    Namespace(u32),
}

impl EntryKey<'_> {
    /// Whether an entry is the one that is looked up.
    fn is_of(self, entry: &IndexEntry) -> bool {
        match self {
            Self::Name(name) => entry.name == name,
            Self::Namespace(nsid) => entry.nsid == nsid,
        }
    }

    /// The range of the entry in the encoded page of an index.
    fn range_in(self, index: &NameIndex) -> Option<Range<usize>> {
        let name: &[u8] = match self {
            Self::Name(name) => name,
            Self::Namespace(_) => &index.entries.iter().find(|entry| self.is_of(entry))?.name,
        };
        index.range_of(name)
    }
}

/// The result of looking up an entry.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The entry. Its length and its version are newer than the call.
    Found(IndexEntry),
    /// The current index, which does not have the entry; `None` if there is no index. The lengths and versions in it
    /// may be old.
    Missing(Option<Arc<NameIndex>>),
}

impl Lookup {
    /// The entry, if it was found.
    pub(crate) fn entry(&self) -> Option<&IndexEntry> {
        match self {
            Self::Found(entry) => Some(entry),
            Self::Missing(_) => None,
        }
    }

    /// The entry, if it was found.
    pub(crate) fn into_entry(self) -> Option<IndexEntry> {
        match self {
            Self::Found(entry) => Some(entry),
            Self::Missing(_) => None,
        }
    }
}

/// The answer of a controller. The error is the reason why its index is invalid.
type Answer<T> = Result<Result<T, String>, LinkError>;

impl Catalog {
    pub(crate) fn new(portal: &Portal, nqn: Nqn, settings: &Arc<HostSettings>) -> Arc<Self> {
        Arc::new(Self {
            subsystem: Subsystem::new(portal, nqn, settings),
            caches: Lock::default(),
        })
    }

    /// Reads the whole index; `None` if there is none.
    pub(crate) fn read(&self) -> Result<Option<Arc<NameIndex>>> {
        self.ask(|controller| read_into(controller, &mut self.cache(controller).lock()))
    }

    /// The current index; `None` if there is none. The lengths and versions in it may be old.
    pub(crate) fn current(&self) -> Result<Option<Arc<NameIndex>>> {
        self.ask(|controller| current_on(controller, &mut self.cache(controller).lock(), INDEX_SCANS))
    }

    /// Looks up an entry.
    pub(crate) fn lookup(&self, key: EntryKey<'_>) -> Result<Lookup> {
        self.ask(|controller| self.lookup_on(controller, key))
    }

    fn ask<T>(&self, run: impl Fn(&Arc<Controller>) -> Answer<T>) -> Result<T> {
        let answer = self.subsystem.attempt(run).map_err(|(_, error)| error)?;
        answer.map_err(|why| Error::new(ErrorKind::Corrupt, "list", &self.subsystem.nqn, why))
    }

    /// The cache of a controller.
    fn cache(&self, controller: &Arc<Controller>) -> Arc<IndexCache> {
        let mut caches = self.caches.lock();
        caches.retain(|(known, _)| known.strong_count() > 0);
        let known = caches
            .iter()
            .find(|(known, _)| known.as_ptr() == Arc::as_ptr(controller));
        if let Some((_, cache)) = known {
            return Arc::clone(cache);
        }
        let cache = Arc::default();
        caches.push((Arc::downgrade(controller), Arc::clone(&cache)));
        cache
    }

    /// The boot of a controller's machine, at the last read of the whole index; 0 if it is not known.
    pub(crate) fn boot(&self, controller: &Arc<Controller>) -> u64 {
        self.cache(controller)
            .lock()
            .as_ref()
            .map_or(0, |known| known.index.boot)
    }

    /// Looks up an entry in the index of a controller. Only the entry is read, unless it is not where it was at the
    /// last read of the whole index.
    pub(crate) fn lookup_on(&self, controller: &Arc<Controller>, key: EntryKey<'_>) -> Answer<Lookup> {
        let cache = self.cache(controller);
        let mut cached = cache.lock();
        for _ in 0..READS_MAX {
            let range = cached.as_ref().and_then(|known| key.range_in(&known.index));
            if let Some(range) = range
                && let Some(bytes) = part(controller, range.start, range.len(), 0)?
                && let Ok((entry, _)) = IndexEntry::decode(&bytes)
                && key.is_of(&entry)
            {
                return Ok(Ok(Lookup::Found(entry)));
            }
            match current_on(controller, &mut cached, INDEX_SCANS)? {
                // The entry is read alone: only then does the target refuse a version that it does not know yet.
                Ok(Some(index)) if key.range_in(&index).is_some() => {}
                Ok(index) => return Ok(Ok(Lookup::Missing(index))),
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Err(UNSTABLE.to_owned()))
    }

    /// Reads the entries of several names of a controller together, by name. A name without an entry is not in the
    /// result.
    ///
    /// The lengths and versions are newer than the call. But a version that the target does not know yet differs from
    /// all others: if an entry is not the expected one, only [`Catalog::lookup_on`] shows whether it changed.
    pub(crate) fn read_entries(
        &self,
        controller: &Arc<Controller>,
        names: &BTreeSet<&[u8]>,
    ) -> Answer<BTreeMap<Vec<u8>, IndexEntry>> {
        let cache = self.cache(controller);
        let mut cached = cache.lock();
        let mut found = BTreeMap::new();
        let index = match current_on(controller, &mut cached, 0)? {
            Ok(Some(index)) => index,
            Ok(None) => return Ok(Ok(found)),
            Err(why) => return Ok(Err(why)),
        };
        for range in parts_of(&index, names) {
            let Some(bytes) = part(controller, range.start, range.len(), 0)? else {
                // The index became shorter.
                break;
            };
            let mut rest = bytes.as_slice();
            while let Ok((entry, behind)) = IndexEntry::decode(rest) {
                found.insert(entry.name.clone(), entry);
                rest = behind;
            }
        }
        Ok(Ok(found))
    }

    /// The identifiers of all active namespaces.
    pub(crate) fn numbers(&self) -> Result<Vec<u32>> {
        let subsystem = &self.subsystem;
        let failed = |why: String| Error::new(ErrorKind::Corrupt, "list", &subsystem.nqn, why);
        let mut all: Vec<u32> = Vec::new();
        loop {
            let sqe = Admin::Identify(Identify {
                page: page::NAMESPACES,
                nsid: all.last().copied().unwrap_or(0),
                controller: 0,
                command_set: 0,
            });
            let list = subsystem.ask(sqe.sqe(), IDENTIFY_BYTES);
            let list = list.map_err(|(_, error)| error)?;
            let list = decode_list(&list).map_err(|error| failed(error.to_string()))?;
            if list.first().zip(all.last()).is_some_and(|(first, last)| first <= last) {
                return Err(failed("its list of namespaces does not advance".to_owned()));
            }
            let is_last = list.len() < LIST_MAX;
            all.extend(list);
            if all.len() > NAMESPACES_MAX {
                return Err(failed(format!("it has more than {NAMESPACES_MAX} namespaces")));
            }
            if is_last {
                return Ok(all);
            }
        }
    }
}

/// The parts of an encoded index that have the entries of these names. Entries that are close together share a part.
fn parts_of(index: &NameIndex, names: &BTreeSet<&[u8]>) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (entry, range) in index.entries.iter().zip(index.ranges()) {
        if !names.contains(entry.name.as_slice()) {
            continue;
        }
        match parts.last_mut() {
            Some(last) if range.start - last.end <= GAP_BYTES_MAX && range.end - last.start <= READ_BYTES_MAX => {
                last.end = range.end;
            }
            _ => parts.push(range),
        }
    }
    parts
}

/// The current index of a controller. Only its header is read if the cached one is still current. With [`INDEX_SCANS`],
/// it has the names of files that were added before the call.
fn current_on(
    controller: &Controller,
    cached: &mut Option<CachedIndex>,
    specific: u8,
) -> Answer<Option<Arc<NameIndex>>> {
    if let Some(known) = &*cached
        && part(controller, 0, INDEX_HEADER_BYTES, specific)?.as_ref() == Some(&known.header)
    {
        return Ok(Ok(Some(Arc::clone(&known.index))));
    }
    read_into(controller, cached)
}

/// Reads the whole index of a controller, and keeps it.
fn read_into(controller: &Controller, cached: &mut Option<CachedIndex>) -> Answer<Option<Arc<NameIndex>>> {
    for _ in 0..READS_MAX {
        let Some(head) = part(controller, 0, INDEX_HEADER_BYTES, INDEX_SCANS)? else {
            return Ok(Ok(None));
        };
        let Ok(header) = IndexHeader::decode(&head) else {
            // The log page belongs to another vendor.
            return Ok(Ok(None));
        };
        let length = usize::try_from(header.bytes).expect("at most 16 MiB");
        let mut all = Vec::with_capacity(length);
        all.extend(&head);
        while all.len() < length {
            let next = (length - all.len()).min(READ_BYTES_MAX);
            let Some(bytes) = part(controller, all.len(), next.next_multiple_of(4), 0)? else {
                return Ok(Err("the index disappeared".to_owned()));
            };
            let whole = whole_entries(&bytes[..next]);
            if whole == 0 {
                // The index became shorter, or it is malformed.
                break;
            }
            all.extend(&bytes[..whole]);
        }
        let again = part(controller, 0, INDEX_HEADER_BYTES, 0)?;
        if again.as_ref() == Some(&head) {
            let index = match NameIndex::decode(&all) {
                Ok(index) => Arc::new(index),
                Err(error) => return Ok(Err(error.to_string())),
            };
            *cached = Some(CachedIndex {
                header: head,
                index: Arc::clone(&index),
            });
            return Ok(Ok(Some(index)));
        }
    }
    Ok(Err(UNSTABLE.to_owned()))
}

/// The length of the whole entries at the start of a part of an index. The rest of the part is read again: the length
/// and the version of an entry must come from one answer.
fn whole_entries(part: &[u8]) -> usize {
    let mut rest = part;
    while let Ok((_, behind)) = IndexEntry::decode(rest) {
        rest = behind;
    }
    part.len() - rest.len()
}

/// Whether the index has names below a folder.
pub(crate) fn has_folder(index: &NameIndex, folder: &str) -> bool {
    let prefix = format!("{folder}/");
    let mut names = index.entries.iter().map(|entry| &entry.name);
    names.any(|name| name.starts_with(prefix.as_bytes()))
}

/// Reads a part of the index page; `None` if the target refuses it.
fn part(controller: &Controller, offset: usize, bytes: usize, specific: u8) -> Result<Option<Vec<u8>>, LinkError> {
    let sqe = Admin::GetLog(GetLog {
        page: INDEX_PAGE,
        specific,
        retains_event: false,
        offset: offset as u64,
        bytes: u32::try_from(bytes).expect("reads are short"),
        nsid: u32::MAX,
    });
    match controller.ask(sqe.sqe(), bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_final() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of `count` names with 60 bytes each, of which an entry takes 92.
    fn index(count: u32) -> NameIndex {
        let entry = |nsid: u32| IndexEntry {
            nsid,
            is_writable: false,
            bytes: 1,
            version: 7,
            name: format!("{nsid:060}").into_bytes(),
        };
        NameIndex {
            generation: 1,
            boot: 0,
            entries: (1..=count).map(entry).collect(),
        }
    }

    fn parts(index: &NameIndex, is_wanted: impl Fn(u32) -> bool) -> Vec<Range<usize>> {
        let wanted = index.entries.iter().filter(|entry| is_wanted(entry.nsid));
        parts_of(index, &wanted.map(|entry| entry.name.as_slice()).collect())
    }

    #[test]
    fn entries_that_are_close_together_are_read_together() {
        let index = index(1000);
        let end = |nsid: usize| INDEX_HEADER_BYTES + 92 * nsid;
        assert!(parts(&index, |_| false).is_empty());
        let one = parts(&index, |nsid| nsid == 3);
        assert_eq!((one.len(), &one[0]), (1, &(end(2)..end(3))));
        // The entries between them are read too.
        assert_eq!(
            parts(&index, |nsid| [3, 40, 900].contains(&nsid)),
            [end(2)..end(40), end(899)..end(900)]
        );
        let all = parts(&index, |_| true);
        assert_eq!(all.len(), 92_000_usize.div_ceil(READ_BYTES_MAX));
        assert!(all.iter().all(|part| part.len() <= READ_BYTES_MAX));
        assert_eq!((all[0].start, all[1].end), (end(0), end(1000)));
        assert_eq!(all[0].end, all[1].start);
    }

    #[test]
    fn an_entry_is_taken_from_one_part_of_the_index_or_read_again() {
        let page = index(3).encode().expect("small");
        let entries = &page[INDEX_HEADER_BYTES..];
        assert_eq!(entries.len(), 3 * 92);
        for (bytes, whole) in [(0, 0), (20, 0), (91, 0), (92, 92), (183, 92), (184, 184), (276, 276)] {
            assert_eq!(whole_entries(&entries[..bytes]), whole, "{bytes}");
        }
    }

    #[test]
    fn an_entry_is_found_by_its_name_and_by_its_namespace() {
        let index = index(3);
        let name = index.entries[1].name.clone();
        let range = EntryKey::Name(&name).range_in(&index);
        assert_eq!(EntryKey::Namespace(2).range_in(&index), range);
        assert!(range.is_some() && EntryKey::Namespace(2).is_of(&index.entries[1]));
        assert_eq!(EntryKey::Namespace(4).range_in(&index), None);
        assert_eq!(EntryKey::Name(b"x").range_in(&index), None);
    }
}
