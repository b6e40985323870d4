//! What was proven, by boot, kernel, drive, provider and direction: in memory, and in a file where there is one.
//!
//! A line for each. A proof of another boot or kernel is of no use, and is dropped with the next that is added.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use straightway_core::{Leg, PciAddress};
use straightway_sys::root::Root;

use super::drive::Drive;

/// The most proofs that are kept; a file with more is not ours.
const PROOFS_MAX: usize = 4096;

/// What a proof holds for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) boot: String,
    pub(super) kernel: String,
    pub(super) drive: String,
    pub(super) provider: String,
    pub(super) leg: Leg,
}

impl Key {
    pub(super) fn new(root: &Root, drive: &Drive, provider: PciAddress, leg: Leg) -> Self {
        let text = |path: &str| root.text(path).unwrap_or_default().trim().to_owned();
        Self {
            boot: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/osrelease"),
            drive: drive.identity.clone(),
            provider: provider.to_string(),
            leg,
        }
    }

    fn line(&self) -> String {
        let (boot, kernel, leg) = (&self.boot, &self.kernel, self.leg);
        format!("{boot}\t{kernel}\t{leg}\t{}\t{}", self.provider, self.drive)
    }
}

/// Proofs, as their lines.
#[derive(Debug, Default)]
pub(super) struct Kept {
    lines: BTreeSet<String>,
    path: Option<PathBuf>,
}

impl Kept {
    /// Those in a file, and where more go.
    pub(super) fn at(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().take(PROOFS_MAX).map(str::to_owned).collect();
        Self {
            lines,
            path: Some(path),
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        // Without a boot's number nothing says that the machine is the same.
        !key.boot.is_empty() && self.lines.contains(&key.line())
    }

    pub(super) fn add(&mut self, key: &Key) {
        let now = format!("{}\t{}\t", key.boot, key.kernel);
        self.lines.retain(|line| line.starts_with(&now));
        if self.lines.len() < PROOFS_MAX {
            self.lines.insert(key.line());
        }
        if let Some(path) = &self.path
            && let Err(error) = write(path, &self.lines)
        {
            tracing::debug!(%error, path = %path.display(), "proofs of peer-to-peer DMA are not kept");
        }
    }
}

/// Replaces the file as a whole.
fn write(path: &Path, lines: &BTreeSet<String>) -> std::io::Result<()> {
    let folder = path.parent().ok_or(std::io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let mut file = tempfile(folder)?;
    for line in lines {
        writeln!(file.1, "{line}")?;
    }
    fs::rename(&file.0, path)
}

/// A new file of a folder, which nobody else may read.
fn tempfile(folder: &Path) -> std::io::Result<(PathBuf, fs::File)> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!(".{:016x}", straightway_sys::nonce::nonce()));
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(boot: &str, leg: Leg) -> Key {
        Key {
            boot: boot.to_owned(),
            kernel: "7.2.12".to_owned(),
            drive: "nvme0n1 serial".to_owned(),
            provider: "0000:04:00.0".to_owned(),
            leg,
        }
    }

    #[test]
    fn a_proof_holds_for_its_boot_and_direction_and_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/p2p");
        let mut kept = Kept::at(path.clone());
        assert!(!kept.has(&key("a", Leg::Read)));
        kept.add(&key("a", Leg::Read));
        let kept = Kept::at(path.clone());
        assert!(kept.has(&key("a", Leg::Read)));
        for other in [
            key("a", Leg::Write),
            key("b", Leg::Read),
            key("", Leg::Read),
        ] {
            assert!(!kept.has(&other), "{other:?}");
        }
        let mut kept = Kept::at(path.clone());
        kept.add(&key("b", Leg::Read));
        assert!(
            !Kept::at(path).has(&key("a", Leg::Read)),
            "that boot is over"
        );
    }

    #[test]
    fn without_the_number_of_the_boot_nothing_is_known() {
        let mut kept = Kept::default();
        kept.add(&key("", Leg::Read));
        assert!(!kept.has(&key("", Leg::Read)));
    }
}
