//! Resolves a path to its mount, its file system and its drives.
//!
//! The chain is mount → block device → partition, RAID, device mapper or loop → drive → PCI function → NUMA node. It
//! ends early for file systems without a device: memory, network, overlay. A path that does not exist yet is resolved
//! by its nearest existing parent, where a write would create it.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use straightway_core::{Error, ErrorKind, Result};

use straightway_sys::{
    mount::{DeviceNumber, Mount, Mounts},
    root::{Root, name},
};

use crate::drive::Drive;

/// The maximum depth of stacked block devices: file on loop on LVM on RAID on partition is five.
const LAYERS_MAX: usize = 16;

/// A block device between a file system and its drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingLayer {
    /// The block device's name, such as `md0` or `nvme0n1p2`.
    pub name: String,
    /// Its kind.
    pub kind: LayerKind,
}

/// The kind of a stacked block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// A part of a drive.
    Partition,
    /// Linux software RAID, with its level, such as `raid0`.
    Raid(String),
    /// Device mapper: LVM, encryption, multipath; with the prefix of its identifier, such as `CRYPT`.
    Mapper(String),
    /// A loop device, with its backing file.
    Loop(PathBuf),
}

/// The storage behind a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The requested path, absolute, with links resolved as far as it exists.
    pub path: PathBuf,
    /// The mount that holds it.
    pub mount: Mount,
    /// The block device the file system is on; none for memory, network and overlay.
    pub device: Option<DeviceNumber>,
    /// The block devices between the file system and the drives, from the top.
    pub layers: Vec<BackingLayer>,
    /// The drives, each once; empty for a file system without a device.
    pub drives: Vec<Drive>,
}

impl Backing {
    /// Finds the storage behind `path`.
    pub fn of(root: &Root, path: &Path) -> Result<Self> {
        let path = absolute(root, path)?;
        let mounts = Mounts::read(root)?;
        let mut descent = Descent {
            root,
            mounts: &mounts,
            layers: Vec::new(),
            drives: Vec::new(),
        };
        let (mount, folders) = descent.locate(&path).ok_or_else(|| {
            let why = "no mount holds it";
            Error::new(ErrorKind::NotFound, "find the device of", path.display(), why)
        })?;
        for folder in &folders {
            descent.enter(folder, 0);
        }
        let (layers, drives) = (descent.layers, descent.drives);
        let device = folders.first().and_then(|folder| root.value(folder.join("dev")));
        Ok(Self {
            path,
            mount,
            device,
            layers,
            drives,
        })
    }
}

/// Makes a path absolute. Only the live machine has a current folder.
fn absolute(root: &Root, path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::os("find the device of", path.display(), e);
    let path = if root.is_machine() {
        std::path::absolute(path).map_err(failed)?
    } else {
        Path::new("/").join(path)
    };
    Ok(root.reach(path))
}

/// The walk from a mount to its drives, with the layers and drives found so far.
struct Descent<'a> {
    root: &'a Root,
    mounts: &'a Mounts,
    layers: Vec<BackingLayer>,
    drives: Vec<Drive>,
}

impl Descent<'_> {
    /// The mount that holds `path`, and the sysfs folders of the block devices it is on.
    fn locate(&self, path: &Path) -> Option<(Mount, Vec<PathBuf>)> {
        let mount = self.mounts.holding(path)?.clone();
        if let Some(device) = self.device_node(path) {
            let folder = self.folder(device);
            return Some((mount, folder.into_iter().collect()));
        }
        let folders = if mount.device.is_anonymous() {
            self.by_source(&mount)
        } else {
            self.folder(mount.device).into_iter().collect()
        };
        Some((mount, folders))
    }

    /// The device number of `path` if it is a block device, as in `bench /dev/nvme0n1`.
    fn device_node(&self, path: &Path) -> Option<DeviceNumber> {
        let metadata = fs::metadata(self.root.outside(path)?).ok()?;
        let is_device = metadata.file_type().is_block_device();
        is_device.then(|| DeviceNumber::of(metadata.rdev()))
    }

    fn folder(&self, device: DeviceNumber) -> Option<PathBuf> {
        self.root.resolve(format!("/sys/dev/block/{device}"))
    }

    /// btrfs mounts have anonymous device numbers: the source names one of the devices, sysfs the others.
    fn by_source(&self, mount: &Mount) -> Vec<PathBuf> {
        let Some(node) = mount.source.strip_prefix("/dev/") else {
            return Vec::new();
        };
        let node = name(&self.root.reach(Path::new("/dev").join(node)));
        let class = Path::new("/sys/class/block");
        let pool = self
            .root
            .list("/sys/fs/btrfs")
            .into_iter()
            .map(|id| self.root.list(format!("/sys/fs/btrfs/{id}/devices")))
            .find(|names| names.contains(&node));
        pool.unwrap_or_else(|| vec![node])
            .iter()
            .filter_map(|name| self.root.resolve(class.join(name)))
            .collect()
    }

    /// Walks down from the block device with this resolved sysfs folder.
    fn enter(&mut self, folder: &Path, depth: usize) {
        if depth == LAYERS_MAX {
            return;
        }
        let root = self.root;
        if root.exists(folder.join("partition")) {
            self.push_layer(folder, LayerKind::Partition);
            if let Some(whole) = folder.parent() {
                self.enter(whole, depth + 1);
            }
            return;
        }
        if let Some(file) = root.text(folder.join("loop/backing_file")) {
            let file = PathBuf::from(file);
            self.push_layer(folder, LayerKind::Loop(file.clone()));
            let below = self.locate(&root.reach(&file));
            for folder in below.map(|(_, folders)| folders).unwrap_or_default() {
                self.enter(&folder, depth + 1);
            }
            return;
        }
        let slaves = folder.join("slaves");
        let below: Vec<PathBuf> = root
            .list(&slaves)
            .into_iter()
            .filter_map(|name| root.resolve(slaves.join(name)))
            .collect();
        if below.is_empty() {
            self.push_drive(folder);
            return;
        }
        let kind = match root.text(folder.join("md/level")) {
            Some(level) => LayerKind::Raid(level),
            None => LayerKind::Mapper(mapper(root, folder)),
        };
        self.push_layer(folder, kind);
        for folder in below {
            self.enter(&folder, depth + 1);
        }
    }

    /// Adds a layer, once even if it is reached twice, as with LVM over both halves of a RAID.
    fn push_layer(&mut self, folder: &Path, kind: LayerKind) {
        let name = name(folder);
        if !self.layers.iter().any(|layer| layer.name == name) {
            self.layers.push(BackingLayer { name, kind });
        }
    }

    fn push_drive(&mut self, folder: &Path) {
        let name = name(folder);
        if !self.drives.iter().any(|drive| drive.name == name) {
            self.drives.push(Drive::read(self.root, folder));
        }
    }
}

/// `CRYPT-LUKS2-…` and `LVM-…`: the part before the first dash says what made the mapping.
fn mapper(root: &Root, folder: &Path) -> String {
    let id = root.text(folder.join("dm/uuid")).unwrap_or_default();
    let prefix = id.split('-').next().unwrap_or_default();
    prefix.to_owned()
}

#[cfg(test)]
mod tests;
