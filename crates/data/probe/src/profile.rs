//! The results of `bench` on this machine, stored as TOML. Defaults are taken from them.

use std::{
    collections::BTreeMap,
    env, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::StateFile;
use straightway_sys::{FreeMemory, root::Root};

use crate::{
    backing::Backing,
    bench::{BenchOutcome, Knee, Stage, StageRates},
    machine::Machine,
};

pub use crate::drive_tuning::DriveTuning;

/// The name and version of the file format. Fields may be added: earlier versions ignore them.
const SCHEMA: &str = "straightway.profile/1";

/// The first bytes of every profile.
const PROFILE_MARK: &str = "schema = ";

/// The maximum length of a profile.
const BYTES_MAX: u64 = 1 << 20;

/// The results for the drives of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    schema: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// The results for each set of drives, or for each file system without drives.
    pub drives: BTreeMap<String, DriveProfile>,
}

/// The results for one set of drives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveProfile {
    /// The best settings.
    pub tuning: Option<DriveTuning>,
    /// The latency until the first byte of a read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_latency_s: Option<f64>,
    /// The knee of each curve that was measured.
    pub knees: Vec<Knee>,
    /// The routes and their stages, measured alternately; absent in profiles of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRates>,
    /// A copy on the drive, which reads and writes at once. Not among the stages: earlier versions do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<StageRates>,
    /// The amount of dirty page cache at which the kernel starts background writeback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writeback_start_bytes: Option<u64>,
}

impl DriveTuning {
    /// Returns the settings for the drives behind `path`, if they were measured on this machine.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let Some(place) = Profile::place() else {
            return Ok(None);
        };
        let profile = Profile::read(&place)?;
        // Most machines have no profile, and `Machine::here` is slow where there are many cores.
        if profile.drives.is_empty() {
            return Ok(None);
        }
        // A home directory that several machines share holds the profile of one of them.
        if !profile.machine.is_like(&Machine::here()) {
            return Ok(None);
        }
        // A path that cannot be resolved gets its own error when it is opened.
        let Ok(backing) = Backing::of(&Root::machine(), path) else {
            return Ok(None);
        };
        let drives: Vec<_> = backing.drives.iter().map(|d| d.name.clone()).collect();
        let tuning = profile.tuning(&backing.mount.file_system, &drives);
        if let Some(tuning) = tuning {
            Self::settings(Some(tuning))
                .check()
                .map_err(|error| broken(&place, error.to_string()))?;
        }
        Ok(tuning)
    }
}

impl Profile {
    /// The path of this machine's profile; `None` without a home or state directory.
    pub fn place() -> Option<PathBuf> {
        let folder = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = || Some(folder("HOME")?.join(".local/state"));
        let state = folder("XDG_STATE_HOME").or_else(home)?;
        Some(state.join("straightway/profile.toml"))
    }

    /// Reads a profile. A missing one is empty.
    pub fn read(path: &Path) -> Result<Self> {
        let broken = |message: String| broken(path, message);
        let text = match file_at(path).read() {
            // A path out of reach counts as no profile.
            Err(e) if is_out_of_reach(e.kind()) => return Ok(Self::empty()),
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                return Err(broken(e.to_string()));
            }
            other => other.map_err(|e| Error::os("read", path.display(), e))?,
        };
        Self::parse(&text).map_err(broken)
    }

    /// Parses a profile. The error says why it is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() as u64 > BYTES_MAX {
            return Err("it is too long".to_owned());
        }
        let profile: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        if profile.schema != SCHEMA {
            let schema = &profile.schema;
            return Err(format!("its schema is `{schema}` instead of `{SCHEMA}`"));
        }
        Ok(profile)
    }

    fn empty() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            ..Self::default()
        }
    }

    /// Adds the result of a bench. Results of another machine are removed.
    pub fn add(&mut self, outcome: &BenchOutcome) {
        if self.machine != outcome.machine {
            *self = Self {
                machine: outcome.machine.clone(),
                ..Self::empty()
            };
        }
        let is_copy = |rates: &&StageRates| rates.stage == Stage::DriveCopy;
        let drive = DriveProfile {
            tuning: outcome.tuning(),
            read_latency_s: outcome.read_latency_s(),
            knees: outcome.knees.clone(),
            stages: outcome.stages.iter().filter(|rates| !is_copy(rates)).cloned().collect(),
            copied: outcome.stages.iter().find(is_copy).cloned(),
            writeback_start_bytes: writeback_start_bytes(&Root::machine()),
        };
        let mut key = key(&outcome.file_system, &outcome.drives);
        // Settings for a GPU's ring do not apply to host memory.
        if outcome.memory != "host:" {
            key = format!("{key} to {}", outcome.memory);
        }
        self.drives.insert(key, drive);
    }

    /// The settings for these drives, if they were measured.
    fn tuning(&self, file_system: &str, drives: &[String]) -> Option<DriveTuning> {
        self.drives.get(&key(file_system, drives))?.tuning
    }

    /// Writes the profile to a temporary file and renames it to `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = toml::to_string_pretty(self).expect("a profile is plain data");
        file_at(path).replace(&text)
    }
}

fn file_at(path: &Path) -> StateFile {
    StateFile::new(path.to_owned(), PROFILE_MARK, BYTES_MAX)
}

/// Whether an error means that this user has no profile.
fn is_out_of_reach(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(kind, NotFound | NotADirectory | PermissionDenied)
}

/// The error for an unusable profile.
fn broken(path: &Path, message: String) -> Error {
    Error::new(ErrorKind::Corrupt, "use the profile", path.display(), message)
        .with_hint("remove it, and `straightway bench` makes a new one")
}

/// The amount of dirty page cache at which the kernel starts background writeback: a number of bytes, or a share of
/// the available memory.
fn writeback_start_bytes(root: &Root) -> Option<u64> {
    let set = |name: &str| root.value::<u64>(format!("/proc/sys/vm/{name}"));
    if let Some(bytes) = set("dirty_background_bytes").filter(|bytes| *bytes > 0) {
        return Some(bytes);
    }
    let percent = set("dirty_background_ratio")?;
    Some(FreeMemory::of(root)?.bytes / 100 * percent)
}

/// The key of a set of drives in a profile.
pub(crate) fn key(file_system: &str, drives: &[String]) -> String {
    if drives.is_empty() {
        file_system.to_owned()
    } else {
        drives.join("+")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_missing_profile_is_empty_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/profile.toml");
        let mut profile = Profile::read(&path).unwrap();
        assert_eq!(profile.tuning("ext4", &["vda".to_owned()]), None);
        let tuning = DriveTuning {
            chunk_bytes: 1 << 20,
            depth: 8,
            ring_first: false,
            rate_bytes_per_s: Some(2_000_000_000),
        };
        let drive = DriveProfile {
            tuning: Some(tuning),
            read_latency_s: Some(80e-6),
            knees: Vec::new(),
            stages: Vec::new(),
            copied: None,
            writeback_start_bytes: None,
        };
        profile.drives.insert("vda".to_owned(), drive);
        profile.write(&path).unwrap();
        let again = Profile::read(&path).unwrap();
        assert_eq!(again.tuning("ext4", &["vda".to_owned()]), Some(tuning));
        assert_eq!(again.drives["vda"].read_latency_s, Some(80e-6));
        for text in ["schema = 7", "zzz", "schema = \"other/9\"\nmachine = {}\ndrives = {}"] {
            fs::write(&path, text).unwrap();
            let error = Profile::read(&path).unwrap_err();
            assert!(error.hint().is_some_and(|h| h.contains("bench")), "{error}");
        }
    }
}
