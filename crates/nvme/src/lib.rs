//! The words of NVMe over TCP: PDUs, commands, log pages and authentication. Pure: both sides use it, and it does no I/O.

pub mod auth;
