//! The opened cuFile driver, from which everything else is had.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use straightway_core::{Bytes, Result};

use super::api::{Api, DriverProperties, need};
use super::library::{Library, Parameter};
use super::opening;
use crate::cuda::{Context, Version};

/// cuFile, open. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct CuFile(Arc<Opened>);

struct Opened {
    library: Arc<Library>,
    /// Whether it was us who opened it, so that closing is ours too.
    ours: bool,
    /// cuFile uses the context until it is closed.
    _context: Context,
}

/// What cuFile says of itself once it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The version of nvidia-fs; (0, 0) where it is not loaded.
    pub nvfs_version: (u32, u32),
    /// The largest request that goes to the driver in one piece.
    pub direct_io_max: Bytes,
    /// How much device memory may be registered.
    pub device_pinned_max: Bytes,
    /// How much device memory cuFile takes for its own cache.
    pub device_cache_max: Bytes,
    /// How many requests a batch may have.
    pub batch_io_max: u32,
    /// Drivers and file systems it can go direct on, as bits of the header's enum.
    pub status_flags: u32,
    /// Compat mode and polling, as bits of the header's enum.
    pub control_flags: u32,
}

impl Library {
    /// Opens the driver, and gives up after `deadline`. Half a second has been seen to be usual.
    ///
    /// The context is the proof that a CUDA driver and a device are there: without them some
    /// versions never return.
    pub fn open(self, context: &Context, deadline: Duration) -> Result<CuFile> {
        let library = Arc::new(self);
        let ours = opening::open(Arc::clone(&library), context.clone(), deadline)?;
        Ok(CuFile::new(library, ours, context))
    }
}

impl CuFile {
    fn new(library: Arc<Library>, ours: bool, context: &Context) -> Self {
        let context = context.clone();
        Self(Arc::new(Opened {
            library,
            ours,
            _context: context,
        }))
    }

    /// The library's version; those before CUDA 12.3 cannot tell.
    pub fn version(&self) -> Option<Version> {
        self.0.library.version()
    }

    /// What a parameter is set to; `None` where the library (before 12.9) cannot tell.
    pub fn parameter(&self, parameter: Parameter) -> Option<bool> {
        self.0.library.parameter(parameter)
    }

    /// What cuFile says of itself.
    pub fn properties(&self) -> Result<Properties> {
        let ask = need(
            self.api().driver_get_properties,
            "cuFileDriverGetProperties",
        )?;
        let mut raw = DriverProperties::default();
        // SAFETY: `raw` is a valid place for the answer, of the size the header gives it.
        unsafe { ask(&raw mut raw) }.ok("ask the properties of", "cuFile's driver")?;
        let kib = |n: u32| Bytes(u64::from(n) << 10);
        Ok(Properties {
            nvfs_version: (raw.nvfs_version_major, raw.nvfs_version_minor),
            direct_io_max: Bytes((raw.direct_io_kib_max as u64) << 10),
            device_pinned_max: kib(raw.device_pinned_kib_max),
            device_cache_max: kib(raw.device_cache_kib_max),
            batch_io_max: raw.batch_io_max,
            status_flags: raw.status_flags,
            control_flags: raw.control_flags,
        })
    }

    pub(super) fn api(&self) -> &Api {
        &self.0.library.api
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let api = &self.library.api;
        let Some(close) = api
            .driver_close
            .or(api.driver_close_v1)
            .filter(|_| self.ours)
        else {
            return;
        };
        // SAFETY: opened by us; every handle and registration holds a clone of the session, so
        // none is left.
        let status = unsafe { close() };
        if let Err(error) = status.ok("close", "cuFile's driver") {
            tracing::warn!(%error, "cuFile was not closed");
        }
    }
}

impl fmt::Debug for CuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CuFile({:?})", self.0.library)
    }
}
