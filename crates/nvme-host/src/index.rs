//! The name index of a subsystem, which Straightway targets have, and the list of namespaces.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{
    admin::{Admin, GetLog, Identify},
    identify::{IDENTIFY_BYTES, LIST_MAX, decode_list, page},
    index::{INDEX_HEADER_BYTES, INDEX_PAGE, IndexEntry, IndexHeader, NameIndex},
};

use crate::{controller::Controller, link::LinkError, subsystem::Subsystem};

/// The maximum number of bytes of the index that one command reads.
const READ_BYTES_MAX: usize = 64 << 10;

/// The maximum number of reads of an index that changes meanwhile.
const READS_MAX: usize = 5;

/// The reason if that is not enough.
const UNSTABLE: &str = "its index changes faster than it can be read";

/// The maximum number of namespaces that are listed without an index.
const NAMESPACES_MAX: usize = 1 << 16;

/// The last index of a controller. It shows where the entry of a name is. The versions in it may be old.
#[derive(Debug, Default)]
pub(crate) struct IndexCache(Mutex<Option<Arc<NameIndex>>>);

impl IndexCache {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<NameIndex>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of looking up a name.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Its entry.
    Found(IndexEntry),
    /// The whole index, which does not have the name; `None` if there is no index.
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
}

/// The answer of a controller. The error is the reason why its index is invalid.
type Answer<T> = Result<Result<T, String>, LinkError>;

/// Reads the whole index of a subsystem; `None` if it has none.
pub(crate) fn read(subsystem: &Subsystem) -> Result<Option<Arc<NameIndex>>> {
    ask(subsystem, |controller| {
        read_into(controller, &mut controller.index.lock())
    })
}

/// Looks up a name in the index of a subsystem.
pub(crate) fn lookup(subsystem: &Subsystem, name: &[u8]) -> Result<Lookup> {
    ask(subsystem, |controller| lookup_on(controller, name))
}

fn ask<T>(subsystem: &Subsystem, run: impl Fn(&Controller) -> Answer<T>) -> Result<T> {
    let answer = subsystem.attempt(run).map_err(|(_, error)| error)?;
    answer.map_err(|why| Error::new(ErrorKind::Corrupt, "list", &subsystem.nqn, why))
}

/// Looks up a name in the index of a controller. The version in the entry is newer than this call. Only the entry is
/// read, unless it is not where it was at the last read of the whole index.
pub(crate) fn lookup_on(controller: &Controller, name: &[u8]) -> Answer<Lookup> {
    // The lock is held while the index is read, so that threads that verify namespaces at once read the whole of it
    // once.
    let mut cached = controller.index.lock();
    for _ in 0..READS_MAX {
        let range = cached.as_ref().and_then(|index| index.range_of(name));
        if let Some(range) = range
            && let Some(bytes) = part(controller, range.start, range.len())?
            && let Ok((entry, _)) = IndexEntry::decode(&bytes)
            && entry.name == name
        {
            return Ok(Ok(Lookup::Found(entry)));
        }
        match read_into(controller, &mut cached)? {
            // The entry is read alone: only then does the target refuse a version that it does not know yet.
            Ok(Some(index)) if index.find(name).is_some() => {}
            Ok(index) => return Ok(Ok(Lookup::Missing(index))),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Err(UNSTABLE.to_owned()))
}

/// Reads the whole index of a controller, and keeps it.
fn read_into(
    controller: &Controller,
    cached: &mut Option<Arc<NameIndex>>,
) -> Answer<Option<Arc<NameIndex>>> {
    for _ in 0..READS_MAX {
        let Some(head) = part(controller, 0, INDEX_HEADER_BYTES)? else {
            return Ok(Ok(None));
        };
        let Ok(header) = IndexHeader::decode(&head) else {
            // The log page belongs to another vendor.
            return Ok(Ok(None));
        };
        let length = usize::try_from(header.bytes).expect("at most 16 MiB");
        let mut all = Vec::with_capacity(length);
        while all.len() < length {
            let next = (length - all.len()).min(READ_BYTES_MAX);
            let Some(bytes) = part(controller, all.len(), next.next_multiple_of(4))? else {
                return Ok(Err("the index disappeared".to_owned()));
            };
            all.extend(&bytes[..next]);
        }
        let again = part(controller, 0, INDEX_HEADER_BYTES)?;
        let again = again.and_then(|bytes| IndexHeader::decode(&bytes).ok());
        if again == Some(header) && all[..INDEX_HEADER_BYTES] == head[..] {
            let index = match NameIndex::decode(&all) {
                Ok(index) => Arc::new(index),
                Err(error) => return Ok(Err(error.to_string())),
            };
            *cached = Some(Arc::clone(&index));
            return Ok(Ok(Some(index)));
        }
    }
    Ok(Err(UNSTABLE.to_owned()))
}

/// Whether the index has names below a folder.
pub(crate) fn has_folder(index: &NameIndex, folder: &str) -> bool {
    let prefix = format!("{folder}/");
    let mut names = index.entries.iter().map(|entry| &entry.name);
    names.any(|name| name.starts_with(prefix.as_bytes()))
}

/// Reads a part of the index page; `None` if the target refuses it.
fn part(
    controller: &Controller,
    offset: usize,
    bytes: usize,
) -> Result<Option<Vec<u8>>, LinkError> {
    let sqe = Admin::GetLog(GetLog {
        page: INDEX_PAGE,
        specific: 0,
        retains_event: false,
        offset: offset as u64,
        bytes: u32::try_from(bytes).expect("reads are short"),
        nsid: u32::MAX,
    });
    match controller.ask(sqe.sqe(), bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(LinkError::Refused(status, _)) if !status.is_retryable() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The identifiers of all active namespaces.
pub(crate) fn numbers(subsystem: &Subsystem) -> Result<Vec<u32>> {
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
        if list
            .first()
            .zip(all.last())
            .is_some_and(|(first, last)| first <= last)
        {
            return Err(failed("its list of namespaces does not advance".to_owned()));
        }
        let is_last = list.len() < LIST_MAX;
        all.extend(list);
        if all.len() > NAMESPACES_MAX {
            return Err(failed(format!(
                "it has more than {NAMESPACES_MAX} namespaces"
            )));
        }
        if is_last {
            return Ok(all);
        }
    }
}
