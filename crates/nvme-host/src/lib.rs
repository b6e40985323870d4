//! NVMe namespaces over TCP as a store: `nvme-tcp://HOST[:PORT]/NQN[/NSID]`.
//!
//! No root, no hugepages and no kernel initiator. A namespace is an object. Lanes have one queue pair each and for each
//! controller; payload is received straight into the memory of an I/O.
//!
//! | part | what |
//! |---|---|
//! | [`NvmeTcp`] | the store of one portal |
//! | [`Settings`] | who this host is, digests, time-outs, further addresses |
//! | `subsystem` | a subsystem and its paths; a side queue for headers and flushes |
//! | `path` | one address: connects, reconnects, and says how that stands |
//! | `controller` | an association: limits, queue numbers, path states |
//! | `control` | its thread: keep-alive and events, for as long as the controller is used |
//! | `link` | one connection on the caller's thread: the admin queue, and every queue until it is connected |
//! | `verify` | whether a namespace is the same one through each controller |
//! | [`NvmeEngine`] | the data path of a lane |
//!
//! A thread lives while a controller is used and for [`Settings::idle`] longer, or for one attempt to connect. After a
//! fork the child makes connections of its own and leaves those of its parent alone.
//!
//! **What is never wrong.** A read is complete only when each byte came, in order and by the right command. A command
//! that failed, and every fault in the protocol, leads to another attempt or an error. A connection that is given up
//! has no operation in the kernel any more before its buffers go back. A write that may still be executed after a cut
//! is repeated as it was; other data for the same blocks waits until the old controller is surely gone.

mod control;
mod controller;
mod discovery;
mod engine;
mod index;
mod link;
mod login;
mod namespace;
mod path;
mod portal;
mod quarantine;
mod settings;
mod store;
mod subsystem;
mod verify;

pub use discovery::{Found, discover};
pub use engine::NvmeEngine;
pub use portal::Portal;
pub use settings::Settings;
pub use store::{FAMILY, NvmeTcp, TUNING};
