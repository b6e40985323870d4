//! The figures taken from the estimate of a path.

use crate::path::{ComputeNode, DataPath, Flow};

/// The standard path's rate.
pub(super) fn standard(node: &ComputeNode) -> f64 {
    node.estimate(DataPath::Standard, Flow::Read, 1).rate_bytes_per_s
}

/// The standard path's rate if only the sync at the end writes the file out: copies first, then the drive. (The kernel
/// starts earlier once a tenth of the memory is dirty.)
pub(super) fn synced(node: &ComputeNode) -> f64 {
    let path = node.estimate(DataPath::Standard, Flow::Read, 1);
    let apart = path.stages.iter().filter(|s| matches!(s.stage, "media" | "cpu"));
    1.0 / apart.map(|s| 1.0 / s.rate_bytes_per_s).sum::<f64>()
}

/// The direct path's rate.
pub(super) fn direct(node: &ComputeNode) -> f64 {
    node.estimate(DataPath::Direct, Flow::Read, 1).rate_bytes_per_s
}

/// The direct path's latency.
pub(super) fn direct_latency(node: &ComputeNode) -> f64 {
    node.estimate(DataPath::Direct, Flow::Read, 1).latency_s
}

/// The standard path's CPU seconds per GB.
pub(super) fn cpu(node: &ComputeNode) -> f64 {
    node.estimate(DataPath::Standard, Flow::Read, 1).cpu_s_per_gb
}
