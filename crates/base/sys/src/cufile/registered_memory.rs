//! Device memory that is registered with cuFile.

use std::ffi::c_void;
use std::sync::Arc;

use straightway_core::Result;

use super::session::CuFile;
use crate::cuda::DeviceMemory;

/// A registration of device memory. Dropping it deregisters the memory, which it keeps alive until then.
#[derive(Debug)]
pub struct RegisteredMemory {
    cufile: CuFile,
    memory: Arc<DeviceMemory>,
}

impl CuFile {
    /// Registers device memory. This is expensive, and limited by BAR1, so it is done once.
    pub fn register_memory(&self, memory: &Arc<DeviceMemory>) -> Result<RegisteredMemory> {
        let register = self.api().buf_register()?;
        self.api().buf_deregister()?;
        let _entered = memory.context().enter()?;
        // SAFETY: the range is live device memory, held by what this returns until it is deregistered;
        // flags must be zero and are.
        let status = unsafe { register(base(memory), memory.bytes(), 0) };
        status.ok("register with cuFile", memory)?;
        Ok(RegisteredMemory {
            cufile: self.clone(),
            memory: Arc::clone(memory),
        })
    }
}

impl RegisteredMemory {
    /// The registered memory.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// The base address, which identifies the registration in every request.
    pub(super) fn base(&self) -> *mut c_void {
        base(&self.memory)
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let entered = self.memory.context().enter();
        if let Ok(deregister) = self.cufile.api().buf_deregister() {
            // SAFETY: registered in `register_memory`, deregistered once here; reads and writes are
            // synchronous and borrow `self`, so none is in flight.
            let status = unsafe { deregister(self.base()) };
            if let Err(error) = status.ok("deregister from cuFile", &self.memory) {
                tracing::warn!(%error, "device memory stays registered until cuFile closes");
            }
        }
        drop(entered);
    }
}

fn base(memory: &DeviceMemory) -> *mut c_void {
    memory.address() as *mut c_void
}
