//! The distance between two devices.

use std::fmt;

use super::{MachineTopology, PciAddress, PciDevice};

/// The distance between two devices, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Below one switch: bytes need not go up to the processor.
    Switch,
    /// Below one host bridge.
    Root,
    /// On one NUMA node.
    Node,
    /// On one socket.
    Socket,
    /// On two sockets, or on unknown ones.
    Across,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "same PCIe switch",
            Self::Root => "same root complex",
            Self::Node => "same NUMA node",
            Self::Socket => "same socket",
            Self::Across => "across sockets",
        })
    }
}

impl MachineTopology {
    /// Returns the distance between `a` and `b`. A device that is not in the tree is `Across` from all others.
    pub fn distance(&self, a: PciAddress, b: PciAddress) -> Distance {
        match (self.device(a), self.device(b)) {
            (Some(a), Some(b)) => self.between(a, b),
            _ => Distance::Across,
        }
    }

    fn between(&self, a: &PciDevice, b: &PciDevice) -> Distance {
        // A bridge above both is a switch, or a port that leads to functions of one device.
        if a.address == b.address || a.shared_bridge_count(b) > 0 {
            return Distance::Switch;
        }
        if a.same_root(b) {
            return Distance::Root;
        }
        let (Some(a), Some(b)) = (a.numa_node, b.numa_node) else {
            return Distance::Across;
        };
        let socket = |id| self.node(id).and_then(|node| node.socket);
        if a == b {
            Distance::Node
        } else if socket(a).is_some() && socket(a) == socket(b) {
            Distance::Socket
        } else {
            Distance::Across
        }
    }
}
