//! Checks of the nvidia-fs module: its presence, its version and its counters.

use crate::{backing::Backing, drive::DriveKind};

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::{ADVICE, NVIDIA_FS},
    facts::{Facts, major_minor},
};

/// The first nvidia-fs that requires the open kernel module, by its release notes.
pub(super) const OPEN_ONLY: (u32, u32) = (2, 17);

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nvidia_fs.module",
        layer: Layer::Machine,
        title: "nvidia-fs module",
        ways: NVIDIA_FS,
        why: "without it and without P2PDMA, cuFile silently copies through host memory",
        mend: "sudo apt install nvidia-fs && sudo modprobe nvidia-fs",
        look: look_module,
    },
    Check {
        id: "nvidia_fs.node",
        layer: Layer::Machine,
        title: "nvidia-fs node",
        ways: NVIDIA_FS,
        why: "cuFile opens /dev/nvidia-fs0; with the module but without the node it falls back",
        mend: "in a container: `docker run --device /dev/nvidia-fs0 …` for each /dev/nvidia-fs*; on \
               the host: sudo modprobe -r nvidia-fs && sudo modprobe nvidia-fs",
        look: look_node,
    },
    Check {
        id: "nvidia_fs.version",
        layer: Layer::Machine,
        title: "nvidia-fs version",
        ways: NVIDIA_FS,
        why: "before 2.17 it does not work with the open kernel module",
        mend: "sudo apt install --only-upgrade nvidia-fs && sudo modprobe -r nvidia-fs && \
               sudo modprobe nvidia-fs",
        look: look_version,
    },
    Check {
        id: "nvidia_fs.storage",
        layer: Layer::Machine,
        title: "nvidia-fs and storage",
        ways: NVIDIA_FS,
        why: "nvidia-fs reaches storage only through drivers that support it and have registered; the \
              kernel's own nvme driver does not, which gdscheck shows as `NVMe : Unsupported`",
        mend: "install MLNX_OFED or DOCA-OFED with --with-nvmf --with-nfsrdma --enable-gds (or the file \
               system's own client), sudo update-initramfs -u && sudo reboot",
        look: look_storage,
    },
    Check {
        id: "nvidia_fs.errors",
        layer: Layer::Machine,
        title: "nvidia-fs counters",
        ways: ADVICE,
        why: "only these counters show failed mappings and transfers that cross root ports",
        mend: "see /proc/driver/nvidia-fs/stats and `dmesg | grep nvidia-fs`",
        look: look_errors,
    },
];

fn look_module(facts: &Facts<'_>) -> Outcome {
    if facts.driver.is_none() {
        Outcome::skip("no driver")
    } else if facts.has_nvidia_fs() {
        Outcome::pass("loaded")
    } else {
        Outcome::fail("the nvidia-fs module is not loaded")
    }
}

fn look_node(facts: &Facts<'_>) -> Outcome {
    if facts.driver.is_none() || !facts.has_nvidia_fs() {
        Outcome::skip("the module is not loaded")
    } else if facts.root.exists("/dev/nvidia-fs0") {
        Outcome::pass("/dev/nvidia-fs0 exists")
    } else {
        Outcome::fail("nvidia-fs is loaded but /dev/nvidia-fs0 is missing")
    }
}

/// `version: 2.24.3` in procfs, or the bare number in sysfs.
pub(super) fn version(facts: &Facts<'_>) -> Option<String> {
    let text = ["/proc/driver/nvidia-fs/version", "/sys/module/nvidia_fs/version"]
        .iter()
        .find_map(|path| facts.root.text(path))?;
    let version = text.lines().next()?.trim_start_matches("version:").trim();
    Some(version.to_owned())
}

fn look_version(facts: &Facts<'_>) -> Outcome {
    if !facts.has_nvidia_fs() {
        return Outcome::skip("the module is not loaded");
    }
    let Some(version) = version(facts) else {
        return Outcome::skip("not reported");
    };
    let is_open = facts.driver.as_ref().is_some_and(|driver| driver.is_open);
    match major_minor(&version) {
        Some(numbers) if is_open && numbers < OPEN_ONLY => {
            Outcome::fail(format!("nvidia-fs {version} does not work with the open driver"))
        }
        _ => Outcome::pass(version),
    }
}

/// The driver that must be registered for this path, by its name in nvidia-fs.
fn storage_driver(backing: &Backing) -> Option<&'static str> {
    let by_file_system = match backing.mount.file_system.as_str() {
        "nfs" | "nfs4" => Some("rpcrdma"),
        "lustre" => Some("lnet"),
        "beegfs" => Some("beegfs"),
        "gpfs" => Some("mmfslinux"),
        "wekafs" => Some("wekafsio"),
        "scatefs" => Some("scatefs"),
        _ => None,
    };
    by_file_system.or_else(|| match backing.drives.first()?.kind {
        DriveKind::Nvme => Some("nvme"),
        DriveKind::NvmeRdma => Some("nvme_rdma"),
        _ => None,
    })
}

/// The registered drivers are lines of `name: version`.
fn look_storage(facts: &Facts<'_>) -> Outcome {
    if !facts.has_nvidia_fs() {
        return Outcome::skip("the module is not loaded");
    }
    let Some(modules) = facts.root.text("/proc/driver/nvidia-fs/modules") else {
        return Outcome::skip("not reported");
    };
    let Some(driver) = facts.backing().and_then(storage_driver) else {
        return Outcome::skip("no driver of the path could register");
    };
    let registered = modules.lines().filter_map(|line| line.split(':').next());
    let registered: Vec<String> = registered.map(|name| name.trim().to_owned()).collect();
    if registered.iter().any(|name| name == driver) {
        Outcome::pass(format!("{driver} has registered"))
    } else {
        Outcome::fail(format!("the driver {driver} has not registered with nvidia-fs"))
    }
}

/// The counters are lines of `name : key=value key=value`.
fn look_errors(facts: &Facts<'_>) -> Outcome {
    if !facts.has_nvidia_fs() {
        return Outcome::skip("the module is not loaded");
    }
    let Some(stats) = facts.root.text("/proc/driver/nvidia-fs/stats") else {
        return Outcome::skip("/proc/driver/nvidia-fs/stats cannot be read");
    };
    let mut trouble = Vec::new();
    for line in stats.lines() {
        let name = line.split(':').next().unwrap_or_default().trim();
        for (key, count) in line.split_whitespace().filter_map(counter) {
            let is_error = key == "err" || key.ends_with("_err") || name == "Error";
            if is_error && count > 0 {
                trouble.push(format!("{name} {key}={count}"));
            }
            if key == "cross_root_port(%)" && count > 0 {
                trouble.push(format!("{count} % of transfers cross root ports"));
            }
        }
    }
    if !trouble.is_empty() {
        Outcome::warn(list(trouble.into_iter()))
    } else if stats.contains("IO stats: Disabled") {
        Outcome::pass("no errors; I/O is not counted (rw_stats_enabled=0)")
    } else {
        Outcome::pass("no errors")
    }
}

fn counter(word: &str) -> Option<(&str, u64)> {
    let (key, value) = word.split_once('=')?;
    Some((key, value.parse().ok()?))
}
