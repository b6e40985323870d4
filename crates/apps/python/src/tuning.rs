//! The tuning of the drive behind a path, looked up once per file system and process.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

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

/// Whether it is a block device instead of a file system, and its device number.
type DriveKey = (bool, u64);

/// The drive of each file system and block device.
static KNOWN: PerProcess<BTreeMap<DriveKey, DriveInfo>> = PerProcess::new();

/// The tuning of the drive behind `path`.
pub(crate) fn of(path: &Path) -> Result<DriveInfo> {
    // An invalid path fails later, when it is opened.
    let Some((path, key)) = existing(path) else {
        return Ok(DriveInfo::default());
    };
    let mut known = KNOWN.lock();
    if let Some(one) = known.get(&key) {
        return Ok(one.clone());
    }
    let one = DriveInfo {
        tuning: DriveTuning::of(&path)?,
        learning: Learned::of(&path),
    };
    known.insert(key, one.clone());
    Ok(one)
}

/// The path, or its nearest ancestor that exists: a new file will be on the drive of that folder.
fn existing(path: &Path) -> Option<(PathBuf, DriveKey)> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|one| {
        let meta = fs::metadata(one).ok()?;
        let key = if meta.file_type().is_block_device() {
            (true, meta.rdev())
        } else {
            (false, meta.dev())
        };
        Some((one.to_owned(), key))
    })
}
