//! cuFile (GPUDirect Storage), loaded at run time.
//!
//! The loader tries `libcufile.so.0` first. Every symbol is optional, because symbols were added over nine
//! CUDA versions. Error codes are plain numbers, because new versions add codes. The layout of each struct
//! is asserted at compile time. A library that is absent, broken or does not open is `Unsupported` with the
//! reason.
//!
//! Opening is guarded: it has been seen to hang without a driver, and to close descriptor 0 without
//! nvidia-fs. [`Library::open`] requires a [`Context`](crate::cuda::Context) as proof of a driver and a device, runs on
//! a separate thread with a deadline, and restores descriptor 0.
//!
//! A [`FileHandle`] owns its descriptor, and a [`RegisteredMemory`] holds the device memory: they cannot be
//! closed or freed while cuFile uses them. Requests that are not aligned to [`ALIGN_BYTES`] are refused here,
//! because cuFile would silently stage them through a cache on the GPU. [`Watch`] reads the path of the bytes
//! from cuFile's counters. Without counters the path is unknown.

mod api;
mod code;
mod counters;
mod file_handle;
mod library;
mod opening;
mod paths;
mod registered_memory;
mod registration;
mod session;

pub use code::OpCode;
pub use counters::{Counters, Watch};
pub use file_handle::{CufileRequest, FileHandle};
pub use library::{Library, Parameter};
pub use paths::Paths;
pub use registered_memory::RegisteredMemory;
pub use registration::CufileRegistration;
pub use session::CuFile;

/// The alignment of file offset, size, buffer address and buffer offset for direct transfers.
pub const ALIGN_BYTES: usize = 4096;
