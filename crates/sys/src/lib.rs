//! The only room with unsafe code: `io_uring`, aligned memory, page-cache residency,
//! topology, the CUDA driver and cuFile.

pub mod cuda;
pub mod cufile;
