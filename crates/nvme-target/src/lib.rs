//! Serves files, folders, block devices and memory as NVMe namespaces over TCP.
