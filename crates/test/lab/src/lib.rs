//! Servers and virtual machines for tests. They are not part of the product.
//!
//! | part | contents |
//! |---|---|
//! | [`S3Server`] | SeaweedFS, a real S3 server; it ends with the test |
//! | [`FaultProxy`] | an HTTP proxy that injects faults; they follow from a seed |
//! | [`ByteRelay`] | a relay that breaks connections; it does not interpret bytes, so it also works with TLS |
//! | [`PduRelay`] | a relay between an NVMe/TCP host and a target that changes, delays, drops and forges PDUs |
//! | [`TlsFront`] | TLS in front of a server without TLS, such as [`S3Server`] |
//! | [`FuseServer`] | a FUSE file system in memory, whose syncs can fail and whose reads can hang |
//! | [`Guest`](guest::Guest) | a Linux kernel in QEMU, with NVMe drives and memory in a PCI BAR |

mod byte_relay;
mod fault;
mod fault_proxy;
mod fuse;
pub mod guest;
mod pdu_relay;
mod s3_server;
mod tls;

pub use byte_relay::ByteRelay;
pub use fault::{ProxyFault, ProxyFaults};
pub use fault_proxy::{Counts, FaultProxy};
pub use fuse::{FuseFaults, FuseServer};
pub use pdu_relay::{Exits, Passing, PduRelay, RelayMode, Upstream, Way};
pub use s3_server::S3Server;
pub use tls::TlsFront;
