//! The store of NVMe namespaces that are reached over TCP.
