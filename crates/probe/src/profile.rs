//! What `bench` found out about this machine, kept as TOML, from which defaults are then taken.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use straightway_core::{Alignment, Error, Kind, Rate, Result, extent::down};
use straightway_io::{ReportFile, Settings};
use straightway_sys::{limit::available_memory, plain_file::open_plain, root::Root};

use crate::{
    backing::Backing,
    bench::{Knee, Outcome, StageRates},
    machine::Machine,
};

/// The name and version of the file's form. Fields may be added to it: an earlier version reads past them.
const SCHEMA: &str = "straightway.profile/1";

/// What every profile starts with.
const PROFILE_MARK: &str = "schema = ";

/// Chunks are whole pages.
const PAGE_BYTES: u64 = Alignment::PAGE_BYTES;

/// A profile longer than this is none of ours.
const BYTES_MAX: u64 = 1 << 20;

/// What was found out about one machine's drives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    schema: String,
    /// The machine that it was measured on.
    pub machine: Machine,
    /// What is known of each drive, or for one without drives, each file system.
    pub drives: BTreeMap<String, DriveProfile>,
}

/// What is known of one drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveProfile {
    /// What suits it.
    pub tuning: Option<Tuning>,
    /// How long it takes before the first byte of a read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_latency_s: Option<f64>,
    /// The knee of each curve that was measured.
    pub knees: Vec<Knee>,
    /// The routes and their stages, measured in turn; absent in profiles of versions that did not measure them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRates>,
    /// How much of the page cache may be dirty before the kernel begins to write it back by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writeback_start_bytes: Option<u64>,
}

/// The sizes that suit a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tuning {
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// I/Os in flight.
    pub depth: u32,
    /// Whether it is faster by way of the ring than straight into host memory.
    #[serde(default)]
    pub ring_first: bool,
    /// The rate that was measured with these, of which parts can be reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
}

impl Tuning {
    /// What suits the drives behind `path`, if they were ever measured on this machine.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let Some(place) = Profile::place() else {
            return Ok(None);
        };
        let profile = Profile::read(&place)?;
        // Most machines have none, and to know a machine takes long where it has many cores.
        if profile.drives.is_empty() {
            return Ok(None);
        }
        // A home that several machines share has the profile of one of them.
        if !profile.machine.is_like(&Machine::here()) {
            return Ok(None);
        }
        // A path that leads nowhere gets its own error when it is opened.
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

    /// The settings that suit a drive, as far as it is known.
    pub fn settings(known: Option<Self>) -> Settings {
        let plain = Settings::default();
        match known {
            Some(tuning) => tuning.applied_to(plain),
            None => plain,
        }
    }

    /// The same settings, but with what suits the drive.
    fn applied_to(self, settings: Settings) -> Settings {
        // Each lane's ring has a chunk at least, whatever was fastest.
        let lanes = settings.drive_lanes.max(settings.ring_lanes);
        let room = down(settings.staging_bytes / u64::from(lanes.max(1)), PAGE_BYTES);
        Settings {
            chunk_bytes: self.chunk_bytes.min(room),
            depth: self.depth,
            ring_first: self.ring_first,
            rate_measured: self.rate_bytes_per_s.map(|rate| Rate(rate as f64)),
            ..settings
        }
    }
}

impl Profile {
    /// Where this machine's profile is kept, if there is a place for it.
    pub fn place() -> Option<PathBuf> {
        let folder = |name| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let home = || Some(folder("HOME")?.join(".local/state"));
        let state = folder("XDG_STATE_HOME").or_else(home)?;
        Some(state.join("straightway/profile.toml"))
    }

    /// Reads a profile; one that is not there is empty.
    pub fn read(path: &Path) -> Result<Self> {
        let broken = |message: String| broken(path, message);
        let failed = |e| Error::os("read", path.display(), e);
        let file = match open_plain(path) {
            // Where nobody could have put one, there is none.
            Err(e) if is_out_of_reach(e.kind()) => return Ok(Self::empty()),
            Err(e) if e.kind() == ErrorKind::InvalidInput => return Err(broken(e.to_string())),
            other => other.map_err(failed)?,
        };
        let mut text = String::new();
        match file.take(BYTES_MAX + 1).read_to_string(&mut text) {
            Err(e) if e.kind() == ErrorKind::InvalidData => return Err(broken(e.to_string())),
            other => other.map_err(failed)?,
        };
        Self::parse(&text).map_err(broken)
    }

    /// The profile that `text` holds, or why it holds none.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() as u64 > BYTES_MAX {
            return Err("it is too long".to_owned());
        }
        let profile: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        if profile.schema != SCHEMA {
            let schema = &profile.schema;
            return Err(format!("it is `{schema}`, and `{SCHEMA}` is meant"));
        }
        Ok(profile)
    }

    fn empty() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            ..Self::default()
        }
    }

    /// Adds what a bench found out. What another machine found out is forgotten.
    pub fn add(&mut self, outcome: &Outcome) {
        if self.machine != outcome.machine {
            *self = Self {
                machine: outcome.machine.clone(),
                ..Self::empty()
            };
        }
        let drive = DriveProfile {
            tuning: outcome.tuning(),
            read_latency_s: outcome.read_latency_s(),
            knees: outcome.knees.clone(),
            stages: outcome.stages.clone(),
            writeback_start_bytes: writeback_start_bytes(&Root::machine()),
        };
        let mut key = key(&outcome.file_system, &outcome.drives);
        // What suits a GPU's ring says nothing about host memory.
        if outcome.memory != "host:" {
            key = format!("{key} to {}", outcome.memory);
        }
        self.drives.insert(key, drive);
    }

    /// What suits these drives, if they were ever measured.
    fn tuning(&self, file_system: &str, drives: &[String]) -> Option<Tuning> {
        self.drives.get(&key(file_system, drives))?.tuning
    }

    /// Writes it to `path`, aside and then renamed.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::os("write", path.display(), e);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let text = toml::to_string_pretty(self).expect("a profile is plain data");
        ReportFile::begin(path, PROFILE_MARK)?.finish(&text)
    }
}

/// Whether it is as if there were no profile: none was made, or not by this user.
fn is_out_of_reach(kind: ErrorKind) -> bool {
    use ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(kind, NotFound | NotADirectory | PermissionDenied)
}

/// A profile that cannot be used.
fn broken(path: &Path, message: String) -> Error {
    Error::new(Kind::Corrupt, "use the profile", path.display(), message)
        .with_hint("remove it, and `straightway bench` makes a new one")
}

/// How much of the page cache may be dirty before the kernel begins to write it back: a number of bytes, or a share of
/// the memory that is available.
fn writeback_start_bytes(root: &Root) -> Option<u64> {
    let set = |name: &str| root.value::<u64>(format!("/proc/sys/vm/{name}"));
    if let Some(bytes) = set("dirty_background_bytes").filter(|bytes| *bytes > 0) {
        return Some(bytes);
    }
    let percent = set("dirty_background_ratio")?;
    Some(available_memory(root)? / 100 * percent)
}

/// What a profile knows drives by.
pub(crate) fn key(file_system: &str, drives: &[String]) -> String {
    if drives.is_empty() {
        file_system.to_owned()
    } else {
        drives.join("+")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_is_not_there_is_empty_and_one_that_is_damaged_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/profile.toml");
        let mut profile = Profile::read(&path).unwrap();
        assert_eq!(profile.tuning("ext4", &["vda".to_owned()]), None);
        let tuning = Tuning {
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
            writeback_start_bytes: None,
        };
        profile.drives.insert("vda".to_owned(), drive);
        profile.write(&path).unwrap();
        let again = Profile::read(&path).unwrap();
        assert_eq!(again.tuning("ext4", &["vda".to_owned()]), Some(tuning));
        assert_eq!(again.drives["vda"].read_latency_s, Some(80e-6));
        for text in [
            "schema = 7",
            "zzz",
            "schema = \"other/9\"\nmachine = {}\ndrives = {}",
        ] {
            fs::write(&path, text).unwrap();
            let error = Profile::read(&path).unwrap_err();
            assert!(error.hint().is_some_and(|h| h.contains("bench")), "{error}");
        }
    }
}
