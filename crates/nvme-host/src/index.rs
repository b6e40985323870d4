//! The name index of a subsystem, which Straightway targets have, and the list of namespaces.

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{
    admin::{Admin, GetLog, Identify},
    identify::{IDENTIFY_BYTES, LIST_MAX, decode_list, page},
    index::{INDEX_HEADER_BYTES, INDEX_PAGE, IndexHeader, NameIndex},
};

use crate::{link::LinkError, subsystem::Subsystem};

/// The maximum number of bytes of the index that one command reads.
const READ_BYTES_MAX: usize = 64 << 10;

/// The maximum number of reads of an index that changes meanwhile.
const READS_MAX: usize = 5;

/// The maximum number of namespaces that are listed without an index.
const NAMESPACES_MAX: usize = 1 << 16;

/// Reads the index of a subsystem; `None` if it has none.
pub(crate) fn read(subsystem: &Subsystem) -> Result<Option<NameIndex>> {
    let failed = |why: String| Error::new(ErrorKind::Corrupt, "list", &subsystem.nqn, why);
    for _ in 0..READS_MAX {
        let Some(bytes) = part(subsystem, 0, INDEX_HEADER_BYTES)? else {
            return Ok(None);
        };
        let Ok(header) = IndexHeader::decode(&bytes) else {
            // The log page belongs to another vendor.
            return Ok(None);
        };
        let length = usize::try_from(header.bytes).expect("at most 16 MiB");
        let mut all = Vec::with_capacity(length);
        while all.len() < length {
            let next = (length - all.len()).min(READ_BYTES_MAX);
            let bytes = part(subsystem, all.len(), next.next_multiple_of(4))?;
            let bytes = bytes.ok_or_else(|| failed("the index disappeared".to_owned()))?;
            all.extend(&bytes[..next]);
        }
        let again = part(subsystem, 0, INDEX_HEADER_BYTES)?;
        let again = again.and_then(|bytes| IndexHeader::decode(&bytes).ok());
        if again == Some(header) && all[..INDEX_HEADER_BYTES] == bytes[..] {
            let index = NameIndex::decode(&all);
            return index.map(Some).map_err(|error| failed(error.to_string()));
        }
    }
    Err(failed(
        "its index changes faster than it can be read".to_owned(),
    ))
}

/// Reads a part of the index page; `None` if the target refuses it.
fn part(subsystem: &Subsystem, offset: usize, bytes: usize) -> Result<Option<Vec<u8>>> {
    let sqe = Admin::GetLog(GetLog {
        page: INDEX_PAGE,
        specific: 0,
        retains_event: false,
        offset: offset as u64,
        bytes: u32::try_from(bytes).expect("reads are short"),
        nsid: u32::MAX,
    });
    match subsystem.ask(sqe.sqe(), bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err((LinkError::Refused(status, _), _)) if !status.is_retryable() => Ok(None),
        Err((_, error)) => Err(error),
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
