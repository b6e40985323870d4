//! A namespace: its identifiers, its storage and the version of its content.

use std::{io, sync::Arc};

use crate::{
    backing::Backing,
    host::HostIdentity,
    version::{LostWrites, Version},
};

/// A namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) nsid: u32,
    pub(crate) uuid: [u8; 16],
    pub(crate) ana_group: u32,
    pub(crate) backing: Backing,
    /// A resized file keeps its version, because hosts have counted changes in it.
    pub(crate) version: Arc<Version>,
}

impl Namespace {
    /// Writes for a host.
    pub(crate) fn write(&self, host: &HostIdentity, data: &[u8], offset: u64) -> io::Result<()> {
        self.version.change(host, || self.backing.write(data, offset))
    }

    /// Makes all writes durable for a host.
    pub(crate) fn sync(&self, host: &HostIdentity) -> Result<(), LostWrites> {
        self.version.sync(host, || self.backing.sync())
    }

    /// Writes zeros for a host.
    pub(crate) fn zero(&self, host: &HostIdentity, offset: u64, bytes: u64, may_deallocate: bool) -> io::Result<()> {
        self.version
            .change(host, || self.backing.zero(offset, bytes, may_deallocate))
    }

    /// Deallocates blocks for a host.
    pub(crate) fn discard(&self, host: &HostIdentity, offset: u64, bytes: u64) {
        self.version.change(host, || self.backing.discard(offset, bytes));
    }
}
