//! A device: its identity and its memory. The CPU cannot access device addresses; the bytes are stored elsewhere.

use std::ptr;

/// The UUID of a device, also in cuFile's counters.
pub(crate) fn uuid_of(device: usize) -> [u8; 16] {
    let mut uuid = [0x5A; 16];
    uuid[15] = u8::try_from(device).unwrap_or(u8::MAX);
    uuid
}

/// One allocation. Its address is mapped without permissions; the device's bytes are in another mapping.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) device: usize,
    pub(crate) address: u64,
    pub(crate) len: usize,
    contents: *mut u8,
}

// SAFETY: both mappings belong to the allocation alone and are valid from every thread.
unsafe impl Send for Allocation {}

impl Allocation {
    /// Memory of `len` bytes with arbitrary content, like fresh device memory.
    pub(crate) fn new(device: usize, len: usize) -> Option<Self> {
        let address = map(len, libc::PROT_NONE)?;
        let Some(contents) = map(len, libc::PROT_READ | libc::PROT_WRITE) else {
            unmap(address, len);
            return None;
        };
        // SAFETY: `len` bytes were just mapped for writing.
        unsafe { contents.write_bytes(0xA5, len) };
        Some(Self {
            device,
            address: address as u64,
            len,
            contents,
        })
    }

    /// Whether `len` bytes at `address` are all inside the allocation.
    pub(crate) fn contains(&self, address: u64, len: usize) -> bool {
        let end = self.address + self.len as u64;
        address >= self.address && address.checked_add(len as u64).is_some_and(|e| e <= end)
    }

    /// The real location of the byte at a device address. The caller has checked `contains`.
    pub(crate) fn host_pointer(&self, address: u64) -> *mut u8 {
        let offset = usize::try_from(address - self.address).expect("within the allocation");
        self.contents.wrapping_add(offset)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        unmap(self.address as *mut u8, self.len);
        unmap(self.contents, self.len);
    }
}

fn map(len: usize, access: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address.cast())
}

fn unmap(address: *mut u8, len: usize) {
    // SAFETY: mapped by `map` with this length, and unmapped once, when its owner is dropped.
    unsafe { libc::munmap(address.cast(), len) };
}
