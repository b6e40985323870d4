//! The CUDA driver, loaded at run time.
//!
//! One binary serves machines with and without a GPU, so nothing here links against CUDA. cudarc finds
//! `libcuda` when [`Driver::load`] is called. If it is missing, too old or without a device, the error is
//! `Unsupported` with the reason.
//!
//! Three parts of cudarc are not used. Its function wrappers panic if a symbol is missing. Its result type
//! is a closed enum, so an unknown code would be undefined behaviour. Its allocator prefers
//! `cuMemAllocAsync`, whose memory cuFile refuses. [`api`] therefore takes only the library and the types
//! from cudarc, resolves each function itself, and represents codes as plain numbers.
//!
//! Memory cannot be freed during a copy: a [`Slot`](crate::Slot) of pinned memory is moved *into* a copy and returned
//! by [`Copying`] when its event has passed, and the copy holds the [`DeviceMemory`] until then. A context is
//! pushed on the calling thread for each operation and popped after it. Any thread can therefore use any of
//! these types, and the thread's current context (`PyTorch`'s, for example) does not change.

mod api;
mod code;
mod context;
mod copying;
mod device;
mod device_memory;
mod driver;
mod event;
mod fence;
mod pin;
mod stream;
mod streams;

pub use code::Code;
pub use context::Context;
pub use copying::{CopyError, Copying};
pub use device::Device;
pub use device_memory::DeviceMemory;
pub use driver::{DRIVER_VERSION_MIN, Driver, Version};
pub use fence::Fence;
pub use stream::{CopyDirection, CudaStream, RegionSpan, Span};
pub use streams::CudaStreams;

pub(crate) use event::Event;
pub(crate) use pin::Pin;

/// The owner that keeps lent memory alive: a tensor, a mapping, or `Arc::new(())` if the caller
/// guarantees it by other means.
pub type Owner = std::sync::Arc<dyn std::any::Any + Send + Sync>;
