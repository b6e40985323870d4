//! Servers for tests, on loopback. Nothing here is part of the product.
//!
//! | part | what it is |
//! |---|---|
//! | [`Weed`] | SeaweedFS, a real S3 server, installed where it is missing, and ended with the test |
//! | [`Proxy`] | between a client and a server: it injects faults that follow from a seed |

mod head;
mod proxy;
mod weed;

pub use proxy::{Counts, Fault, Faults, Proxy};
pub use weed::Weed;
