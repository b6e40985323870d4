//! The tuning of the drive behind a path, looked up once per file system and process.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt, path::Path};

use straightway_core::Result;
use straightway_io::Learning;
use straightway_probe::{learned::Learned, profile::DriveTuning};

use crate::per_process::PerProcess;

/// The tuning of a drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriveInfo {
    /// The measured settings, if it was measured.
    pub(crate) tuning: Option<DriveTuning>,
    /// The settings that transfers learn while they run.
    pub(crate) learning: Option<Learning>,
}

/// The drive of each file system, by its device number.
static KNOWN: PerProcess<BTreeMap<u64, DriveInfo>> = PerProcess::new();

/// The tuning of the drive behind `path`.
pub(crate) fn of(path: &Path) -> Result<DriveInfo> {
    // A file that does not exist yet will be on the drive of its folder. An invalid path fails later, when it is
    // opened.
    let folder = || path.parent().and_then(|folder| fs::metadata(folder).ok());
    let Some(meta) = fs::metadata(path).ok().or_else(folder) else {
        return Ok(DriveInfo::default());
    };
    let mut known = KNOWN.lock();
    if let Some(one) = known.get(&meta.dev()) {
        return Ok(one.clone());
    }
    let one = DriveInfo {
        tuning: DriveTuning::of(path)?,
        learning: Learned::of(path),
    };
    known.insert(meta.dev(), one.clone());
    Ok(one)
}
