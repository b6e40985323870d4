//! PCI devices, and the bridges above them.
//!
//! The sysfs folder of a device is below that of its bridge, so the resolved path lists all bridges up to the root:
//! `/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0` is a device behind
//! a switch (its upstream port 16:00.0, the downstream port 17:01.0) on a root port (15:01.0).

use std::{collections::BTreeMap, path::Path};

pub use straightway_core::PciAddress;
use straightway_sys::root::{Root, name};

/// The PCI vendor NVIDIA.
const VENDOR_NVIDIA: u16 = 0x10de;

/// The kind of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciKind {
    /// An NVIDIA GPU.
    Gpu,
    /// An NVMe controller.
    Nvme,
    /// A network or InfiniBand adapter.
    Nic,
    /// A root port, or a port of a switch.
    Bridge,
    /// Anything else.
    Other,
}

/// A PCIe link: the trained width and the maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PciLink {
    /// The current number of lanes.
    pub width: u32,
    /// The maximum speed of the device in GT/s.
    pub speed_gt_max: f64,
    /// The number of lanes of the device.
    pub width_max: u32,
}

impl Eq for PciLink {}

impl PciLink {
    /// Whether the link uses fewer lanes than the device has. An idle GPU lowers the speed of its link, so only the
    /// width indicates a problem.
    pub fn is_narrow(&self) -> bool {
        self.width < self.width_max
    }
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// The address.
    pub address: PciAddress,
    /// The class code: base class, subclass, interface.
    pub class: u32,
    /// The kind of device.
    pub kind: PciKind,
    /// The NUMA node; `None` if the firmware does not report it.
    pub numa_node: Option<u32>,
    /// The host bridge, as `pci0000:15`.
    pub root: String,
    /// The bridges above it, root port first.
    pub bridges: Vec<PciAddress>,
    /// The link; `None` for a device that is not on PCIe.
    pub link: Option<PciLink>,
    /// The kernel driver bound to it.
    pub driver: Option<String>,
}

impl PciDevice {
    /// Whether two devices are below the same host bridge.
    pub(super) fn same_root(&self, other: &Self) -> bool {
        self.root == other.root
    }

    /// The number of bridges above both.
    pub(super) fn shared_bridge_count(&self, other: &Self) -> usize {
        let pairs = self.bridges.iter().zip(&other.bridges);
        pairs.take_while(|(a, b)| a == b).count()
    }
}

/// Reads all devices, by address.
pub(super) fn read_all(root: &Root) -> BTreeMap<PciAddress, PciDevice> {
    let base = Path::new("/sys/bus/pci/devices");
    let names = root.list(base).into_iter();
    names
        .filter_map(|name| {
            let address = name.parse().ok()?;
            let folder = root.resolve(base.join(name))?;
            Some((address, read_device(root, address, &folder)?))
        })
        .collect()
}

fn read_device(root: &Root, address: PciAddress, folder: &Path) -> Option<PciDevice> {
    let id = |name: &str| root.hex(folder.join(name));
    let (vendor, class) = (u16::try_from(id("vendor")?).ok()?, id("class")?);
    let parents = folder.parent()?;
    Some(PciDevice {
        address,
        class,
        kind: kind(vendor, class),
        numa_node: root
            .value::<i64>(folder.join("numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        // The innermost host bridge: a volume management device has one below another.
        root: parents
            .iter()
            .filter_map(|name| name.to_str())
            .rfind(|name| name.strip_prefix("pci").is_some_and(|id| id.contains(':')))
            .unwrap_or_default()
            .to_owned(),
        bridges: parents.iter().filter_map(|name| name.to_str()?.parse().ok()).collect(),
        link: read_link(root, folder),
        driver: root.resolve(folder.join("driver")).map(|driver| name(&driver)),
    })
}

fn kind(vendor: u16, class: u32) -> PciKind {
    match (class >> 8, class >> 16) {
        (_, 0x03) if vendor == VENDOR_NVIDIA => PciKind::Gpu,
        (0x0108, _) => PciKind::Nvme,
        // 0x0207 is InfiniBand's subclass; older adapters report 0x0c06.
        (_, 0x02) | (0x0c06, _) => PciKind::Nic,
        (0x0604, _) => PciKind::Bridge,
        _ => PciKind::Other,
    }
}

fn read_link(root: &Root, folder: &Path) -> Option<PciLink> {
    // "32.0 GT/s PCIe"; "Unknown" on what is not PCIe, with a width of 0 or 255.
    let speed = |name: &str| -> Option<f64> {
        let text = root.text(folder.join(name))?;
        text.split_whitespace().next()?.parse().ok()
    };
    let width = |name: &str| -> Option<u32> {
        let width = root.value(folder.join(name))?;
        (1..=32).contains(&width).then_some(width)
    };
    Some(PciLink {
        width: width("current_link_width")?,
        speed_gt_max: speed("max_link_speed")?,
        width_max: width("max_link_width")?,
    })
}
