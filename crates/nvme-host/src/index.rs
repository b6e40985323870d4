//! The name index of a subsystem, which Straightway targets have, and the list of namespaces.

use std::sync::{Arc, Mutex, PoisonError};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{
    admin::{Admin, GetLog, Identify},
    identify::{IDENTIFY_BYTES, LIST_MAX, decode_list, page},
    index::{INDEX_HEADER_BYTES, INDEX_PAGE, IndexHeader, NameIndex},
};

use crate::{controller::Controller, link::LinkError, subsystem::Subsystem};

/// The maximum number of bytes of the index that one command reads.
const READ_BYTES_MAX: usize = 64 << 10;

/// The maximum number of reads of an index that changes meanwhile.
const READS_MAX: usize = 5;

/// The maximum number of namespaces that are listed without an index.
const NAMESPACES_MAX: usize = 1 << 16;

/// The last index of a controller. It is valid as long as the header is the same.
#[derive(Debug, Default)]
pub(crate) struct IndexCache(Mutex<Option<(IndexHeader, Arc<NameIndex>)>>);

/// The index of a controller; `None` if it has none. The error is the reason why it is invalid.
type Index = Result<Option<Arc<NameIndex>>, String>;

/// Reads the index of a subsystem; `None` if it has none.
pub(crate) fn read(subsystem: &Subsystem) -> Result<Option<Arc<NameIndex>>> {
    let index = subsystem.attempt(read_on).map_err(|(_, error)| error)?;
    index.map_err(|why| Error::new(ErrorKind::Corrupt, "list", &subsystem.nqn, why))
}

/// Reads the index of a controller: the header, and the rest if the header differs from that of the last read.
pub(crate) fn read_on(controller: &Controller) -> Result<Index, LinkError> {
    // The lock is held while the index is read, so that threads that verify namespaces at once read it once.
    let cached = &controller.index.0;
    let mut cached = cached.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..READS_MAX {
        let Some(head) = part(controller, 0, INDEX_HEADER_BYTES)? else {
            return Ok(Ok(None));
        };
        let Ok(header) = IndexHeader::decode(&head) else {
            // The log page belongs to another vendor.
            return Ok(Ok(None));
        };
        if let Some((known, index)) = &*cached
            && *known == header
        {
            return Ok(Ok(Some(Arc::clone(index))));
        }
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
            *cached = Some((header, Arc::clone(&index)));
            return Ok(Ok(Some(index)));
        }
    }
    let why = "its index changes faster than it can be read";
    Ok(Err(why.to_owned()))
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
