//! Checks of the file system that holds the path.

use std::path::Path;

use straightway_core::text::shell_word;
use straightway_io::peer::{MD_MIN, major_minor};
use straightway_sys::mount::Mount;

use super::{
    check::{Check, Layer, Outcome},
    cufile_path::{ADVICE, ALL_PATHS, DIRECT, NVIDIA_FS, P2PDMA},
    facts::Facts,
};
use crate::backing::{Backing, LayerKind};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "storage.path",
        layer: Layer::Storage,
        title: "path",
        ways: ALL_PATHS,
        why: "the other checks examine its file system and its drives",
        mend: "give a path that exists: straightway doctor PATH",
        look: look_path,
    },
    Check {
        id: "storage.file_system",
        layer: Layer::Storage,
        title: "file system",
        ways: DIRECT,
        why: "the direct path works on ext4 and XFS on NVMe, on NFS over RDMA, and on parallel file \
              systems that support it; memory, overlay and FUSE file systems have no device to read from",
        mend: "put the data on ext4 or XFS on an NVMe drive; in a container mount it as a volume \
               (`-v /data:/data`) instead of reading the image's overlay",
        look: look_file_system,
    },
    Check {
        id: "storage.journal",
        layer: Layer::Storage,
        title: "ext4 data mode",
        ways: DIRECT,
        why: "GPUDirect Storage supports ext4 with data=ordered; with data=journal every byte is \
              copied through the page cache",
        mend: "sudo umount /MOUNT && sudo mount -o data=ordered /dev/DRIVE /MOUNT",
        look: look_journal,
    },
    Check {
        id: "storage.options",
        layer: Layer::Storage,
        title: "mount options",
        ways: ADVICE,
        why: "sync makes each write wait for the drive",
        mend: "sudo mount -o remount,async /MOUNT",
        look: look_options,
    },
    Check {
        id: "storage.nfs",
        layer: Layer::Storage,
        title: "NFS over RDMA",
        ways: DIRECT,
        why: "over TCP each byte is copied out of socket buffers; only proto=rdma can reach GPU memory",
        mend: "sudo mount -o proto=rdma,port=20049,vers=4.2 SERVER:/EXPORT /MOUNT",
        look: look_nfs,
    },
    Check {
        id: "storage.direct",
        layer: Layer::Storage,
        title: "O_DIRECT",
        ways: DIRECT,
        why: "a file that refuses O_DIRECT is read through the page cache",
        mend: "put the data on a file system that supports O_DIRECT",
        look: look_direct,
    },
    Check {
        id: "storage.attributes",
        layer: Layer::Storage,
        title: "file attributes",
        ways: ALL_PATHS,
        why: "cuFile refuses compressed and encrypted files: the drive holds different bytes",
        mend: "copy the file to a folder without compression or encryption",
        look: look_attributes,
    },
    Check {
        id: "storage.layers",
        layer: Layer::Storage,
        title: "block layers",
        ways: DIRECT,
        why: "encryption, LVM, parity RAID and loop devices process each byte or hide the drive; RAID \
              0 and 1 work with nvidia-fs, and with P2PDMA since Linux 7.2",
        mend: "put the file system directly on an NVMe drive or partition, or on RAID 0 with \
               nvidia-fs",
        look: look_layers,
    },
    Check {
        id: "storage.raid_rule",
        layer: Layer::Storage,
        title: "RAID in udev",
        ways: NVIDIA_FS,
        why: "cuFile reads a RAID's level from MD_LEVEL in udev's database and refuses it if missing",
        mend: "add `IMPORT{program}=\"/usr/sbin/mdadm --detail --export $devnode\"` for md devices to \
               /lib/udev/rules.d/63-md-raid-arrays.rules, then sudo udevadm trigger",
        look: look_raid_rule,
    },
    Check {
        id: "storage.udev",
        layer: Layer::Storage,
        title: "udev database",
        ways: ALL_PATHS,
        why: "cuFile reads ID_FS_USAGE of the device from udev's database; without the entry \
              cuFileHandleRegister fails with 5027 on every file, compat mode included",
        mend: "sudo udevadm trigger --action=change --subsystem-match=block; in a container add \
               -v /run/udev:/run/udev:ro",
        look: look_udev,
    },
];

/// The storage behind the path, or an outcome if it could not be found.
fn behind<'a>(facts: &'a Facts<'_>) -> Result<&'a Backing, Outcome> {
    facts
        .backing()
        .ok_or_else(|| Outcome::skip("the path could not be resolved"))
}

fn look_path(facts: &Facts<'_>) -> Outcome {
    match &facts.backing {
        Err(e) => Outcome::fail(e.to_string()),
        Ok(backing) => {
            let Mount {
                file_system,
                source,
                point,
                ..
            } = &backing.mount;
            Outcome::pass(format!("{file_system} on {source}, mounted at {}", point.display()))
        }
    }
}

/// The support of a file system by GPUDirect Storage.
enum Support {
    /// Both direct paths, if the drive allows it.
    Local,
    /// nvidia-fs or RDMA from user space, with the vendor's client.
    Vendor,
    /// None, and the reason.
    None(&'static str),
}

fn support(file_system: &str) -> Support {
    match file_system {
        "ext4" | "xfs" => Support::Local,
        "nfs" | "nfs4" | "lustre" | "gpfs" | "wekafs" | "beegfs" | "virtiofs" | "scatefs" => Support::Vendor,
        "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => Support::None("it is memory"),
        "overlay" | "aufs" => Support::None("it is an overlay, as in a container"),
        "squashfs" | "erofs" => Support::None("it is compressed"),
        name if name.starts_with("fuse") => Support::None("it is served by a process"),
        "9p" | "cifs" | "smb3" | "ceph" => Support::None("its client copies through host memory"),
        _ => Support::None("GPUDirect Storage does not support it"),
    }
}

fn look_file_system(facts: &Facts<'_>) -> Outcome {
    let backing = match behind(facts) {
        Ok(backing) => backing,
        Err(outcome) => return outcome,
    };
    if facts.gpus.is_empty() {
        return Outcome::skip(format!("{}; no GPU", backing.mount.file_system));
    }
    let name = &backing.mount.file_system;
    match support(name) {
        Support::Local => Outcome::pass(name.clone()),
        Support::Vendor => Outcome::fail(format!("{name} works with nvidia-fs, not with P2PDMA")).closes(P2PDMA),
        Support::None(why) => Outcome::fail(format!("the path is on {name}: {why}")),
    }
}

fn look_journal(facts: &Facts<'_>) -> Outcome {
    let backing = match behind(facts) {
        Ok(backing) if backing.mount.file_system == "ext4" => backing,
        Ok(_) => return Outcome::skip("not ext4"),
        Err(outcome) => return outcome,
    };
    // The mount table omits defaults; ext4's own file does not.
    let name = Path::new(&backing.mount.source).file_name().unwrap_or_default();
    let own = facts
        .root
        .text(Path::new("/proc/fs/ext4").join(name).join("options"))
        .unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("data="));
    match backing.mount.option("data").or(own) {
        Some("ordered") => Outcome::pass("data=ordered"),
        None => Outcome::pass("data=ordered, by default"),
        Some(mode) => {
            let Mount { source, point, .. } = &backing.mount;
            let (point, source) = (point.to_string_lossy(), shell_word(source));
            let point = shell_word(&point);
            Outcome::fail(format!("ext4 is mounted with data={mode}")).mend(format!(
                "sudo umount {point} && sudo mount -o data=ordered {source} {point}"
            ))
        }
    }
}

fn look_options(facts: &Facts<'_>) -> Outcome {
    let mount = match behind(facts) {
        Ok(backing) => &backing.mount,
        Err(outcome) => return outcome,
    };
    if mount.option("sync").is_some() {
        let point = mount.point.display();
        Outcome::warn(format!("{point} is mounted with sync")).mend(format!(
            "sudo mount -o remount,async {}",
            shell_word(&point.to_string())
        ))
    } else {
        Outcome::pass(mount.options.join(","))
    }
}

fn look_nfs(facts: &Facts<'_>) -> Outcome {
    let mount = match behind(facts) {
        Ok(backing) => &backing.mount,
        Err(outcome) => return outcome,
    };
    if !mount.file_system.starts_with("nfs") {
        return Outcome::skip("not NFS");
    }
    let mend = format!(
        "sudo umount {point} && sudo mount -o proto=rdma,port=20049,vers=4.2 {} {point}",
        shell_word(&mount.source),
        point = shell_word(&mount.point.to_string_lossy())
    );
    match mount.option("proto") {
        Some("rdma") => Outcome::pass("proto=rdma"),
        Some(other) => Outcome::fail(format!("NFS is mounted over {other}")).mend(mend),
        None => Outcome::warn("the transport is not reported").mend(mend),
    }
}

fn look_direct(facts: &Facts<'_>) -> Outcome {
    let Some(read) = &facts.measured.host else {
        return Outcome::skip("visible only on the live machine");
    };
    match (&read.error, read.memory_align_bytes, read.offset_align_bytes) {
        (_, Some(0), _) | (_, _, Some(0)) => Outcome::fail("the file refuses O_DIRECT"),
        (Some(error), ..) if read.is_refused => Outcome::fail(error.clone()),
        // A file that cannot be opened at all says nothing about O_DIRECT.
        (Some(error), ..) => Outcome::skip(error.clone()),
        (None, Some(memory), Some(offset)) => {
            Outcome::pass(format!("aligned to {memory} in memory, {offset} in the file"))
        }
        (None, ..) => Outcome::pass("works; the alignment is not reported"),
    }
}

fn look_attributes(facts: &Facts<'_>) -> Outcome {
    let Some(read) = &facts.measured.host else {
        return Outcome::skip("visible only on the live machine");
    };
    let refused: Vec<&str> = ["compressed", "encrypted"]
        .into_iter()
        .filter(|name| read.attributes.contains(name))
        .collect();
    if refused.is_empty() {
        Outcome::pass("neither compressed nor encrypted")
    } else {
        Outcome::fail(format!("the file is {}", refused.join(" and ")))
    }
}

fn look_layers(facts: &Facts<'_>) -> Outcome {
    let backing = match behind(facts) {
        Ok(backing) => backing,
        Err(outcome) => return outcome,
    };
    if facts.gpus.is_empty() || backing.drives.is_empty() {
        return Outcome::skip("no GPU, or no drive");
    }
    let mut raid = None;
    for layer in &backing.layers {
        let name = &layer.name;
        match &layer.kind {
            LayerKind::Partition => {}
            LayerKind::Raid(level) if matches!(level.as_str(), "raid0" | "raid1") => {
                let kernel = facts.kernel.release.as_deref().and_then(major_minor);
                if kernel.is_none_or(|version| version < MD_MIN) {
                    raid = Some(format!(
                        "{name} is {level}: works with nvidia-fs; P2PDMA needs Linux 7.2"
                    ));
                }
            }
            LayerKind::Raid(level) => return Outcome::fail(format!("{name} is {level}")),
            LayerKind::Mapper(made_by) if made_by == "CRYPT" => {
                return Outcome::fail(format!("{name} is encrypted"));
            }
            LayerKind::Mapper(made_by) => {
                return Outcome::fail(format!("{name} is a device mapping ({made_by})"));
            }
            LayerKind::Loop(file) => {
                return Outcome::fail(format!("{name} is the file {}", file.display()));
            }
        }
    }
    match raid {
        Some(seen) => Outcome::fail(seen).closes(P2PDMA),
        None => Outcome::pass("file system directly on the drive"),
    }
}

fn look_raid_rule(facts: &Facts<'_>) -> Outcome {
    let backing = match behind(facts) {
        Ok(backing) if !facts.gpus.is_empty() => backing,
        Ok(_) => return Outcome::skip("no GPU"),
        Err(outcome) => return outcome,
    };
    let raid = backing
        .layers
        .iter()
        .find(|layer| matches!(layer.kind, LayerKind::Raid(_)));
    let Some(raid) = raid else {
        return Outcome::skip("no RAID");
    };
    let number = facts.root.text(format!("/sys/class/block/{}/dev", raid.name));
    let entry = number.and_then(|number| facts.root.text(format!("/run/udev/data/b{number}")));
    match entry {
        None => Outcome::skip("no entry in udev's database"),
        Some(entry) if entry.contains("E:MD_LEVEL=") => Outcome::pass("MD_LEVEL is known"),
        Some(_) => Outcome::fail(format!("udev does not know the level of {}", raid.name)),
    }
}

/// Without this entry, the registration of any file fails with error 5027, and the log mentions `ID_FS_USAGE` only at
/// a level that is normally off.
fn look_udev(facts: &Facts<'_>) -> Outcome {
    let backing = match behind(facts) {
        Ok(backing) if !facts.gpus.is_empty() => backing,
        Ok(_) => return Outcome::skip("no GPU"),
        Err(outcome) => return outcome,
    };
    let Some(device) = backing.device else {
        return Outcome::skip("no block device behind the path");
    };
    let entry = format!("/run/udev/data/b{device}");
    let has_database = facts.root.exists("/run/udev/data");
    let text = facts.root.text(&entry).unwrap_or_default();
    if text.lines().any(|line| line.starts_with("E:ID_FS_USAGE=filesystem")) {
        return Outcome::pass(format!("{entry} has ID_FS_USAGE"));
    }
    let by_hand = format!(
        "sudo mkdir -p /run/udev/data && printf {} | sudo tee {entry}",
        shell_word(&format!(
            "E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE={}\\n",
            backing.mount.file_system
        ))
    );
    let seen = match (has_database, facts.root.exists(&entry)) {
        (false, _) => "there is no udev database (/run/udev/data)".to_owned(),
        (true, false) => format!("udev's database has no entry {entry}"),
        (true, true) => format!("{entry} has no ID_FS_USAGE"),
    };
    Outcome::fail(seen).mend(if facts.is_container.is_some() {
        format!("docker run -v /run/udev:/run/udev:ro …; if no udev runs: {by_hand}")
    } else {
        format!("sudo udevadm trigger --action=change; if no udev runs: {by_hand}")
    })
}
