//! cuFile (GPUDirect Storage), loaded at run time.
//!
//! A loader of our own: `libcufile.so.0` first, every symbol optional because they arrived over
//! nine CUDA versions, error codes as open numbers because their maximum moves, and the layout of
//! each struct asserted at compile time. A library that is absent, broken or will not open is
//! `Unsupported` with the reason.
//!
//! Opening it is guarded, for it has been seen to hang where no driver is there and to close
//! descriptor 0 where nvidia-fs is not: [`Library::open`] wants a [`Context`](crate::cuda::Context)
//! as proof of a driver and a device, runs on a thread of its own with a deadline, and puts
//! descriptor 0 back.
//!
//! A [`FileHandle`] owns its descriptor, a [`RegisteredMemory`] its share of the device memory: what
//! cuFile knows cannot be closed or freed under it. Requests that are not aligned to
//! [`ALIGN_BYTES`] are refused here, because cuFile would stage them through a cache on the GPU
//! without a word. Which way the bytes went is read from cuFile's own counters by [`Watch`], and
//! where there are none the answer is that nobody knows.

mod api;
mod code;
mod counters;
mod file_handle;
mod library;
mod opening;
mod registered_memory;
mod registration;
mod session;

pub use code::OpCode;
pub use counters::{Counters, Paths, Watch};
pub use file_handle::{FileHandle, Request};
pub use library::{Library, Parameter};
pub use registered_memory::RegisteredMemory;
pub use registration::Registration;
pub use session::CuFile;

/// File offset, size, buffer address and buffer offset must be multiples of this to go direct.
pub const ALIGN_BYTES: usize = 4096;
