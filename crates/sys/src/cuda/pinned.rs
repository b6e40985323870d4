//! Host memory the GPU may reach by itself.
//!
//! Pinning is dear (73 ms for 1 GiB on an H200 host, and 37 ms to undo), so there is one small ring
//! per process, pinned once. Touching the pages first and registering them then takes half the time
//! of letting the driver allocate, and gives memory that is aligned for `O_DIRECT`, which the
//! driver's own need not be. It is not write-combined: the CPU reads it, for checksums.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use straightway_core::{Bytes, Error, Kind, Result};

use super::Owner;
use super::code::Code;
use super::context::Context;
use super::slot::Slot;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for the contexts of all devices, not for one.
const PORTABLE: u32 = 1;

/// Host memory registered with the driver, until it is dropped.
pub struct PinnedMemory {
    context: Context,
    address: NonNull<u8>,
    len: usize,
    _owner: Owner,
}

// SAFETY: it is an address range of the process, valid from every thread while `_owner` lives; the
// bytes are handed out only through `Slot`s, each of which is the only one for its part.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; nothing is reachable through a shared reference but the address and length.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Touches every page of the range and registers it with the driver.
    ///
    /// # Safety
    /// The range is mapped, initialised and writable, and stays so while `owner` lives; nobody but
    /// the slots cut from the result reads or writes it.
    pub unsafe fn register(
        context: &Context,
        address: NonNull<u8>,
        len: usize,
        owner: Owner,
    ) -> Result<Self> {
        if len == 0 {
            return Err(context.error(Code::INVALID_VALUE, "pin 0 bytes for"));
        }
        // SAFETY: the caller vouches for the range.
        unsafe { touch(address, len) };
        let entered = context.enter()?;
        // SAFETY: the caller vouches for the range, and a context is current.
        let code = unsafe {
            (context.api().mem_host_register)(address.as_ptr().cast::<c_void>(), len, PORTABLE)
        };
        drop(entered);
        code.ok().map_err(|code| not_pinned(context, code, len))?;
        Ok(Self {
            context: context.clone(),
            address,
            len,
            _owner: owner,
        })
    }

    /// How many bytes are pinned.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: registering nothing is refused. Here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Cuts the memory into as many slots of `slot_bytes` as it has room for. It stays pinned until
    /// the last of them is dropped.
    pub fn into_slots(self, slot_bytes: usize) -> Result<Vec<Slot>> {
        if slot_bytes == 0 || slot_bytes > self.len {
            let message = format!(
                "slots of {slot_bytes} bytes do not fit its {} bytes",
                self.len
            );
            return Err(Error::new(Kind::Invalid, "cut", "pinned memory", message));
        }
        let count = self.len / slot_bytes;
        let memory = Arc::new(self);
        Ok((0..count)
            .map(|i| Slot::new(Arc::clone(&memory), i * slot_bytes, slot_bytes))
            .collect())
    }

    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let entered = self.context.enter();
        // SAFETY: registered in `register`, unregistered once here; a slot in flight holds an `Arc`
        // of this memory, so no copy is under way.
        let code = unsafe {
            (self.context.api().mem_host_unregister)(self.address.as_ptr().cast::<c_void>())
        };
        drop(entered);
        if let Err(code) = code.ok() {
            tracing::warn!(bytes = self.len, ?code, "host memory was not unpinned");
        }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PinnedMemory({} at {:p})",
            Bytes(self.len as u64),
            self.address
        )
    }
}

/// Makes every page of the range present, without changing what it holds.
///
/// # Safety
/// The range is mapped and writable, and nobody else is using it.
unsafe fn touch(address: NonNull<u8>, len: usize) {
    let page = rustix::param::page_size();
    let start = address.as_ptr() as usize / page * page;
    let span = address.as_ptr() as usize + len - start;
    // SAFETY: populating changes no contents, and the range is mapped, says the caller.
    let done = unsafe { libc::madvise(start as *mut c_void, span, libc::MADV_POPULATE_WRITE) };
    if done == 0 {
        return;
    }
    // Kernels before 5.14 have no MADV_POPULATE_WRITE: write one byte of each page back to itself.
    for offset in (0..len).step_by(page) {
        // SAFETY: within the range, which nobody else is using.
        unsafe {
            let byte = address.as_ptr().add(offset);
            byte.write_volatile(byte.read_volatile());
        }
    }
}

fn not_pinned(context: &Context, code: Code, len: usize) -> Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or_else(|| "unlimited".into(), |bytes| Bytes(bytes).to_string());
    let wanted = Bytes(len as u64);
    let cause = code.name(context.api());
    let message = format!("{wanted} wanted, RLIMIT_MEMLOCK is {limit}: {cause}");
    Error::new(
        code.kind(),
        "pin host memory for",
        context.device(),
        message,
    )
    .with_hint(format!(
        "use a smaller ring, or let the process lock {wanted} (`ulimit -l {}`)",
        len.div_ceil(1024)
    ))
}
