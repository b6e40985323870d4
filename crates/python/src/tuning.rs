//! What suits the drive behind a path, looked up once for each file system that this process meets.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use straightway_core::Result;
use straightway_probe::profile::Tuning;

/// What was found out about each file system, by the number that the kernel knows it by.
static KNOWN: Mutex<BTreeMap<u64, Option<Tuning>>> = Mutex::new(BTreeMap::new());

/// What suits the drive behind `path`, if it was ever measured.
pub(crate) fn of(path: &Path) -> Result<Option<Tuning>> {
    // What is yet to be written will be where its folder is. A path that leads nowhere gets its own error when it is
    // opened.
    let folder = || path.parent().and_then(|folder| fs::metadata(folder).ok());
    let Some(meta) = fs::metadata(path).ok().or_else(folder) else {
        return Ok(None);
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tuning) = known.get(&meta.dev()) {
        return Ok(*tuning);
    }
    let tuning = Tuning::of(path)?;
    known.insert(meta.dev(), tuning);
    Ok(tuning)
}
