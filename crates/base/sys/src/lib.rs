//! Safe interfaces to the system: io_uring, aligned memory, page-cache residency, the CUDA driver and
//! cuFile. Apart from the Python bindings and test code, only this crate has unsafe code.
//!
//! The public interface is safe. An I/O owns its buffer ([`Io`]), memory cannot be freed during a
//! transfer ([`Window`] holds its [`Region`]), and a feature that the machine lacks is an error of kind
//! `Unsupported`, never a panic.

mod acl;
pub mod blocking;
pub mod cpus;
pub mod cuda;
pub mod cufile;
mod direct;
pub mod ending;
pub mod ethtool;
mod event;
mod fiemap;
pub mod file;
mod file_pages;
mod file_sync;
mod file_system;
pub mod folder;
mod free_memory;
pub mod identity;
pub mod kernel;
pub mod lent;
pub mod limit;
pub mod lookup;
mod mapping;
pub mod memory;
mod memory_room;
pub mod mount;
pub mod nonce;
mod page_map;
pub mod peer;
pub mod plain_file;
pub mod process;
pub mod region;
pub mod request;
mod reservation;
pub mod residency;
pub mod rights;
mod ring_space;
pub mod root;
mod shared;
mod shared_words;
pub mod signal;
pub mod slot;
pub mod socket;
mod status;
mod streaming;
pub mod tcp;
pub mod uring;
pub mod usage;

pub use event::Event;
pub use file::{File, IoPath};
pub use file_pages::FilePages;
pub use folder::Folder;
pub use free_memory::{FreeMemory, GroupLimit};
pub use lent::LentBytes;
pub use process::{PerProcess, Process};
pub use region::{Divided, Region, Window};
pub use request::{Buf, Done, Io, Op, Tries};
pub use rights::Rights;
pub use ring_space::RingSpace;
pub use shared::folded::Folded;
pub use shared_words::{SharedWords, WordAccess};
pub use slot::Slot;
pub use socket::Socket;
pub use tcp::TcpInfo;
pub use uring::{Uring, sockets::SocketRing};
pub use usage::{CpuTime, monotonic_s};
