//! A command that changes a namespace: its data as it comes, and how it went.

use std::{io, sync::Arc};

use straightway_nvme::{
    Status, TRANSFER_BYTES_MAX,
    nvm::{DATASET_RANGE_BYTES, DATASET_RANGES_MAX, Range, dataset_ranges},
};

use crate::catalog::Namespace;

/// The most data of Dataset Management.
pub(crate) const DATASET_BYTES_MAX: usize = DATASET_RANGES_MAX * DATASET_RANGE_BYTES;

/// A command whose data is on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) cid: u16,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u32,
    pub(crate) received: u32,
    /// Why it will fail, once all its data has come.
    pub(crate) failed: Option<Status>,
}

/// What its data is for.
#[derive(Debug)]
pub(crate) enum Purpose {
    Write { offset: u64, is_durable: bool },
    Discard { ranges: Vec<u8>, used_bytes: usize },
}

impl Pending {
    /// Uses the next piece of its data.
    pub(crate) fn take(&mut self, data: &[u8]) {
        let at = u64::from(self.received);
        self.received += u32::try_from(data.len()).expect("pieces are bounded");
        match &mut self.purpose {
            Purpose::Write { offset, .. } => {
                let done = self.namespace.backing.write(data, *offset + at);
                let status = written(done);
                if !status.is_success() {
                    self.failed = Some(status);
                }
            }
            Purpose::Discard { ranges, .. } => ranges.extend_from_slice(data),
        }
    }
}

/// The bytes of a range; an error status where they are none of the namespace's, or too many for one command.
pub(crate) fn extent(namespace: &Namespace, range: Range) -> Result<(u64, u32), Status> {
    let backing = &namespace.backing;
    if !range.is_within(backing.blocks()) {
        return Err(Status::LBA_RANGE.dnr());
    }
    let bytes = u64::from(range.blocks) << backing.block_shift;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= TRANSFER_BYTES_MAX => Ok((range.start << backing.block_shift, bytes)),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// Gives ranges back to the file system.
pub(crate) fn discard(namespace: &Namespace, ranges: &[u8]) -> Status {
    let Ok(ranges) = dataset_ranges(ranges) else {
        return Status::INVALID_FIELD.dnr();
    };
    let backing = &namespace.backing;
    if !ranges.iter().all(|range| range.is_within(backing.blocks())) {
        return Status::LBA_RANGE.dnr();
    }
    for range in ranges {
        let shift = backing.block_shift;
        backing.discard(range.start << shift, u64::from(range.blocks) << shift);
    }
    Status::SUCCESS
}

/// How a write went.
pub(crate) fn written(done: io::Result<()>) -> Status {
    match done {
        Ok(()) => Status::SUCCESS,
        Err(error) => {
            tracing::error!("cannot write: {error}");
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::CAPACITY.dnr(),
                _ => Status::WRITE_FAULT,
            }
        }
    }
}

/// How a flush went. A failed one is never repeated: the kernel has dropped what it could not write.
pub(crate) fn synced(done: io::Result<()>) -> Status {
    match done {
        Ok(()) => Status::SUCCESS,
        Err(error) => {
            tracing::error!("cannot make writes durable: {error}");
            Status::WRITE_FAULT.dnr()
        }
    }
}
