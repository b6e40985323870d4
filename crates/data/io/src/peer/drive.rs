//! The block device of a file, as far as it matters for peer-to-peer DMA.

use straightway_sys::{
    mount::DeviceNumber,
    root::{Root, name},
};

/// The driver of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// NVMe on PCIe, the driver that supports peer-to-peer DMA.
    Nvme,
    /// NVMe over a network.
    NvmeFabric,
    /// md, which supports it in later kernels if all of its members do.
    Md,
    /// LVM, dm-crypt and similar.
    DeviceMapper,
    Virtio,
    Loop,
    /// A RAM disk or persistent memory.
    Memory,
    Other,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    /// Its name, such as `nvme0n1`.
    pub(super) name: String,
    pub(super) driver: Driver,
    /// A unique identity, also different from a later device with the same number.
    pub(super) identity: String,
}

impl Drive {
    pub(super) fn of(root: &Root, number: DeviceNumber) -> Self {
        let link = format!("/sys/dev/block/{number}");
        let folder = root.reach(&link);
        // A partition's folder is inside that of its drive.
        let whole = if root.exists(folder.join("partition")) {
            folder.parent().unwrap_or(&folder).to_owned()
        } else {
            folder.clone()
        };
        let label = name(&whole);
        let wwid = root.text(whole.join("wwid")).unwrap_or_default();
        let serial = root.text(whole.join("device/serial")).unwrap_or_default();
        let path = folder.display().to_string();
        Self {
            driver: driver(root, &label, &path),
            identity: [path.as_str(), wwid.trim(), serial.trim()].join(" "),
            name: label,
        }
    }
}

fn driver(root: &Root, name: &str, path: &str) -> Driver {
    let starts = |with: &str| {
        name.strip_prefix(with)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    if starts("nvme") {
        // A namespace under multipath belongs to a subsystem, whose folder lists its controllers.
        let device = format!("{path}/device");
        let controllers = root.list(&device).into_iter();
        let folders = controllers.map(|entry| format!("{device}/{entry}"));
        let transports = std::iter::once(device.clone()).chain(folders);
        let mut transports = transports.filter_map(|folder| root.text(format!("{folder}/transport")));
        return match transports.find(|transport| transport.trim() != "pcie") {
            None => Driver::Nvme,
            Some(_) => Driver::NvmeFabric,
        };
    }
    match name {
        _ if starts("md") => Driver::Md,
        _ if name.starts_with("dm-") => Driver::DeviceMapper,
        _ if name.starts_with("vd") || path.contains("/virtio") => Driver::Virtio,
        _ if starts("loop") => Driver::Loop,
        _ if starts("ram") || starts("zram") || starts("pmem") => Driver::Memory,
        _ => Driver::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_follows_from_the_name_and_the_transport() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for (controller, transport) in [
            ("nvme4n1/device", "tcp\n"),
            ("nvme5n1/device/nvme7", "rdma\n"),
            ("nvme0n1/device", "pcie\n"),
        ] {
            let device = folder.path().join("sys/devices/x/block").join(controller);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("transport"), transport).unwrap();
        }
        for (name, expected) in [
            ("nvme0n1", Driver::Nvme),
            ("nvme4n1", Driver::NvmeFabric),
            ("nvme5n1", Driver::NvmeFabric),
            ("md0", Driver::Md),
            ("dm-3", Driver::DeviceMapper),
            ("vda", Driver::Virtio),
            ("loop7", Driver::Loop),
            ("ram0", Driver::Memory),
            ("sda", Driver::Other),
        ] {
            let path = format!("/sys/devices/x/block/{name}");
            assert_eq!(driver(&root, name, &path), expected, "{name}");
        }
    }
}
