//! The only room with unsafe code: io_uring, aligned memory, page-cache residency, topology.
