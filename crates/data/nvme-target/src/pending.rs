//! A command with data from the host, and its status.

use std::{io, sync::Arc};

use straightway_nvme::{
    Status, TRANSFER_BYTES_MAX,
    nvm::{DATASET_RANGE_BYTES, DATASET_RANGES_MAX, LbaRange, dataset_ranges},
};

use crate::{host::HostIdentity, namespace::Namespace};

/// The maximum data length of Dataset Management.
pub(crate) const DATASET_BYTES_MAX: usize = DATASET_RANGES_MAX * DATASET_RANGE_BYTES;

/// A command whose data is arriving.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) cid: u16,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u32,
    pub(crate) received: u32,
    /// The status of a failure, reported after all data has arrived.
    pub(crate) failed: Option<Status>,
}

/// The use of the data.
#[derive(Debug)]
pub(crate) enum Purpose {
    Write {
        offset: u64,
        is_durable: bool,
    },
    Dataset {
        ranges: Vec<u8>,
        used_bytes: usize,
        /// Without it, the ranges are access hints, which are ignored.
        deallocates: bool,
    },
}

impl Pending {
    /// Processes the next piece of data of a host.
    pub(crate) fn take(&mut self, data: &[u8], host: &HostIdentity) {
        let at = u64::from(self.received);
        self.received += u32::try_from(data.len()).expect("pieces are bounded");
        match &mut self.purpose {
            Purpose::Write { offset, .. } => {
                let done = self.namespace.write(host, data, *offset + at);
                let status = written(done);
                if !status.is_success() {
                    self.failed = Some(status);
                }
            }
            Purpose::Dataset { ranges, .. } => ranges.extend_from_slice(data),
        }
    }
}

/// The byte range of an LBA range. Fails if it is outside the namespace or too long for one command.
pub(crate) fn extent(namespace: &Namespace, range: LbaRange) -> Result<(u64, u32), Status> {
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

/// Deallocates ranges for a host.
pub(crate) fn discard(namespace: &Namespace, host: &HostIdentity, ranges: &[u8]) -> Status {
    let Ok(ranges) = dataset_ranges(ranges) else {
        return Status::INVALID_FIELD.dnr();
    };
    let backing = &namespace.backing;
    if !ranges.iter().all(|range| range.is_within(backing.blocks())) {
        return Status::LBA_RANGE.dnr();
    }
    for range in ranges {
        let shift = backing.block_shift;
        namespace.discard(host, range.start << shift, u64::from(range.blocks) << shift);
    }
    Status::SUCCESS
}

/// The status of a write.
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
