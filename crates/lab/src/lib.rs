//! Servers and machines for tests. Nothing here is part of the product.
//!
//! | part | what it is |
//! |---|---|
//! | [`Weed`] | SeaweedFS, a real S3 server, installed where it is missing, and ended with the test |
//! | [`Proxy`] | between a client and a server: it injects faults that follow from a seed |
//! | [`Wire`] | the same without knowing what it passes on: in front of a server with TLS it breaks handshakes and records |
//! | [`TlsFront`] | TLS in front of a server that has none, such as [`Weed`] |
//! | [`Guest`](guest::Guest) | a Linux kernel in QEMU, with NVMe drives and memory in a PCI BAR |

mod fault;
pub mod guest;
mod head;
mod proxy;
mod tls;
mod weed;
mod wire;

pub use fault::{Fault, Faults};
pub use proxy::{Counts, Proxy};
pub use tls::TlsFront;
pub use weed::Weed;
pub use wire::Wire;
