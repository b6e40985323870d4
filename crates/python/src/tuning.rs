//! What suits the drive behind a path, looked up once for each file system that this process meets.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use straightway_core::Result;
use straightway_io::Learning;
use straightway_probe::{learned::Learned, profile::Tuning};

/// What is known of a drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// What suits it, if it was ever measured.
    pub(crate) tuning: Option<Tuning>,
    /// What transfers find out by themselves.
    pub(crate) learning: Option<Learning>,
}

/// What was found out about each file system, by the number that the kernel knows it by.
static KNOWN: Mutex<BTreeMap<u64, Known>> = Mutex::new(BTreeMap::new());

/// What is known of the drive behind `path`.
pub(crate) fn of(path: &Path) -> Result<Known> {
    // What is yet to be written will be where its folder is. A path that leads nowhere gets its own error when it is
    // opened.
    let folder = || path.parent().and_then(|folder| fs::metadata(folder).ok());
    let Some(meta) = fs::metadata(path).ok().or_else(folder) else {
        return Ok(Known::default());
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(one) = known.get(&meta.dev()) {
        return Ok(one.clone());
    }
    let one = Known {
        tuning: Tuning::of(path)?,
        learning: Learned::of(path),
    };
    known.insert(meta.dev(), one.clone());
    Ok(one)
}
