//! Checks of the kernel: peer-to-peer DMA, the IOMMU, and the limits of this process.

use straightway_core::Bytes;
use straightway_io::peer::is_broken;

use super::{
    check::{Check, Layer, Outcome},
    cufile_path::{ADVICE, DIRECT, P2PDMA},
    facts::{Facts, major_minor},
};

/// The first kernel with P2PDMA for user space.
const P2PDMA_KERNEL: (u32, u32) = (6, 2);
/// The pinned ring's default size; registering its buffers with `io_uring` counts against the limit.
const RING_BYTES: u64 = 128 << 20;
/// The bit of `CAP_IPC_LOCK`, which lifts the limit.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// Dirty page cache beyond this makes the next reads and syncs wait: seconds on most drives.
const DIRTY_BYTES_MAX: u64 = 4 << 30;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kernel.version",
        layer: Layer::Machine,
        title: "kernel version",
        ways: P2PDMA,
        why: "P2PDMA from user space needs Linux 6.2; Linux 6.16 reports success but moves wrong bytes",
        mend: "boot Linux 6.2 or later, but not 6.16, or use nvidia-fs",
        look: look_version,
    },
    Check {
        id: "kernel.p2pdma",
        layer: Layer::Machine,
        title: "kernel P2PDMA",
        ways: P2PDMA,
        why: "a kernel built without CONFIG_PCI_P2PDMA and CONFIG_ZONE_DEVICE cannot do it, and no \
              module or parameter adds it",
        mend: "boot a kernel built with CONFIG_PCI_P2PDMA=y and CONFIG_ZONE_DEVICE=y (Ubuntu's \
               generic kernels are), or use nvidia-fs",
        look: look_p2pdma,
    },
    Check {
        id: "kernel.symbols",
        layer: Layer::Machine,
        title: "P2PDMA symbol",
        ways: P2PDMA,
        why: "p2pdma_pgmap_ops in the running kernel proves that it has P2PDMA",
        mend: "boot a kernel built with CONFIG_PCI_P2PDMA=y",
        look: look_symbols,
    },
    Check {
        id: "kernel.iommu",
        layer: Layer::Machine,
        title: "IOMMU",
        ways: DIRECT,
        why: "on x86 a translating IOMMU routes peer-to-peer traffic through the processor or blocks \
              it; on Grace it must translate",
        mend: "add `iommu=off`, or `iommu=pt` where the platform needs it, to GRUB_CMDLINE_LINUX, \
               then sudo update-grub && sudo reboot",
        look: look_iommu,
    },
    Check {
        id: "kernel.multipath",
        layer: Layer::Machine,
        title: "NVMe multipath",
        ways: P2PDMA,
        why: "the kernel's multipath layer for NVMe does not support P2PDMA",
        mend: "echo 'options nvme_core multipath=N' | sudo tee /etc/modprobe.d/nvme.conf && \
               sudo update-initramfs -u && sudo reboot",
        look: look_multipath,
    },
    Check {
        id: "kernel.io_uring",
        layer: Layer::Machine,
        title: "io_uring",
        ways: ADVICE,
        why: "without it a thread pool reads instead, at more CPU per byte; containers forbid it by \
              default",
        mend: "sudo sysctl kernel.io_uring_disabled=0; in a container allow the io_uring_* calls in \
               the seccomp profile",
        look: look_io_uring,
    },
    Check {
        id: "kernel.memlock",
        layer: Layer::Machine,
        title: "locked memory",
        ways: ADVICE,
        why: "registered buffers count against RLIMIT_MEMLOCK; a low limit means a smaller ring",
        mend: "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or \
               `docker run --ulimit memlock=-1 …`",
        look: look_memlock,
    },
    Check {
        id: "kernel.dirty",
        layer: Layer::Machine,
        title: "dirty page cache",
        ways: ADVICE,
        why: "an O_DIRECT read of a file with dirty pages waits until they are written",
        mend: "sync, or wait for the writer to end",
        look: look_dirty,
    },
    Check {
        id: "kernel.huge_pages",
        layer: Layer::Machine,
        title: "huge pages",
        ways: ADVICE,
        why: "buffers on huge pages need fewer page-table walks and fewer DMA segments",
        mend: "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        look: look_huge_pages,
    },
];

fn look_version(facts: &Facts<'_>) -> Outcome {
    if !facts.has_peer_memory() {
        return Outcome::skip("no GPU");
    }
    let Some(release) = &facts.kernel.release else {
        return Outcome::skip("not reported");
    };
    match major_minor(release) {
        Some(version) if version < P2PDMA_KERNEL => Outcome::fail(format!("Linux {release} predates P2PDMA")),
        Some(version) if is_broken(version) => Outcome::fail(format!(
            "Linux {release} gives drives wrong addresses for BAR memory and reports success"
        )),
        Some(_) => Outcome::pass(release.clone()),
        None => Outcome::skip(format!("no version in {release:?}")),
    }
}

fn look_p2pdma(facts: &Facts<'_>) -> Outcome {
    if !facts.has_peer_memory() {
        return Outcome::skip("no GPU");
    }
    let options = ["CONFIG_PCI_P2PDMA", "CONFIG_ZONE_DEVICE"];
    let missing: Vec<&str> = options
        .into_iter()
        .filter(|name| facts.kernel.option(name) == Some(false))
        .collect();
    if !missing.is_empty() {
        Outcome::fail(format!("the kernel is built without {}", missing.join(" and ")))
    } else if facts.kernel.option("CONFIG_PCI_P2PDMA").is_some() {
        Outcome::pass("built in")
    } else {
        Outcome::skip("the kernel configuration was not found")
    }
}

fn look_symbols(facts: &Facts<'_>) -> Outcome {
    if !facts.has_peer_memory() {
        return Outcome::skip("no GPU");
    }
    if facts.kernel.option("CONFIG_PCI_P2PDMA") == Some(false) {
        return Outcome::skip("the kernel is built without it");
    }
    match facts.root.contains("/proc/kallsyms", "p2pdma_pgmap_ops") {
        Ok(true) => Outcome::pass("p2pdma_pgmap_ops exists"),
        // Only kernels with CONFIG_KALLSYMS_ALL list data symbols.
        Ok(false) if facts.kernel.option("CONFIG_KALLSYMS_ALL") == Some(false) => {
            Outcome::skip("this kernel lists no data symbols")
        }
        Ok(false) => Outcome::fail("the kernel has no p2pdma_pgmap_ops"),
        Err(e) => Outcome::skip(e.to_string()),
    }
}

fn look_iommu(facts: &Facts<'_>) -> Outcome {
    let Some(gpu) = facts.gpus.first() else {
        return Outcome::skip("no GPU");
    };
    let group = format!("/sys/bus/pci/devices/{}/iommu_group", gpu.address);
    let kind = facts.root.text(format!("{group}/type"));
    let is_on = facts.root.exists(&group) || !facts.root.list("/sys/class/iommu").is_empty();
    if !facts.kernel.is_x86 {
        return if is_on && kind.as_deref() != Some("identity") {
            Outcome::pass("on, as Grace needs")
        } else {
            Outcome::fail("the IOMMU is off or passes through, but Grace needs it on")
                .mend("remove iommu.passthrough=1 and iommu=off from the kernel command line")
        };
    }
    match (is_on, kind.as_deref()) {
        (false, _) => Outcome::pass("off"),
        (true, Some("identity")) => Outcome::pass("on, passing through (iommu=pt)"),
        (true, Some(kind)) => Outcome::fail(format!("the IOMMU translates ({kind})")),
        (true, None) if facts.kernel.command_line.contains("iommu=pt") => {
            Outcome::pass("on, passing through (iommu=pt)")
        }
        (true, None) => Outcome::warn("the IOMMU is on; whether it translates is unknown"),
    }
}

fn look_multipath(facts: &Facts<'_>) -> Outcome {
    if facts.gpus.is_empty() || !facts.kernel.is_x86 {
        return Outcome::skip("only with a GPU on x86");
    }
    let text = facts.root.text("/sys/module/nvme_core/parameters/multipath");
    match text.as_deref() {
        Some("N") => Outcome::pass("off"),
        Some("Y") => Outcome::fail("NVMe multipath is on"),
        Some(other) => Outcome::skip(format!("unknown setting {other:?}")),
        None => Outcome::skip("no NVMe driver with multipath"),
    }
}

fn look_io_uring(facts: &Facts<'_>) -> Outcome {
    let setting = facts.root.value::<u8>("/proc/sys/kernel/io_uring_disabled");
    match (&facts.measured.io_uring, setting) {
        (Some(Ok(())), _) => Outcome::pass("permitted: a ring was set up"),
        (Some(Err(error)), Some(1 | 2)) => {
            let level = setting.unwrap_or_default();
            Outcome::warn(format!("{error} (kernel.io_uring_disabled={level})"))
        }
        (Some(Err(error)), _) => Outcome::warn(error.clone()),
        (None, Some(0)) => Outcome::pass("kernel.io_uring_disabled=0"),
        (None, Some(level)) => Outcome::warn(format!("kernel.io_uring_disabled={level}")),
        (None, None) => Outcome::skip("not reported"),
    }
}

fn look_memlock(facts: &Facts<'_>) -> Outcome {
    let limits = facts.root.text("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Outcome::skip("not reported");
    };
    let status = facts.root.text("/proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or_default();
    match soft.parse::<u64>() {
        Err(_) => Outcome::pass(soft.to_owned()),
        Ok(bytes) if bytes >= RING_BYTES => Outcome::pass(Bytes(bytes).to_string()),
        Ok(bytes) if capabilities & CAP_IPC_LOCK != 0 => {
            Outcome::pass(format!("{}, lifted by CAP_IPC_LOCK", Bytes(bytes)))
        }
        Ok(bytes) => Outcome::warn(format!(
            "the limit is {}, the ring's default {}",
            Bytes(bytes),
            Bytes(RING_BYTES)
        )),
    }
}

fn look_dirty(facts: &Facts<'_>) -> Outcome {
    let memory = facts.root.text("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> Option<u64> {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let Some(dirty) = kib("Dirty:") else {
        return Outcome::skip("not reported");
    };
    let waiting = dirty.saturating_add(kib("Writeback:").unwrap_or(0));
    let bytes = waiting.saturating_mul(1024);
    if bytes > DIRTY_BYTES_MAX {
        Outcome::warn(format!("{} not yet written", Bytes(bytes)))
    } else {
        Outcome::pass(format!("{} not yet written", Bytes(bytes)))
    }
}

fn look_huge_pages(facts: &Facts<'_>) -> Outcome {
    let setting = facts.root.text("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = setting.as_deref().and_then(|text| {
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0)
    });
    match chosen {
        Some("never") => Outcome::warn("transparent huge pages are off"),
        Some(other) => Outcome::pass(other.to_owned()),
        None => Outcome::skip("not reported"),
    }
}
