//! A physical drive as sysfs describes it: its attachment, its location and its queue.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use straightway_sys::root::{Root, name};

use crate::topology::PciAddress;

/// The attachment of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveKind {
    /// NVMe on PCIe, which peer-to-peer DMA can reach.
    Nvme,
    /// NVMe over TCP.
    NvmeTcp,
    /// NVMe over RDMA.
    NvmeRdma,
    /// NVMe over Fibre Channel, or the loop transport.
    NvmeFabric,
    /// A paravirtual disk; the host's drive is not visible.
    Virtio,
    /// SATA.
    Sata,
    /// SAS and other SCSI.
    Scsi,
    /// USB.
    Usb,
    /// A block device in memory: zram, ram disks, `null_blk`.
    Memory,
    /// Any other.
    Other,
}

impl fmt::Display for DriveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvme => "nvme",
            Self::NvmeTcp => "nvme over tcp",
            Self::NvmeRdma => "nvme over rdma",
            Self::NvmeFabric => "nvme over fabrics",
            Self::Virtio => "virtio",
            Self::Sata => "sata",
            Self::Scsi => "scsi",
            Self::Usb => "usb",
            Self::Memory => "memory",
            Self::Other => "other",
        })
    }
}

/// A block device with no other block device of this machine below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Its name, such as `nvme0n1`.
    pub name: String,
    /// Its attachment.
    pub kind: DriveKind,
    /// The model name.
    pub model: Option<String>,
    /// The PCI function of the drive: its own controller, or that of its bus.
    pub pci: Option<PciAddress>,
    /// The NUMA node of that function; `None` if the firmware does not report it.
    pub numa_node: Option<u32>,
    /// Requests the block layer queues before it blocks.
    pub nr_requests: Option<u32>,
    /// NVMe metadata per block; anything but 0 rules out GPUDirect Storage.
    pub metadata_bytes: Option<u32>,
}

impl Drive {
    /// Reads the drive whose folder, resolved, is `folder`: `/sys/devices/…/block/sda`.
    pub(crate) fn read(root: &Root, folder: &Path) -> Self {
        let controllers = controllers(root, folder);
        // A multipath namespace has no controller as its parent; the first of its controllers is used.
        let home = controllers.first().map_or(folder, PathBuf::as_path);
        let pci = home.iter().rev().find_map(|name| name.to_str()?.parse().ok());
        let queue = folder.join("queue");
        Self {
            name: name(folder),
            kind: kind(root, folder, home),
            model: [folder.join("device/model"), home.join("model")]
                .iter()
                .find_map(|path| root.text(path)),
            pci,
            numa_node: pci.and_then(|pci| {
                let node: i64 = root.value(format!("/sys/bus/pci/devices/{pci}/numa_node"))?;
                u32::try_from(node).ok()
            }),
            nr_requests: root.value(queue.join("nr_requests")),
            metadata_bytes: root.value(folder.join("metadata_bytes")),
        }
    }
}

/// The resolved sysfs folders of the NVMe controllers of a namespace.
fn controllers(root: &Root, folder: &Path) -> Vec<PathBuf> {
    if !name(folder).starts_with("nvme") {
        return Vec::new();
    }
    let Some(parent) = folder.parent() else {
        return Vec::new();
    };
    if root.exists(parent.join("transport")) {
        return vec![parent.to_owned()];
    }
    // A subsystem's folder has a link to each of its controllers.
    let links = root.list(parent).into_iter().map(|link| parent.join(link));
    links
        .filter(|link| root.exists(link.join("transport")))
        .filter_map(|link| root.resolve(link))
        .collect()
}

fn kind(root: &Root, folder: &Path, home: &Path) -> DriveKind {
    if name(folder).starts_with("nvme") {
        return match root.text(home.join("transport")).as_deref() {
            Some("tcp") => DriveKind::NvmeTcp,
            Some("rdma") => DriveKind::NvmeRdma,
            Some("pcie") | None => DriveKind::Nvme,
            Some(_) => DriveKind::NvmeFabric,
        };
    }
    let has = |prefix: &str| {
        folder.iter().filter_map(|name| name.to_str()).any(|name| {
            let number = name.strip_prefix(prefix).unwrap_or_default();
            !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    let buses = [
        ("virtio", DriveKind::Virtio),
        ("usb", DriveKind::Usb),
        ("ata", DriveKind::Sata),
        ("host", DriveKind::Scsi),
    ];
    match buses.into_iter().find(|(prefix, _)| has(prefix)) {
        Some((_, kind)) => kind,
        None if folder.starts_with("/sys/devices/virtual") => DriveKind::Memory,
        None => DriveKind::Other,
    }
}
