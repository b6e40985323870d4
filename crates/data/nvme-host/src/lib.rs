//! NVMe namespaces over TCP as a store: `nvme-tcp://HOST[:PORT]/NQN[/NSID]`.
//!
//! It needs no root, no hugepages and no kernel initiator. A namespace is an object. Each lane has one queue pair per
//! controller. Payload is received directly into the memory of an I/O.
//!
//! | part | contents |
//! |---|---|
//! | [`NvmeTcp`] | the store of one portal |
//! | [`HostSettings`] | host NQN and identifier, digests, timeouts, additional addresses |
//! | `subsystem` | a subsystem and its paths; the choice of controllers for a namespace |
//! | `side` | side queues, for headers and flushes |
//! | `path` | one address: connects, reconnects, and reports its state |
//! | `controller` | an association: limits, queue identifiers, ANA states |
//! | `opening` | the setup of an association |
//! | `control` | the thread of an association: keep-alive and asynchronous events, while the controller is in use |
//! | `link` | one blocking connection: the admin queue, and every I/O queue until it is connected |
//! | `verify`, `verdicts` | checks that a namespace is the same one on each controller; the results |
//! | `history` | the addresses that confirmed one opening of a namespace |
//! | `index` | names and versions of files on Straightway targets |
//! | `unchanged` | the check after a transfer that no namespace changed |
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

mod control;
mod controller;
mod discovery;
mod engine;
mod history;
mod index;
mod link;
mod login;
mod namespace;
mod opening;
mod path;
mod portal;
mod quarantine;
mod refusal;
mod settings;
mod side;
mod store;
mod subsystem;
mod unchanged;
mod verdicts;
mod verify;

pub use discovery::{DiscoveredSubsystem, discover};
pub use engine::NvmeEngine;
pub use portal::Portal;
pub use settings::HostSettings;
pub use store::{FAMILY, NvmeTcp, TUNING};
