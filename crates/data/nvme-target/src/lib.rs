//! Serves files, folders, block devices and memory as NVMe namespaces over TCP.
//!
//! [`Target::start`] listens on the ports of a [`Config`]. Each connection is a queue with its own thread. The thread
//! blocks in `recv`, executes all received commands, and sends the completions in one `send`. Reads of more than a few
//! pages go from the page cache to the socket by `sendfile`; smaller ones are copied into the send batch. Data of
//! writes is written as it arrives, so a connection has two fixed buffers at any queue depth.
//!
//! ```text
//! Config ─ NamespaceSource ─▶ Catalog ─▶ Table of Namespaces ◀─ Controller ◀─ Connection ◀─ Port
//!        └ HostPolicy ─▶ Host (keys, share, counters) ────────────────┘
//! ```
//!
//! A [`NamespaceSource`] is a file, folder or device to serve. [`Target::rescan`] scans the sources again and notifies
//! hosts of changes. A controller is the association of one host: its admin queue, its I/O queues and its keep-alive.
//! It ends with its admin queue, and its I/O queues end with it. No command of theirs changes data after that.

mod admin;
mod authentication;
mod backing;
mod catalog;
mod config;
mod connect_refusal;
mod connection;
mod connections;
mod controller;
mod durability;
mod end;
mod fence;
mod gate;
mod host;
mod identity;
mod io_queue;
mod login;
mod namespace;
mod page;
mod pending;
mod receiver;
mod refresh;
mod scans;
mod sender;
mod served_path;
mod server;
mod state;
mod table;
mod version;

pub use catalog::NamespaceSource;
pub use config::{Config, Listen};
pub use host::{HostPolicy, HostReceipt, HostRule};
pub use served_path::Links;
pub use server::{HOSTS, Target};
