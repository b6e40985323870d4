//! The facts about drives: measured by `straightway bench`, and learned by earlier transfers. Looked up once for each
//! file system and block device.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use straightway_core::Result;
use straightway_io::Learning;
use straightway_probe::{learned::Learned, profile::DriveTuning};

/// What is known about a drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drive {
    /// The measured settings, if it was measured.
    pub(crate) tuning: Option<DriveTuning>,
    /// The settings that transfers learn while they run.
    pub(crate) learning: Option<Learning>,
}

/// Whether it is a block device instead of a file system, and its device number.
type DriveKey = (bool, u64);

/// The known drives.
#[derive(Debug, Default)]
pub(crate) struct Drives(BTreeMap<DriveKey, Drive>);

impl Drives {
    /// The drive behind a path.
    pub(crate) fn of(&mut self, path: &Path) -> Result<Drive> {
        // An invalid path fails later, when it is opened.
        let Some((path, key)) = existing(path) else {
            return Ok(Drive::default());
        };
        if let Some(drive) = self.0.get(&key) {
            return Ok(drive.clone());
        }
        let drive = Drive {
            tuning: DriveTuning::of(&path)?,
            learning: Learned::of(&path),
        };
        self.0.insert(key, drive.clone());
        Ok(drive)
    }
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
