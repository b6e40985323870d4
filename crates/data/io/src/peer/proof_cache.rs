//! The proofs, by boot, kernel, drive, provider and direction: in memory, and in a file if there is one.
//!
//! The file has one line per proof. Proofs of another boot or kernel are dropped when the next proof is added.

use std::{collections::BTreeSet, path::PathBuf};

use straightway_core::{Leg, PciAddress};
use straightway_sys::root::Root;

use super::drive::Drive;
use crate::StateFile;

/// The most proofs that are kept; further lines of a file are ignored.
const PROOFS_MAX: usize = 4096;

/// The maximum length of the file: as many proofs of 256 bytes, which is more than twice their usual length.
const BYTES_MAX: u64 = (PROOFS_MAX * 256) as u64;

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
    file: Option<StateFile>,
}

impl ProofCache {
    /// The proofs in a file, to which new ones are added.
    pub(super) fn at(path: PathBuf) -> Self {
        // The lines have no mark: an older file begins with the identity of a boot.
        let file = StateFile::new(path, "", BYTES_MAX);
        let text = file.read().unwrap_or_default();
        let lines = text.lines().take(PROOFS_MAX).map(str::to_owned).collect();
        Self {
            lines,
            file: Some(file),
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
        let text: String = self.lines.iter().flat_map(|line| [line, "\n"]).collect();
        if let Some(file) = &self.file
            && let Err(error) = file.replace(&text)
        {
            tracing::debug!(%error, "proofs of peer-to-peer DMA are not kept");
        }
    }
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
