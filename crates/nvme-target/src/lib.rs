//! Serves files, folders, block devices and memory as NVMe namespaces over TCP.
//!
//! [`Target::start`] listens on the ports of a [`Config`]. Each connection is a queue and has a thread of its own. It
//! blocks in `recv`, executes what has come, and answers it in one `send`. Reads of more than a few pages go from the
//! page cache to the socket by `sendfile`; smaller ones are copied into the batch of answers. Data of writes is written
//! as it arrives, so a connection holds two fixed buffers, whatever its queue depth.
//!
//! ```text
//! Config ─ Source ─▶ Catalog ─▶ Table of Namespaces ◀─ Controller ◀─ Connection ◀─ Port
//!        └ Policy ─▶ Host (keys, share, counters) ──────────┘
//! ```
//!
//! A [`Source`] is what the user named; the catalog looks at it again on [`Target::rescan`] and tells the hosts what
//! changed. A controller is one host's association: its admin queue, its I/O queues, its keep-alive. It ends with
//! its admin queue, and takes the others along.

mod admin;
mod backing;
mod catalog;
mod config;
mod connection;
mod controller;
mod gate;
mod host;
mod identity;
mod io_queue;
mod login;
mod page;
mod pending;
mod receiver;
mod sender;
mod server;
mod state;

pub use catalog::Source;
pub use config::{Config, Listen};
pub use host::{HostReceipt, HostRule, Policy};
pub use server::Target;
