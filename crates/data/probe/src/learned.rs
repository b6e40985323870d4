//! What transfers have learnt about this machine's drives, stored as TOML next to the profile.
//!
//! The profile takes precedence: nothing is learnt about reads of a drive that `bench` measured. The file is small
//! and is replaced by a rename. If it is lost, the lessons are learnt again. A damaged file, or one of another
//! machine, is ignored.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use straightway_core::Result;
use straightway_io::{
    StateFile,
    learning::{Learning, Lessons, Method, WorkKind},
};
use straightway_sys::root::Root;

use crate::{
    backing::Backing,
    drive_tuning::DriveTuning,
    machine::Machine,
    profile::{self, Profile},
};

/// The name and version of the file format.
const SCHEMA: &str = "straightway.learned/1";

/// The first bytes of every such file.
const MARK: &str = "schema = ";

/// The maximum length of the file.
const BYTES_MAX: u64 = 64 << 10;

/// The maximum number of drives. Beyond it, the first by name is removed.
const DRIVES_MAX: usize = 64;

/// The lessons of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    schema: String,
    /// The machine.
    pub machine: Machine,
    /// The fastest method by kind of work, for each set of drives, or for each file system without drives.
    #[serde(default)]
    pub drives: BTreeMap<String, BTreeMap<String, String>>,
}

impl Learned {
    /// The path of this machine's lessons; `None` without a home or state directory.
    pub fn place() -> Option<PathBuf> {
        Some(Profile::place()?.with_file_name("learned.toml"))
    }

    /// Returns the lessons for the drives behind `path`. They are read when a transfer first asks; new ones are
    /// stored.
    pub fn of(path: &Path) -> Option<Learning> {
        let place = Self::place()?;
        let (at, path) = (place.clone(), path.to_owned());
        let target = path.clone();
        let load = move || {
            let mut lessons = match key_of(&path) {
                Some(key) => Self::read(&at).lessons(&key),
                None => Lessons::new(),
            };
            if let Ok(Some(tuning)) = DriveTuning::of(&path) {
                let way = if tuning.ring_first {
                    Method::Ring
                } else {
                    Method::Direct
                };
                lessons.insert(WorkKind::Read, way);
            }
            lessons
        };
        let keep = move |work, way| {
            let kept = key_of(&target).map_or(Ok(()), |key| Self::keep(&place, &key, work, way));
            if let Err(error) = kept {
                tracing::debug!(%error, "cannot store a lesson");
            }
        };
        Some(Learning::new(load, keep))
    }

    /// Reads the lessons at `path`. They are empty if the file is missing, invalid or of another machine.
    pub fn read(path: &Path) -> Self {
        let here = Machine::here();
        let kept = file_at(path).read().ok();
        let kept = kept.and_then(|text| toml::from_str::<Self>(&text).ok());
        let kept = kept.filter(|kept| kept.schema == SCHEMA && kept.machine.is_like(&here));
        kept.unwrap_or(Self {
            schema: SCHEMA.to_owned(),
            machine: here,
            drives: BTreeMap::new(),
        })
    }

    /// The lessons for one set of drives. Unknown words of later versions are ignored.
    pub fn lessons(&self, key: &str) -> Lessons {
        let rows = self.drives.get(key).into_iter().flatten();
        rows.filter_map(|(work, way)| Some((work.parse().ok()?, way.parse().ok()?)))
            .collect()
    }

    /// Adds a lesson to the file at `path`. If two processes do so at the same time, one of the lessons may be lost.
    pub fn keep(path: &Path, key: &str, work: WorkKind, way: Method) -> Result<()> {
        let mut learned = Self::read(path);
        if !learned.drives.contains_key(key) && learned.drives.len() >= DRIVES_MAX {
            learned.drives.pop_first();
        }
        let drive = learned.drives.entry(key.to_owned()).or_default();
        drive.insert(work.to_string(), way.to_string());
        let text = toml::to_string_pretty(&learned).expect("lessons are plain data");
        file_at(path).replace(&text)
    }
}

fn file_at(path: &Path) -> StateFile {
    StateFile::new(path.to_owned(), MARK, BYTES_MAX)
}

/// The key of the drives behind a path.
fn key_of(path: &Path) -> Option<String> {
    let backing = Backing::of(&Root::machine(), path).ok()?;
    let drives: Vec<_> = backing.drives.into_iter().map(|d| d.name).collect();
    Some(profile::key(&backing.mount.file_system, &drives))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lessons_are_stored_by_drive_and_unreadable_ones_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/learned.toml");
        assert_eq!(Learned::read(&path).lessons("vda"), Lessons::new());
        Learned::keep(&path, "vda", WorkKind::Read, Method::Ring).unwrap();
        Learned::keep(&path, "tmpfs", WorkKind::Copy, Method::Calls).unwrap();
        Learned::keep(&path, "tmpfs", WorkKind::Copy, Method::Mapping).unwrap();
        let kept = Learned::read(&path);
        assert_eq!(kept.lessons("vda"), [(WorkKind::Read, Method::Ring)].into());
        assert_eq!(kept.lessons("tmpfs"), [(WorkKind::Copy, Method::Mapping)].into());
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "only the file is left");

        let text = fs::read_to_string(&path).unwrap();
        let other = text.replace("kernel = \"", "kernel = \"another ");
        let unknown = text.replace("\"ring\"", "\"tunnel\"");
        fs::write(&path, unknown).unwrap();
        assert_eq!(Learned::read(&path).lessons("vda"), Lessons::new());
        for damaged in [other, text[..text.len() / 2].to_owned(), "x".repeat(99_999)] {
            fs::write(&path, &damaged).unwrap();
            assert_eq!(Learned::read(&path).drives, BTreeMap::new(), "{damaged}");
        }
    }

    #[test]
    fn the_number_of_drives_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learned.toml");
        for number in 0..DRIVES_MAX + 3 {
            Learned::keep(&path, &format!("d{number:03}"), WorkKind::Read, Method::Direct).unwrap();
        }
        let kept = Learned::read(&path);
        assert_eq!(kept.drives.len(), DRIVES_MAX);
        assert!(kept.drives.contains_key(&format!("d{:03}", DRIVES_MAX + 2)));
        assert!(fs::metadata(&path).unwrap().len() < BYTES_MAX);
    }
}
