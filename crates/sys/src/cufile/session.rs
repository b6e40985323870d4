//! The opened cuFile driver, from which everything else is had.

use std::sync::Arc;
use std::time::Duration;

use straightway_core::{Bytes, Result};

use super::api::{Api, DriverProperties};
use super::library::Library;
use super::opening;
use crate::cuda::{Context, Version};

/// cuFile, open. Clones share it; the last one closes it.
#[derive(Clone, Debug)]
pub struct CuFile(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    library: Arc<Library>,
    /// Whether it was us who opened it, so that closing is ours too.
    ours: bool,
    /// cuFile uses the context until it is closed.
    _context: Context,
}

impl Library {
    /// Opens the driver, and gives up after `deadline`. Half a second has been seen to be usual.
    ///
    /// The context is the proof that a CUDA driver and a device are there: without them some
    /// versions never return.
    pub fn open(self, context: &Context, deadline: Duration) -> Result<CuFile> {
        let library = Arc::new(self);
        let ours = opening::open(Arc::clone(&library), context.clone(), deadline)?;
        Ok(CuFile(Arc::new(Opened {
            library,
            ours,
            _context: context.clone(),
        })))
    }
}

impl CuFile {
    /// The library's version; those before CUDA 12.3 cannot tell.
    pub fn version(&self) -> Option<Version> {
        self.0.library.version()
    }

    /// How much device memory may be registered.
    pub fn device_pinned_max(&self) -> Result<Bytes> {
        let ask = self.api().driver_get_properties()?;
        let mut raw = DriverProperties::default();
        // SAFETY: `raw` is a valid place for the answer, of the size the header gives it.
        unsafe { ask(&raw mut raw) }.ok("ask the properties of", "cuFile's driver")?;
        Ok(Bytes(u64::from(raw.device_pinned_kib_max) << 10))
    }

    pub(super) fn api(&self) -> &Api {
        &self.0.library.api
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let api = &self.library.api;
        let close = api.driver_close().or_else(|_| api.driver_close_v1());
        let (Ok(close), true) = (close, self.ours) else {
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
