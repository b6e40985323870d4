//! The proofs, by boot, kernel, drive, provider and direction: in memory, and in a file if there is one.
//!
//! The file has one line per proof. Proofs of another boot or kernel are dropped when the next proof is added.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use straightway_core::{Leg, PciAddress};
use straightway_sys::root::Root;

use super::drive::Drive;

/// The most proofs that are kept; further lines of a file are ignored.
const PROOFS_MAX: usize = 4096;

/// The scope of a proof.
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

/// Proofs, as lines.
#[derive(Debug, Default)]
pub(super) struct ProofCache {
    lines: BTreeSet<String>,
    path: Option<PathBuf>,
}

impl ProofCache {
    /// The proofs in a file, to which new ones are added.
    pub(super) fn at(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines = text.lines().take(PROOFS_MAX).map(str::to_owned).collect();
        Self {
            lines,
            path: Some(path),
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        // Without a boot ID, the machine may have been rebooted.
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

/// Replaces the file atomically.
fn write(path: &Path, lines: &BTreeSet<String>) -> std::io::Result<()> {
    let folder = path.parent().ok_or(std::io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let mut file = tempfile(folder)?;
    for line in lines {
        writeln!(file.1, "{line}")?;
    }
    fs::rename(&file.0, path)
}

/// Creates a private temporary file in a folder.
fn tempfile(folder: &Path) -> std::io::Result<(PathBuf, fs::File)> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = folder.join(format!(".{:016x}", straightway_sys::nonce::nonce()));
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path)?;
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
        let mut cache = ProofCache::at(path.clone());
        assert!(!cache.has(&key("a", Leg::Read)));
        cache.add(&key("a", Leg::Read));
        let cache = ProofCache::at(path.clone());
        assert!(cache.has(&key("a", Leg::Read)));
        for other in [key("a", Leg::Write), key("b", Leg::Read), key("", Leg::Read)] {
            assert!(!cache.has(&other), "{other:?}");
        }
        let mut cache = ProofCache::at(path.clone());
        cache.add(&key("b", Leg::Read));
        assert!(!ProofCache::at(path).has(&key("a", Leg::Read)), "that boot is over");
    }

    #[test]
    fn without_a_boot_id_no_proof_holds() {
        let mut cache = ProofCache::default();
        cache.add(&key("", Leg::Read));
        assert!(!cache.has(&key("", Leg::Read)));
    }
}
