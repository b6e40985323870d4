//! The facts that checks examine, read once: GPUs and their driver, the kernel, cuFile, the platform.
//!
//! Every field may be missing: a capture is rarely complete, a container hides parts of the machine, and permission
//! may be denied. A check without its facts says so.

use std::{collections::BTreeMap, io::Read, path::Path};

use straightway_core::{Error, Result};
pub(super) use straightway_io::peer::major_minor;
use straightway_sys::peer::Provider;
use straightway_sys::root::{FILE_BYTES_MAX, Root};

use super::{cufile::Cufile, measurements::Measurements};
use crate::{
    backing::Backing,
    topology::{MachineTopology, PciAddress, PciKind},
};

/// The facts about a machine and a path.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) root: &'a Root,
    pub(super) measured: &'a Measurements,
    pub(super) topology: MachineTopology,
    pub(super) backing: Result<Backing, Error>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) driver: Option<Driver>,
    pub(super) kernel: Kernel,
    pub(super) cufile: Cufile,
    pub(super) is_container: Option<&'static str>,
    pub(super) is_virtual: bool,
}

impl<'a> Facts<'a> {
    pub(super) fn read(
        root: &'a Root,
        path: &Path,
        environment: &BTreeMap<String, String>,
        measured: &'a Measurements,
    ) -> Self {
        let topology = MachineTopology::read(root);
        let processor = root.text("/proc/cpuinfo").unwrap_or_default();
        Self {
            gpus: read_gpus(root, &topology),
            driver: Driver::read(root),
            backing: Backing::of(root, path),
            kernel: Kernel::read(root, &processor),
            cufile: Cufile::read(root, environment),
            is_container: container(root, environment),
            is_virtual: processor.split_whitespace().any(|flag| flag == "hypervisor"),
            root,
            measured,
            topology,
        }
    }

    /// The storage behind the path, if it could be resolved.
    pub(super) fn backing(&self) -> Option<&Backing> {
        self.backing.as_ref().ok()
    }

    /// Whether the path is on a file system in memory, where `O_DIRECT` may be accepted but has no effect.
    pub(super) fn is_memory(&self) -> bool {
        let file_system = self.backing().map(|backing| backing.mount.file_system.as_str());
        matches!(file_system, Some("tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs"))
    }

    /// Whether any device has memory that drives could reach by peer-to-peer DMA.
    pub(super) fn has_peer_memory(&self) -> bool {
        !self.gpus.is_empty() || !Provider::all(self.root).is_empty()
    }

    /// Whether a kernel module is loaded or built in.
    pub(super) fn has_module(&self, name: &str) -> bool {
        self.root.exists(Path::new("/sys/module").join(name))
    }

    /// Whether the nvidia-fs module is loaded.
    pub(super) fn has_nvidia_fs(&self) -> bool {
        self.has_module("nvidia_fs") || self.root.exists("/proc/driver/nvidia-fs")
    }
}

/// A GPU as the bus and the driver report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) address: PciAddress,
    /// The product name; only the driver reports it.
    pub(super) model: Option<String>,
    /// The window through which other devices reach its memory.
    pub(super) bar1_bytes: Option<u64>,
}

fn read_gpus(root: &Root, topology: &MachineTopology) -> Vec<Gpu> {
    let on_bus = topology.of_kind(PciKind::Gpu).map(|device| device.address);
    // A container may show the driver's files and hide the bus.
    let known = root.list("/proc/driver/nvidia/gpus").into_iter();
    let mut addresses: Vec<PciAddress> = known.filter_map(|name| name.parse().ok()).collect();
    addresses.extend(on_bus);
    addresses.sort_unstable();
    addresses.dedup();
    addresses
        .into_iter()
        .map(|address| Gpu {
            address,
            model: root
                .text(format!("/proc/driver/nvidia/gpus/{address}/information"))
                .and_then(|text| {
                    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
                    Some(line.trim().trim_start_matches("NVIDIA ").to_owned())
                }),
            bar1_bytes: read_bar1(root, address),
        })
        .collect()
}

/// BAR1 is NVIDIA's name for the second memory region. It is the second line of `resource`, or the third if the first
/// region has a 64-bit address, as since Hopper. A line has the first and the last address, and flags.
fn read_bar1(root: &Root, address: PciAddress) -> Option<u64> {
    let text = root.text(format!("/sys/bus/pci/devices/{address}/resource"))?;
    let region = |line: &str| {
        let mut words = line.split_whitespace();
        let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (first, last) = (next()?, next()?);
        last.checked_sub(first)?.checked_add(1).filter(|_| last > 0)
    };
    // The expansion ROM and a bridge's windows come after the six base address registers.
    text.lines().take(6).filter_map(region).nth(1)
}

/// The NVIDIA kernel driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    pub(super) version: String,
    /// Whether it is the open kernel module.
    pub(super) is_open: bool,
}

impl Driver {
    /// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …`
    fn read(root: &Root) -> Option<Self> {
        let text = root.text("/proc/driver/nvidia/version")?;
        let line = text.lines().next()?;
        let version = line
            .split_whitespace()
            .find(|word| word.split('.').count() >= 2 && major_minor(word).is_some())?;
        Some(Self {
            version: version.to_owned(),
            is_open: line.contains("Open Kernel Module"),
        })
    }
}

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) release: Option<String>,
    pub(super) is_x86: bool,
    pub(super) command_line: String,
    config: Option<String>,
}

impl Kernel {
    fn read(root: &Root, processor: &str) -> Self {
        let release = root.text("/proc/sys/kernel/osrelease").or_else(|| {
            let text = root.text("/proc/version")?;
            text.split_whitespace().nth(2).map(str::to_owned)
        });
        Self {
            config: read_config(root, release.as_deref()),
            release,
            is_x86: !processor.contains("CPU implementer"),
            command_line: root.text("/proc/cmdline").unwrap_or_default(),
        }
    }

    /// An option of the kernel configuration; `None` if the configuration cannot be read.
    pub(super) fn option(&self, name: &str) -> Option<bool> {
        let config = self.config.as_ref()?;
        let set = config.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix('=')?;
            Some(matches!(value.trim(), "y" | "m"))
        });
        Some(set.unwrap_or(false))
    }
}

fn read_config(root: &Root, release: Option<&str>) -> Option<String> {
    if let Ok(packed) = root.read("/proc/config.gz") {
        let mut text = String::new();
        let unpacked = flate2::read::GzDecoder::new(&packed[..])
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text);
        if unpacked.is_ok() {
            return Some(text);
        }
    }
    let release = release.filter(|release| !release.contains('/'))?;
    [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
        format!("/usr/lib/modules/{release}/config"),
        format!("/lib/modules/{release}/build/.config"),
    ]
    .iter()
    .find_map(|path| root.text(path))
}

/// The container runtime, if the process runs in a container.
fn container(root: &Root, environment: &BTreeMap<String, String>) -> Option<&'static str> {
    if environment.contains_key("KUBERNETES_SERVICE_HOST") {
        return Some("Kubernetes");
    }
    if root.exists("/run/.containerenv") {
        return Some("Podman");
    }
    let groups = root.text("/proc/self/cgroup").unwrap_or_default();
    let marks = [
        ("kubepods", "Kubernetes"),
        ("docker", "Docker"),
        ("containerd", "containerd"),
        ("lxc", "LXC"),
    ];
    let marked = marks.iter().find(|(mark, _)| groups.contains(mark));
    marked
        .map(|(_, name)| *name)
        .or_else(|| root.exists("/.dockerenv").then_some("Docker"))
}
