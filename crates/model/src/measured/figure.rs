//! What is taken of the prediction of a path.

use crate::path::{Node, Way};

/// The standard path's rate.
pub(super) fn standard(node: &Node) -> f64 {
    node.carry(Way::Standard, 1).rate_bytes_per_s
}

/// The standard path's rate where the file is written out only by the sync at its end: copies and
/// drive one after the other. (The kernel starts earlier from a tenth of the memory on.)
pub(super) fn synced(node: &Node) -> f64 {
    let path = node.carry(Way::Standard, 1);
    let apart = path
        .stages
        .iter()
        .filter(|s| matches!(s.stage, "media" | "cpu"));
    1.0 / apart.map(|s| 1.0 / s.rate_bytes_per_s).sum::<f64>()
}

/// The direct path's rate.
pub(super) fn direct(node: &Node) -> f64 {
    node.carry(Way::Direct, 1).rate_bytes_per_s
}

/// The direct path's latency.
pub(super) fn direct_latency(node: &Node) -> f64 {
    node.carry(Way::Direct, 1).latency_s
}

/// The standard path's CPU time.
pub(super) fn cpu(node: &Node) -> f64 {
    node.carry(Way::Standard, 1).cpu_s_per_gb
}
