//! The only room with unsafe code: `io_uring`, aligned memory, page-cache residency, topology.

pub mod backing;
pub mod drive;
pub mod ethtool;
pub mod manifest;
pub mod mount;
pub mod permission;
pub mod root;
pub mod topology;
