//! Pinning: the registration of host memory for DMA by GPUs.
//!
//! Pinning is expensive (73 ms for 1 GiB on an H200 host, and 37 ms to undo), so it is done once for a small
//! ring that serves every transfer. Faulting the pages in and registering them takes half the time of an
//! allocation by the driver. It also gives memory that is aligned for `O_DIRECT`, which the driver's memory
//! may not be. It is not write-combined, because the CPU reads it for checksums.

use std::ffi::c_void;
use std::ptr::NonNull;

use straightway_core::{Bytes, Error, Result};

use super::code::Code;
use super::context::Context;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for the contexts of all devices, not for one.
const PORTABLE: u32 = 1;

/// Host memory registered with the driver, until this is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    context: Context,
    start: NonNull<u8>,
}

// SAFETY: it is an address that the driver accepts from every thread.
unsafe impl Send for Pin {}
// SAFETY: as above; no memory is accessed through a shared reference.
unsafe impl Sync for Pin {}

impl Pin {
    /// Registers `bytes` bytes that start at `start`.
    ///
    /// # Safety
    /// The range is mapped and writable, and stays so until the pin is dropped.
    pub(crate) unsafe fn new(context: &Context, start: NonNull<u8>, bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Err(context.error(Code::INVALID_VALUE, "pin 0 bytes for"));
        }
        let entered = context.enter()?;
        let address = start.as_ptr().cast::<c_void>();
        // SAFETY: the caller guarantees the range, and a context is current.
        let code = unsafe { (context.api().mem_host_register)(address, bytes, PORTABLE) };
        drop(entered);
        code.ok().map_err(|code| not_pinned(context, code, bytes))?;
        Ok(Self {
            context: context.clone(),
            start,
        })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.context.is_alive() {
            return;
        }
        let entered = self.context.enter();
        let address = self.start.as_ptr().cast::<c_void>();
        // SAFETY: registered in `new`, unregistered once here; a slot in flight holds the memory
        // that holds this, so no copy is in flight.
        let code = unsafe { (self.context.api().mem_host_unregister)(address) };
        drop(entered);
        if let Err(code) = code.ok() {
            tracing::warn!(?code, "host memory was not unpinned");
        }
    }
}

fn not_pinned(context: &Context, code: Code, bytes: usize) -> Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or_else(|| "unlimited".into(), |bytes| Bytes(bytes).to_string());
    let wanted = Bytes(bytes as u64);
    let cause = context.api().name(code);
    let message = format!("{wanted} wanted, RLIMIT_MEMLOCK is {limit}: {cause}");
    let kib = bytes.div_ceil(1024);
    let hint = format!("use a smaller ring, or let the process lock {wanted} (`ulimit -l {kib}`)");
    let device = context.device();
    Error::new(code.kind(), "pin host memory for", device, message).with_hint(hint)
}
