//! Checks of the drives behind the path and of their location.

use straightway_core::text::shell_word;

use super::{
    check::{Check, Layer, Outcome, list},
    cufile_path::{ADVICE, DIRECT, P2PDMA},
    facts::Facts,
};
use crate::{
    drive::{Drive, DriveKind},
    topology::Distance,
};

/// The value that guides recommend. A drive with a queue of 1024 reports 1023, since one entry is reserved.
const NR_REQUESTS_MIN: u32 = 1023;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "device.transport",
        layer: Layer::Storage,
        title: "drives",
        ways: DIRECT,
        why: "only NVMe on PCIe and RDMA reach GPU memory; paravirtual, SATA, SCSI and USB disks and NVMe \
              over TCP copy through host memory",
        mend: "put the data on a local NVMe drive; in a virtual machine pass one through",
        look: look_transport,
    },
    Check {
        id: "device.metadata",
        layer: Layer::Storage,
        title: "NVMe metadata",
        ways: DIRECT,
        why: "GPUDirect Storage refuses drives formatted with block metadata",
        mend: "format with a metadata size of 0 (this erases the drive): sudo nvme format --lbaf=0 \
               /dev/DRIVE",
        look: look_metadata,
    },
    Check {
        id: "device.queue",
        layer: Layer::Storage,
        title: "request queue",
        ways: ADVICE,
        why: "a queue shorter than the drive's own makes submitters wait before the drive is busy",
        mend: "echo 1023 | sudo tee /sys/block/DRIVE/queue/nr_requests",
        look: look_queue,
    },
    Check {
        id: "device.link",
        layer: Layer::Storage,
        title: "drives' PCIe links",
        ways: ADVICE,
        why: "a drive that uses fewer lanes than it has is slower",
        mend: "reseat the drive or its cable, then check LnkSta in `sudo lspci -vv`",
        look: look_link,
    },
    Check {
        id: "device.distance",
        layer: Layer::Storage,
        title: "distance to the GPU",
        ways: ADVICE,
        why: "traffic between a drive and a GPU on two sockets crosses the link between them: 3.9 \
              instead of 6.5 GB/s per drive on a DGX-2",
        mend: "use drives on the GPU's socket, or move them there; see `nvidia-smi topo -m`",
        look: look_distance,
    },
];

fn drives<'a>(facts: &'a Facts<'_>) -> &'a [Drive] {
    facts.backing().map_or(&[], |backing| &backing.drives)
}

fn look_transport(facts: &Facts<'_>) -> Outcome {
    let drives = drives(facts);
    let Some(first) = drives.first() else {
        return Outcome::skip("no drive behind the path");
    };
    let names = list(drives.iter().map(|drive| match &drive.model {
        Some(model) => format!("{} ({model}, {})", drive.name, drive.kind),
        None => format!("{} ({})", drive.name, drive.kind),
    }));
    if facts.gpus.is_empty() {
        return Outcome::pass(names);
    }
    let far = drives.iter().find(|drive| drive.kind != DriveKind::Nvme);
    match far.map_or(first.kind, |drive| drive.kind) {
        DriveKind::Nvme => Outcome::pass(names),
        DriveKind::NvmeRdma => Outcome::fail(format!("{names}: works with nvidia-fs, not P2PDMA")).closes(P2PDMA),
        kind => {
            let name = far.map_or(&first.name, |drive| &drive.name);
            Outcome::fail(format!("{name} is a {kind} disk, which cannot reach a GPU"))
        }
    }
}

fn look_metadata(facts: &Facts<'_>) -> Outcome {
    if facts.gpus.is_empty() {
        return Outcome::skip("no GPU");
    }
    let known: Vec<(&Drive, u32)> = drives(facts)
        .iter()
        .filter_map(|drive| Some((drive, drive.metadata_bytes?)))
        .collect();
    if known.is_empty() {
        return Outcome::skip("no drive reports it");
    }
    match known.iter().find(|(_, bytes)| *bytes > 0) {
        None => Outcome::pass("none"),
        Some((drive, bytes)) => {
            let name = &drive.name;
            Outcome::fail(format!("{name} is formatted with {bytes} bytes of metadata per block")).mend(format!(
                "save the data, then (this erases the drive) sudo nvme format --lbaf=0 {}",
                shell_word(&format!("/dev/{name}"))
            ))
        }
    }
}

fn look_queue(facts: &Facts<'_>) -> Outcome {
    let queues: Vec<(&Drive, u32)> = drives(facts)
        .iter()
        .filter(|drive| drive.kind == DriveKind::Nvme)
        .filter_map(|drive| Some((drive, drive.nr_requests?)))
        .collect();
    let short: Vec<&(&Drive, u32)> = queues
        .iter()
        .filter(|(_, requests)| *requests < NR_REQUESTS_MIN)
        .collect();
    if queues.is_empty() {
        return Outcome::skip("no NVMe drive");
    }
    if short.is_empty() {
        return Outcome::pass(format!("{NR_REQUESTS_MIN} requests or more"));
    }
    let mend = short
        .iter()
        .map(|(drive, _)| {
            let queue = format!("/sys/block/{}/queue/nr_requests", drive.name);
            format!("echo {NR_REQUESTS_MIN} | sudo tee {}", shell_word(&queue))
        })
        .collect::<Vec<_>>()
        .join("; ");
    let seen = short
        .iter()
        .map(|(drive, requests)| format!("{} queues {requests}", drive.name));
    Outcome::warn(list(seen)).mend(mend)
}

fn look_link(facts: &Facts<'_>) -> Outcome {
    let links: Vec<_> = drives(facts)
        .iter()
        .filter(|drive| drive.kind == DriveKind::Nvme)
        .filter_map(|drive| Some((drive, facts.topology.device(drive.pci?)?.link?)))
        .collect();
    let narrow: Vec<String> = links
        .iter()
        .filter(|(_, link)| link.is_narrow())
        .map(|(drive, link)| format!("{} runs on {} of {} lanes", drive.name, link.width, link.width_max))
        .collect();
    if links.is_empty() {
        Outcome::skip("no NVMe drive, or link not reported")
    } else if narrow.is_empty() {
        Outcome::pass("all lanes in use")
    } else {
        Outcome::warn(list(narrow.into_iter()))
    }
}

/// Each drive is judged by its nearest GPU: a drive far from all GPUs always crosses sockets.
fn look_distance(facts: &Facts<'_>) -> Outcome {
    let distances: Vec<(&Drive, Distance)> = drives(facts)
        .iter()
        .filter_map(|drive| {
            let pci = drive.pci?;
            let gpus = facts.gpus.iter();
            let nearest = gpus.map(|gpu| facts.topology.distance(gpu.address, pci)).min()?;
            Some((drive, nearest))
        })
        .collect();
    let Some(farthest) = distances.iter().map(|(_, distance)| *distance).max() else {
        return Outcome::skip("no GPU, or no local drive");
    };
    if farthest < Distance::Across {
        return Outcome::pass(farthest.to_string());
    }
    let far = distances
        .iter()
        .filter(|(_, distance)| *distance == Distance::Across)
        .map(|(drive, _)| drive.name.clone())
        .collect::<Vec<_>>();
    Outcome::warn(format!("no GPU on the socket of {}", list(far.into_iter())))
}
