//! Where devices sit: the PCI tree, its switches and roots, and the NUMA nodes with their CPUs.
//!
//! Bytes that cross the link between two sockets share it with every memory access that does the
//! same: a drive read from the far socket reached 3.9 GB/s where the near one gave 6.5 (DGX-2). So
//! lanes are put on the node of the device they serve. Firmware says where things are; a virtual machine
//! often says nothing, and then with one node everything is on it, and with several nothing is
//! taken to be near.
//!
//! What this is not: a measure. Two devices under one switch may still be slow.

mod distance;
mod node;
mod pci;

use std::collections::BTreeMap;

pub use distance::Distance;
pub use node::Node;
pub use pci::{Link, PciAddress, PciDevice, PciKind};

use straightway_sys::root::Root;

/// The machine's PCI devices and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    devices: BTreeMap<PciAddress, PciDevice>,
    nodes: Vec<Node>,
}

impl Topology {
    /// Reads it from sysfs. What is missing there is missing here: a machine without PCI has no
    /// devices, and one that does not speak of nodes has none.
    pub fn read(root: &Root) -> Self {
        let nodes = node::read_all(root);
        let mut devices = pci::read_all(root);
        if let [only] = &nodes[..] {
            for device in devices.values_mut() {
                device.numa_node.get_or_insert(only.id);
            }
        }
        Self { devices, nodes }
    }

    /// The device at an address.
    pub fn device(&self, address: PciAddress) -> Option<&PciDevice> {
        self.devices.get(&address)
    }

    /// All devices, by address.
    pub fn devices(&self) -> impl Iterator<Item = &PciDevice> {
        self.devices.values()
    }

    /// The devices of one kind, by address.
    pub fn of_kind(&self, kind: PciKind) -> impl Iterator<Item = &PciDevice> {
        self.devices().filter(move |device| device.kind == kind)
    }

    /// The node with this number.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

#[cfg(test)]
mod tests;
