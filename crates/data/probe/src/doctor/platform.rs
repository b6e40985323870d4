//! Checks of the platform: bare metal, virtual machine or container, and PCIe switches.

use std::path::Path;

use crate::topology::{PciAddress, PciDevice, PciKind};

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::ADVICE,
    facts::Facts,
};

/// The ACS bits that redirect a request between two ports of a switch to the root:
/// request redirect, completion redirect, upstream forwarding.
const ACS_REDIRECT: u16 = 0b1_1100;
/// The number of the ACS capability.
const ACS_CAPABILITY: u32 = 0x000d;
/// The offset of the extended capabilities in configuration space.
const EXTENDED_START: usize = 0x100;
/// Capabilities are at least a word apart, so a list cannot be longer.
const CAPABILITIES_MAX: usize = (4096 - EXTENDED_START) / 4;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "platform.virtual",
        layer: Layer::Machine,
        title: "virtual machine",
        ways: ADVICE,
        why: "the host's IOMMU and ACS, which the guest cannot see, decide whether DMA between two \
              passed-through devices works and how fast; NVIDIA supports cuFile in clouds in compat mode \
              only",
        mend: "rely only on the live probe; on the host put both below one switch and enable ATS",
        look: look_virtual,
    },
    Check {
        id: "platform.container",
        layer: Layer::Machine,
        title: "container",
        ways: ADVICE,
        why: "a container hides what cuFile needs: udev's database, /dev/nvidia-fs*, and the real file \
              system under overlayfs; the checks of these report what is missing",
        mend: "docker run --gpus all -v /run/udev:/run/udev:ro -v /data:/data --ulimit memlock=-1 …",
        look: look_container,
    },
    Check {
        id: "platform.acs",
        layer: Layer::Machine,
        title: "PCIe switches",
        ways: ADVICE,
        why: "with ACS redirection on, peer-to-peer traffic below one switch goes up to the \
              processor and back",
        mend: "disable ACS in the firmware, or for each port: \
               sudo setpci -s ADDRESS ECAP_ACS+0x6.w=0000",
        look: look_acs,
    },
];

fn look_virtual(facts: &Facts<'_>) -> Outcome {
    if !facts.is_virtual {
        return Outcome::pass("bare metal");
    }
    let maker = facts.root.text("/sys/class/dmi/id/sys_vendor");
    let maker = maker.filter(|maker| !maker.is_empty());
    let seen = match maker {
        Some(maker) => format!("a virtual machine ({maker})"),
        None => "a virtual machine".to_owned(),
    };
    let has_nvme = facts.topology.of_kind(PciKind::Nvme).next().is_some();
    if !facts.gpus.is_empty() && has_nvme {
        Outcome::warn(format!("{seen} with GPU and NVMe drive passed through"))
    } else {
        Outcome::pass(seen)
    }
}

fn look_container(facts: &Facts<'_>) -> Outcome {
    match facts.is_container {
        None => Outcome::pass("none"),
        Some(name) => Outcome::pass(format!("in {name}")),
    }
}

/// Checks the switch ports above GPUs, drives and adapters; the ACS of a root port does no harm.
fn look_acs(facts: &Facts<'_>) -> Outcome {
    if !facts.has_peer_memory() {
        return Outcome::skip("no GPU");
    }
    let ends = facts
        .topology
        .devices()
        .filter(|device| matches!(device.kind, PciKind::Gpu | PciKind::Nvme | PciKind::Nic));
    let mut ports: Vec<PciAddress> = ends
        .flat_map(|device: &PciDevice| device.bridges.iter().skip(1).copied())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() {
        return Outcome::skip("no PCIe switch above a GPU, drive or adapter");
    }
    let mut redirecting = Vec::new();
    let mut seen_count = 0;
    for port in &ports {
        let path = Path::new("/sys/bus/pci/devices").join(port.to_string());
        let space = facts.root.read(path.join("config")).unwrap_or_default();
        // Without permission the kernel returns only the first 64 bytes.
        if space.len() > EXTENDED_START {
            seen_count += 1;
            if acs_control(&space).is_some_and(|control| control & ACS_REDIRECT != 0) {
                redirecting.push(port.to_string());
            }
        }
    }
    if !redirecting.is_empty() {
        let mend = redirecting
            .iter()
            .map(|port| format!("sudo setpci -s {port} ECAP_ACS+0x6.w=0000"))
            .collect::<Vec<_>>()
            .join("; ");
        let count = redirecting.len();
        let ports = list(redirecting.into_iter());
        Outcome::warn(format!("ACS redirects on {count} of {seen_count} ports: {ports}")).mend(mend)
    } else if seen_count == 0 {
        Outcome::skip("only root can read the configuration space")
    } else {
        Outcome::pass(format!("no ACS redirection on {seen_count} ports"))
    }
}

/// The ACS control register, found along the list of extended capabilities.
fn acs_control(space: &[u8]) -> Option<u16> {
    let mut at = EXTENDED_START;
    for _ in 0..CAPABILITIES_MAX {
        let header = space.get(at..at + 4)?;
        let header = u32::from_le_bytes(header.try_into().ok()?);
        if header & 0xffff == ACS_CAPABILITY {
            let control = space.get(at + 6..at + 8)?;
            return Some(u16::from_le_bytes(control.try_into().ok()?));
        }
        at = (header >> 20) as usize;
        if at < EXTENDED_START {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_acs_register_is_found_behind_other_capabilities() {
        let mut space = vec![0; 4096];
        space[0x100..0x104].copy_from_slice(&0x1480_0001_u32.to_le_bytes());
        space[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        space[0x14e..0x150].copy_from_slice(&0x001d_u16.to_le_bytes());
        assert_eq!(acs_control(&space), Some(0x1d));
    }

    #[test]
    fn a_cyclic_list_of_capabilities_ends() {
        let mut space = vec![0; 4096];
        space[0x100..0x104].copy_from_slice(&0x1000_0001_u32.to_le_bytes());
        assert_eq!(acs_control(&space), None);
    }

    proptest! {
        #[test]
        fn any_configuration_space_is_read_without_harm(space in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = acs_control(&space);
        }
    }
}
