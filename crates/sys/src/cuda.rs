//! The CUDA driver, loaded at run time.
//!
//! One binary serves machines with and without a GPU, so nothing here links against CUDA: cudarc
//! finds `libcuda` when [`Driver::load`] is called, and where it is missing, too old or without a
//! device the answer is `Unsupported` with the reason.
//!
//! Three things of cudarc are left aside. Its function wrappers panic when a symbol is missing; its
//! result type is a closed enum, so a code it has not heard of would be undefined behaviour; its
//! allocator prefers `cuMemAllocAsync`, whose memory cuFile refuses. So [`api`] takes the library
//! and the types from cudarc, resolves each function by itself, and reads codes as open numbers.
//!
//! The nouns fit together so that memory cannot vanish under a copy: a [`Slot`](crate::Slot) of pinned memory is
//! handed *into* a copy and comes back out of [`Copying`] when its event has passed, and the copy
//! holds the [`DeviceMemory`] meanwhile. A context is pushed on the calling thread for each
//! operation and popped after it, so any thread may use any of these, and the thread's own current
//! context (`PyTorch`'s, say) is left as it was.

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
pub use copying::{Copying, Refused};
pub use device::Device;
pub use device_memory::DeviceMemory;
pub use driver::{DRIVER_VERSION_MIN, Driver, Version};
pub use fence::Fence;
pub use stream::{Direction, Landing, Span, Stream};
pub use streams::Streams;

pub(crate) use event::Event;
pub(crate) use pin::Pin;

/// Whatever keeps lent memory alive: a tensor, a mapping, or `Arc::new(())` where the caller
/// promises it by other means.
pub type Owner = std::sync::Arc<dyn std::any::Any + Send + Sync>;
