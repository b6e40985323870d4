//! The namespaces and the name index after a scan.
//!
//! A scan finds the length of each file. A host that reads an entry of the index gets this length with a version. The
//! version is settled only if a look at the file since the request found the same length, so both are facts of one
//! moment. See [`crate::version`].

use std::{collections::BTreeMap, io, os::unix::fs::FileTypeExt, sync::Arc, time::Instant};

use crate::{backing::Stamp, host::HostIdentity, namespace::Namespace, served_path::ServedPath, version::Version};

/// A name that is served.
#[derive(Debug)]
pub(crate) struct Served {
    /// `None` for an empty file.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// The path of its file or block device; `None` for memory.
    pub(crate) path: Option<ServedPath>,
    /// Its length in the index.
    pub(crate) bytes: u64,
    pub(crate) version: Arc<Version>,
}

impl Served {
    /// Looks at the file of the name, unless that was done since a time. Returns whether it has to be looked at again
    /// after a tick.
    pub(crate) fn look(&self, since: Instant) -> bool {
        self.version.look(since, || self.stamp())
    }

    /// Whether the last look found another file, none, or another length. It must be scanned again.
    pub(crate) fn is_stale(&self) -> bool {
        self.version.is_stale(self.bytes)
    }

    /// The current stamp of the path. Memory has none, and is not looked at.
    fn stamp(&self) -> io::Result<Stamp> {
        let path = self.path.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let meta = path.metadata()?;
        let mut stamp = Stamp::of(&meta);
        if let Some(namespace) = &self.namespace
            && meta.file_type().is_block_device()
        {
            stamp = stamp.without_times();
            stamp.bytes = namespace.backing.device_bytes()?;
        }
        Ok(stamp)
    }
}

/// The namespaces after a scan.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Increases with each change.
    pub(crate) revision: u64,
    pub(crate) namespaces: BTreeMap<u32, Arc<Namespace>>,
    /// The index page. Versions are inserted when it is read: each host sees its own.
    pub(crate) index: Vec<u8>,
    /// The offsets of the versions in the index page, in ascending order, and the names that they belong to.
    pub(crate) versions: Vec<(usize, Arc<Served>)>,
}

impl Table {
    /// The names whose versions are in a part of the index page, with the offsets of the versions.
    pub(crate) fn versions_in(&self, offset: usize, bytes: usize) -> &[(usize, Arc<Served>)] {
        // A version may lie across the start or the end of the part.
        let all = &self.versions;
        let start = all.partition_point(|(at, _)| at + size_of::<u64>() <= offset);
        let end = all.partition_point(|(at, _)| *at < offset.saturating_add(bytes));
        &all[start..end]
    }

    /// Up to `bytes` of the index page from `offset` on, as a host sees it; `None` if the page ends before `offset`.
    /// Versions of files that were not looked at since a time are unsettled.
    pub(crate) fn index_part(
        &self,
        offset: usize,
        bytes: usize,
        host: &HostIdentity,
        since: Instant,
    ) -> Option<Vec<u8>> {
        let rest = self.index.get(offset..)?;
        let mut part = rest[..rest.len().min(bytes)].to_vec();
        let end = offset + part.len();
        for (at, served) in self.versions_in(offset, part.len()) {
            let version = served.version.seen_by(host, since, served.bytes).to_le_bytes();
            for (at, byte) in (*at..).zip(version) {
                if (offset..end).contains(&at) {
                    part[at - offset] = byte;
                }
            }
        }
        Some(part)
    }
}
