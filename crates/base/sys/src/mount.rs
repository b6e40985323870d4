//! The mount table: the file system of a path.
//!
//! It is read from /proc/self/mountinfo, not /proc/mounts, because that has the device number and the
//! mounted folder of the file system, which distinguish bind mounts and btrfs subvolumes.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use straightway_core::{Error, ErrorKind, Result};

use crate::root::Root;

/// The number of a block device, such as `254:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Converts a device number from `stat(2)`.
    pub fn of(device: u64) -> Self {
        Self {
            major: rustix::fs::major(device),
            minor: rustix::fs::minor(device),
        }
    }

    /// Whether it has no block device: tmpfs, overlayfs, NFS, btrfs subvolumes.
    pub fn is_anonymous(self) -> bool {
        self.major == 0
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.trim().split_once(':').and_then(|(major, minor)| {
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            Some(Self { major, minor })
        });
        let message = "expected MAJOR:MINOR";
        parsed.ok_or_else(|| Error::new(ErrorKind::Corrupt, "read", format!("{text:?}"), message))
    }
}

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device number; anonymous if there is no block device.
    pub device: DeviceNumber,
    /// The folder of the file system that is mounted: `/`, unless it is a bind mount or a part of a hierarchy.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The file system type, such as `ext4`.
    pub file_system: String,
    /// The source: `/dev/nvme0n1p1`, `server:/export`, `tmpfs`.
    pub source: String,
    /// The options of the mount and of the file system, in that order, without repeats.
    pub options: Vec<String>,
}

impl Mount {
    /// The value of the option `name`; empty for an option without a value, such as `ro`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key == name).then_some(value)
        })
    }
}

/// The mount table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the mounts that this process sees.
    pub fn read(root: &Root) -> Result<Self> {
        let bytes = root.read("/proc/self/mountinfo")?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses a mount table. Malformed lines, which the kernel does not write, are skipped.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// The mount that contains `path`, which must be absolute and without links. It is the mount with the
    /// longest mount point; of several on the same point it is the last, which hides the others.
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())
    }

    /// All mounts, in the order in which they were mounted.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }
}

/// `36 35 98:0 /folder /point rw,noatime shared:1 - ext4 /dev/root rw,data=ordered`
fn parse_line(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<&str> = before.split(' ').collect();
    let [_, _, device, root, point, options, ..] = before[..] else {
        return None;
    };
    let mut after = after.split(' ');
    let (file_system, source) = (after.next()?, after.next()?);
    let mut all: Vec<String> = Vec::new();
    for option in options.split(',').chain(after.next()?.split(',')) {
        if !all.iter().any(|known| known == option) {
            all.push(option.to_owned());
        }
    }
    Some(Mount {
        device: device.parse().ok()?,
        root: unescape(root).into(),
        point: unescape(point).into(),
        file_system: file_system.to_owned(),
        source: unescape(source),
        options: all,
    })
}

/// Decodes octal escapes: the kernel writes spaces, tabs, newlines and backslashes as `\040` and so on.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            plain.push(char::from(code));
            plain.push_str(&part[3..]);
        } else {
            plain.push('\\');
            plain.push_str(part);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,data=ordered
23 22 0:22 / /data rw - btrfs /dev/nvme0n1 rw,subvol=/data
24 22 0:30 / /mnt/with\\040blank rw shared:2 master:3 - nfs4 host:/export rw,proto=rdma
25 22 0:31 / /mnt rw - tmpfs first rw
26 22 0:32 / /mnt rw - tmpfs second rw
";

    #[test]
    fn the_longest_mount_point_contains_a_path_and_the_last_of_equals_hides_the_others() {
        let mounts = Mounts::parse(TABLE);
        let source = |path: &str| mounts.holding(Path::new(path)).unwrap().source.clone();
        assert_eq!(source("/data/x"), "/dev/nvme0n1");
        assert_eq!(source("/database"), "/dev/vda1");
        assert_eq!(source("/mnt/x"), "second");
        assert_eq!(source("/mnt/with blank/x"), "host:/export");
    }

    #[test]
    fn a_mount_of_a_folder_names_it() {
        let bind = Mounts::parse("27 22 254:1 /a\\040folder /bind rw - ext4 /dev/vda1 rw");
        let mount = bind.holding(Path::new("/bind/x")).unwrap();
        assert_eq!(mount.root, Path::new("/a folder"));
    }

    #[test]
    fn options_of_the_mount_and_of_the_file_system_are_both_found() {
        let mounts = Mounts::parse(TABLE);
        let ext4 = mounts.holding(Path::new("/x")).unwrap();
        assert_eq!(ext4.option("data"), Some("ordered"));
        assert_eq!(ext4.option("relatime"), Some(""));
        assert_eq!(ext4.option("dat"), None);
        assert_eq!(ext4.options.iter().filter(|o| *o == "rw").count(), 1);
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for text in ["", "x", "1 2 3", "1 2 8:1 / / rw - ext4", "1 2 8 / / rw - ext4 a b"] {
            assert_eq!(Mounts::parse(text), Mounts::default());
        }
        assert_eq!(unescape("a\\040b\\9\\"), "a b\\9\\");
    }
}
