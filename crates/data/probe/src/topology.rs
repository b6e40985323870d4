//! The location of devices: the PCI tree with its switches and roots, and the NUMA nodes with their CPUs.
//!
//! Transfers between two sockets share a link with all memory accesses between them: a drive read from the far socket
//! reached 3.9 GB/s, from the near one 6.5 (DGX-2). So lanes run on the node of the device they serve. Firmware
//! reports the locations. A virtual machine often reports none: with one node, all devices are on it; with several,
//! no two devices count as near.
//!
//! This is not a measurement. Two devices under one switch may still be slow.

mod distance;
mod numa_node;
mod pci;

use std::collections::BTreeMap;

pub use distance::Distance;
pub use numa_node::NumaNode;
pub use pci::{PciAddress, PciDevice, PciKind, PciLink};

use straightway_sys::root::Root;

/// The machine's PCI devices and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineTopology {
    devices: BTreeMap<PciAddress, PciDevice>,
    nodes: Vec<NumaNode>,
}

impl MachineTopology {
    /// Reads the topology from sysfs. A machine without PCI has no devices, and one that reports no nodes has none.
    pub fn read(root: &Root) -> Self {
        let nodes = numa_node::read_all(root);
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
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

#[cfg(test)]
mod tests;
