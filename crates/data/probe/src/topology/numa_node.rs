//! NUMA nodes: their CPUs, and the socket they are part of.

use straightway_sys::{cpus::parse_cpus, root::Root};

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its CPUs; none for memory without CPUs, such as that of a Grace Hopper GPU.
    pub cpus: Vec<usize>,
    /// The socket its CPUs are part of. One socket may have several nodes.
    pub socket: Option<u32>,
    /// The number of 2 MiB huge pages reserved on it.
    pub huge_pages: Option<u64>,
}

/// Reads all nodes, by number.
pub(super) fn read_all(root: &Root) -> Vec<NumaNode> {
    let base = "/sys/devices/system/node";
    let mut nodes: Vec<NumaNode> = root
        .list(base)
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .map(|id| {
            let folder = format!("{base}/node{id}");
            let list = root.text(format!("{folder}/cpulist")).unwrap_or_default();
            let cpus = parse_cpus(&list).unwrap_or_default();
            let socket = cpus.first().and_then(|cpu| {
                let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
                root.value(format!("{topology}/physical_package_id"))
            });
            let huge_pages = root.value(format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages"));
            NumaNode {
                id,
                cpus,
                socket,
                huge_pages,
            }
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.id);
    nodes
}
