//! Checks of peer-to-peer DMA between drives and memory in a BAR: which device offers such memory, whether the path's
//! drive accepts it, and whether Linux allows DMA between the two.
//!
//! The kernel version and options are checked in `kernel`, and ACS in `platform`: they matter to GPUs as well.

use straightway_core::Bytes;
use straightway_io::peer::{MD_MIN, major_minor};
use straightway_sys::peer::Provider;

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::ADVICE,
    facts::Facts,
};
use crate::{
    backing::{Backing, LayerKind},
    drive::DriveKind,
    topology::{Distance, PciAddress},
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "peer.memory",
        layer: Layer::Machine,
        title: "BAR memory",
        ways: ADVICE,
        why: "drives reach memory in a BAR of another device by peer-to-peer DMA, without cuFile: the controller \
              memory buffer of an NVMe drive, or GPU memory that its driver offers as p2pmem",
        mend: "use a drive with a controller memory buffer (`nvme show-regs`, CMBSZ), on Linux 6.2 or later with \
               CONFIG_PCI_P2PDMA=y",
        look: look_memory,
    },
    Check {
        id: "peer.drive",
        layer: Layer::Storage,
        title: "drive and BAR memory",
        ways: ADVICE,
        why: "only the driver of NVMe on PCIe supports peer-to-peer DMA: virtio, loop devices, RAM disks, LVM and NVMe \
              over fabrics return EREMOTEIO. md supports it since Linux 7.2; 6.18 refuses",
        mend: "keep the files on an NVMe drive of this machine, without LVM or a loop device",
        look: look_drive,
    },
    Check {
        id: "peer.path",
        layer: Layer::Storage,
        title: "path to BAR memory",
        ways: ADVICE,
        why: "Linux allows peer-to-peer DMA below a common PCIe switch; through the root complex, only on processors \
              known to forward it (AMD Zen, some of Intel's). Otherwise the first I/O fails, with EREMOTEIO or, in \
              later kernels, EINVAL",
        mend: "put the drive and the device with the memory below one switch",
        look: look_path,
    },
];

fn look_memory(facts: &Facts<'_>) -> Outcome {
    let providers = Provider::all(facts.root);
    if providers.is_empty() {
        return Outcome::skip("no device offers any (p2pmem)");
    }
    let offer = |provider: &Provider| {
        let bytes = |found: Option<u64>| Bytes(found.unwrap_or(0));
        let all = bytes(provider.bytes(facts.root));
        let free = bytes(provider.free_bytes(facts.root));
        format!("p2p:{} has {all}, {free} free", provider.address())
    };
    Outcome::pass(list(providers.iter().map(offer)))
}

/// The storage behind the path and the devices that offer memory; an outcome if either is missing.
fn between<'a>(facts: &'a Facts<'_>) -> Result<(&'a Backing, Vec<Provider>), Outcome> {
    let providers = Provider::all(facts.root);
    if providers.is_empty() {
        return Err(Outcome::skip("no device offers memory in a BAR"));
    }
    match facts.backing() {
        Some(backing) if !backing.drives.is_empty() => Ok((backing, providers)),
        _ => Err(Outcome::skip("no drive for the path")),
    }
}

fn look_drive(facts: &Facts<'_>) -> Outcome {
    let backing = match between(facts) {
        Ok((backing, _)) => backing,
        Err(outcome) => return outcome,
    };
    let kernel = facts.kernel.release.as_deref().and_then(major_minor);
    for layer in &backing.layers {
        let name = &layer.name;
        match &layer.kind {
            LayerKind::Partition => {}
            LayerKind::Raid(_) if kernel.is_some_and(|version| version >= MD_MIN) => {}
            LayerKind::Raid(level) => {
                let seen = format!("{name} is {level}, and md refuses peer-to-peer DMA before Linux 7.2");
                return Outcome::warn(seen);
            }
            LayerKind::Mapper(made_by) => {
                return Outcome::warn(format!("{name} is a device mapping ({made_by}), which refuses it"));
            }
            LayerKind::Loop(file) => {
                let file = file.display();
                return Outcome::warn(format!("{name} is the file {file}, and loop devices refuse it"));
            }
        }
    }
    match backing.drives.iter().find(|drive| drive.kind != DriveKind::Nvme) {
        Some(drive) => Outcome::warn(format!("{} is {}, whose driver refuses it", drive.name, drive.kind)),
        None => Outcome::pass(list(backing.drives.iter().map(|drive| drive.name.clone()))),
    }
}

fn look_path(facts: &Facts<'_>) -> Outcome {
    let (backing, providers) = match between(facts) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let drives: Vec<PciAddress> = backing.drives.iter().filter_map(|d| d.pci).collect();
    if drives.is_empty() {
        return Outcome::skip("the drive is not a PCI device");
    }
    let is_near = |provider: &&Provider| {
        let distance = |drive: &PciAddress| facts.topology.distance(*drive, provider.address());
        drives.iter().all(|drive| distance(drive) == Distance::Switch)
    };
    if let Some(near) = providers.iter().find(is_near) {
        return Outcome::pass(format!("below one switch with p2p:{}", near.address()));
    }
    match forwarding(&facts.root.text("/proc/cpuinfo").unwrap_or_default()) {
        Forwarding::Known(name) => Outcome::pass(format!("through the root complex of {name}")),
        Forwarding::Perhaps => {
            Outcome::warn("no common switch: Linux allows the root complex only with Intel bridges on its list")
        }
        Forwarding::Unknown => Outcome::warn("no common switch, and this processor is not known to forward it"),
    }
}

/// Whether a processor's root complex forwards peer-to-peer DMA, by Linux's own rule.
#[derive(Debug, PartialEq, Eq)]
enum Forwarding {
    Known(&'static str),
    Perhaps,
    Unknown,
}

/// Linux knows AMD processors since family 0x17 (Zen), and a list of Intel host bridges.
fn forwarding(processor: &str) -> Forwarding {
    let field = |name: &str| {
        let line = processor.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let family: u32 = field("cpu family").and_then(|text| text.parse().ok()).unwrap_or(0);
    match field("vendor_id").as_deref() {
        Some("AuthenticAMD") if family >= 0x17 => Forwarding::Known("an AMD Zen processor"),
        Some("GenuineIntel") => Forwarding::Perhaps,
        _ => Forwarding::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zen_forwards_and_others_may_not() {
        let processor = |vendor: &str, family: u32| {
            forwarding(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\n"
            ))
        };
        assert_eq!(processor("AuthenticAMD", 23), Forwarding::Known("an AMD Zen processor"));
        assert_eq!(processor("AuthenticAMD", 21), Forwarding::Unknown);
        assert_eq!(processor("GenuineIntel", 6), Forwarding::Perhaps);
        assert_eq!(forwarding(""), Forwarding::Unknown);
    }
}
