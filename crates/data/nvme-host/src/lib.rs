//! NVMe namespaces over TCP as a store: `nvme-tcp://HOST[:PORT]/NQN[/NSID]`.
//!
//! It needs no root, no hugepages and no kernel initiator. A namespace is an object. Each lane has one queue pair per
//! controller. Payload is received directly into the memory of an I/O.
//!
//! | part | contents |
//! |---|---|
//! | [`NvmeTcp`] | the store of one portal |
//! | [`HostSettings`] | host NQN and identifier, digests, timeouts, additional addresses |
//! | `identity` | names and versions; the proof that each controller has the namespace that was opened |
//! | `session` | paths, associations, queues and their control threads; knows nothing of `identity` |
//! | `quarantine` | blocks of lost writes, in the whole process |
//! | [`NvmeEngine`] | the data path of a lane |
//!
//! A control thread lives while its controller is in use and for [`HostSettings::idle`] after that. A connecting thread
//! lives for one attempt. After a fork, the child makes its own connections and does not touch those of its parent.
//!
//! **Guarantees.** A read completes only after every byte arrived in order for the right command. A failed command or a
//! protocol fault leads to a retry or an error. Before the buffers of an abandoned connection are reused, the kernel
//! has no operation on them. A write that may still be executed after a connection loss is repeated unchanged. Other
//! data for the same blocks waits until the old controller is certainly gone.

mod discovery;
mod engine;
mod identity;
mod namespace;
mod portal;
mod quarantine;
mod session;
mod settings;
mod store;

pub use discovery::{DiscoveredSubsystem, discover};
pub use engine::NvmeEngine;
pub use portal::Portal;
pub use settings::HostSettings;
pub use store::{FAMILY, NvmeTcp, TUNING};
