//! The open cuFile driver, which creates file handles and registrations.

use std::sync::Arc;
use std::time::Duration;

use straightway_core::{Bytes, Result};

use super::api::{Api, DriverProperties};
use super::library::Library;
use super::opening;
use crate::cuda::{Context, Version};

/// The open cuFile driver. Clones share it; the last one closes it.
#[derive(Clone, Debug)]
pub struct CuFile(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    library: Arc<Library>,
    /// Whether it was opened here, so that it must be closed here.
    ours: bool,
    /// cuFile uses the context until it is closed.
    _context: Context,
}

impl Library {
    /// Opens the driver, and gives up after `deadline`. It usually takes half a second.
    ///
    /// The context proves that there are a CUDA driver and a device: without them some versions hang.
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
    /// The library's version; `None` before CUDA 12.3, which cannot report it.
    pub fn version(&self) -> Option<Version> {
        self.0.library.version()
    }

    /// The maximum size of registered device memory.
    pub fn device_pinned_max(&self) -> Result<Bytes> {
        let ask = self.api().driver_get_properties()?;
        let mut raw = DriverProperties::default();
        // SAFETY: `raw` is a valid place for the answer, of the size the header gives it.
        unsafe { ask(&raw mut raw) }.ok("query the properties of", "cuFile's driver")?;
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
        // SAFETY: opened here; every handle and registration holds a clone of the session, so none is
        // left.
        let status = unsafe { close() };
        if let Err(error) = status.ok("close", "cuFile's driver") {
            tracing::warn!(%error, "cuFile was not closed");
        }
    }
}
