//! A file registered with cuFile, and transfers between it and registered device memory.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use straightway_core::{Error, ErrorKind, Result};

use super::ALIGN_BYTES;
use super::api::{Description, DescriptorUnion, RawHandle, TransferFn};
use super::code::OpCode;
use super::registered_memory::RegisteredMemory;
use super::session::CuFile;

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const KIND_DESCRIPTOR: u32 = 1;

/// One transfer between a registered file and registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CufileRequest {
    /// The offset in the file.
    pub file_offset: u64,
    /// The offset in the memory.
    pub memory_offset: usize,
    /// The number of bytes.
    pub bytes: usize,
}

/// A registered file. It owns its descriptor. Dropping it deregisters the file, then closes it.
#[derive(Debug)]
pub struct FileHandle {
    cufile: CuFile,
    raw: RawHandle,
    name: String,
    _file: OwnedFd,
}

// SAFETY: cuFile's handles may be used from any thread.
unsafe impl Send for FileHandle {}
// SAFETY: as above, and from several threads at once, as cuFile intends.
unsafe impl Sync for FileHandle {}

impl CuFile {
    /// Registers a file with cuFile. `name` is for errors. The descriptor may be open with or without O_DIRECT
    /// (since CUDA 12.2), but not with `O_APPEND`, `O_TMPFILE` or `O_NONBLOCK`.
    pub fn register_file(&self, file: OwnedFd, name: &str) -> Result<FileHandle> {
        let register = self.api().handle_register()?;
        self.api().handle_deregister()?;
        let mut description = Description {
            kind: KIND_DESCRIPTOR,
            handle: DescriptorUnion {
                fd: file.as_raw_fd(),
                rest: 0,
            },
            fs_ops: std::ptr::null(),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: both are valid for the call, and the descriptor is open and ours.
        let status = unsafe { register(&raw mut raw, &raw mut description) };
        status.ok("register with cuFile", name)?;
        Ok(FileHandle {
            cufile: self.clone(),
            raw,
            name: name.to_owned(),
            _file: file,
        })
    }
}

impl FileHandle {
    /// Reads into the memory. At the end of the file it returns fewer bytes than requested.
    pub fn read(&self, memory: &RegisteredMemory, request: CufileRequest) -> Result<usize> {
        let call = self.cufile.api().read()?;
        self.transfer("read", call, memory, request)
    }

    /// Writes from the memory.
    pub fn write(&self, memory: &RegisteredMemory, request: CufileRequest) -> Result<usize> {
        let call = self.cufile.api().write()?;
        self.transfer("write", call, memory, request)
    }

    fn transfer(
        &self,
        operation: &'static str,
        call: TransferFn,
        memory: &RegisteredMemory,
        request: CufileRequest,
    ) -> Result<usize> {
        let [at_file, at_memory] = self.check(memory, request)?;
        let _entered = memory.memory().context().enter()?;
        // SAFETY: `check` proved that the range is within registered memory, which `memory` keeps; the
        // handle is registered; the call returns only when the transfer is done.
        let moved = unsafe { call(self.raw, memory.base(), request.bytes, at_file, at_memory) };
        self.outcome(moved, operation)
    }

    /// The two offsets as C types, if the request is in bounds and aligned.
    fn check(&self, memory: &RegisteredMemory, request: CufileRequest) -> Result<[c_long; 2]> {
        let CufileRequest {
            file_offset,
            memory_offset,
            bytes,
        } = request;
        let invalid = |message| Error::new(ErrorKind::Invalid, "transfer", &self.name, message);
        let address = memory.memory().place(memory_offset, bytes)?;
        let align = ALIGN_BYTES as u64;
        let base = memory.memory().address();
        if [address, base, file_offset, bytes as u64].map(|n| n % align) != [0; 4] {
            let message = format!(
                "{bytes} bytes between {file_offset} of the file and {address:#x} of the device are \
                 not aligned to {ALIGN_BYTES}: cuFile would stage them silently"
            );
            return Err(invalid(message));
        }
        let beyond = |_| invalid(format!("offset {file_offset} is too large"));
        Ok([
            c_long::try_from(file_offset).map_err(beyond)?,
            c_long::try_from(memory_offset).map_err(beyond)?,
        ])
    }

    /// Decodes a result: a number of bytes, or −1 with `errno`, or a negated cuFile code.
    fn outcome(&self, answer: isize, operation: &'static str) -> Result<usize> {
        if let Ok(bytes) = usize::try_from(answer) {
            return Ok(bytes);
        }
        if answer == -1 {
            return Err(Error::os(operation, &self.name, io::Error::last_os_error()));
        }
        let code = OpCode(u32::try_from(answer.unsigned_abs()).unwrap_or(u32::MAX));
        let message = code.to_string();
        Err(Error::new(code.kind(), operation, &self.name, message))
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        if let Ok(deregister) = self.cufile.api().handle_deregister() {
            // SAFETY: registered in `register_file`, deregistered once here; calls are synchronous and
            // borrow `self`, so none is in flight.
            unsafe { deregister(self.raw) };
        }
    }
}
