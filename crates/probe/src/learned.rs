//! What transfers found out by themselves about this machine's drives, kept as TOML beside the profile.
//!
//! The profile says more and wins: of a drive that `bench` measured, nothing is learnt about reads. The file is small, is
//! written aside and renamed, and may be lost: what it says is then learnt again. One that is damaged, or of another
//! machine, is as good as none.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use straightway_core::{Error, Result};
use straightway_io::{
    ReportFile,
    learning::{Learning, Lessons, Way, Work},
};
use straightway_sys::{plain_file::open_plain, root::Root};

use crate::{
    backing::Backing,
    machine::Machine,
    profile::{self, Profile},
};

/// The name and version of the file's form.
const SCHEMA: &str = "straightway.learned/1";

/// What every such file starts with.
const MARK: &str = "schema = ";

/// A longer file is none of ours.
const BYTES_MAX: u64 = 64 << 10;

/// Drives that are remembered. Beyond that, the first by name is forgotten.
const DRIVES_MAX: usize = 64;

/// What was learnt on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    schema: String,
    /// The machine that it was learnt on.
    pub machine: Machine,
    /// The faster way by kind of work, of each drive, or for one without drives, each file system.
    #[serde(default)]
    pub drives: BTreeMap<String, BTreeMap<String, String>>,
}

impl Learned {
    /// Where this machine's lessons are kept, if there is a place for them.
    pub fn place() -> Option<PathBuf> {
        Some(Profile::place()?.with_file_name("learned.toml"))
    }

    /// What is known of the drives behind `path`, and will be. Nothing is read before a transfer asks.
    pub fn of(path: &Path) -> Option<Learning> {
        let place = Self::place()?;
        let (at, path) = (place.clone(), path.to_owned());
        let target = path.clone();
        let load = move || {
            let mut lessons = match key_of(&path) {
                Some(key) => Self::read(&at).lessons(&key),
                None => Lessons::new(),
            };
            if let Ok(Some(tuning)) = profile::Tuning::of(&path) {
                let way = if tuning.ring_first {
                    Way::Ring
                } else {
                    Way::Direct
                };
                lessons.insert(Work::Read, way);
            }
            lessons
        };
        let keep = move |work, way| {
            let kept = key_of(&target).map_or(Ok(()), |key| Self::keep(&place, &key, work, way));
            if let Err(error) = kept {
                tracing::debug!(%error, "what was learnt is not kept");
            }
        };
        Some(Learning::new(load, keep))
    }

    /// Reads what is kept at `path`. Where that is nothing of this machine, it is empty.
    pub fn read(path: &Path) -> Self {
        let here = Machine::here();
        let kept = text_of(path).and_then(|text| toml::from_str::<Self>(&text).ok());
        let kept = kept.filter(|kept| kept.schema == SCHEMA && kept.machine.is_like(&here));
        kept.unwrap_or(Self {
            schema: SCHEMA.to_owned(),
            machine: here,
            drives: BTreeMap::new(),
        })
    }

    /// The lessons of one drive. Words of a later version are passed over.
    pub fn lessons(&self, key: &str) -> Lessons {
        let rows = self.drives.get(key).into_iter().flatten();
        rows.filter_map(|(work, way)| Some((work.parse().ok()?, way.parse().ok()?)))
            .collect()
    }

    /// Adds a lesson to what is kept at `path`. Two processes that do so at once may lose one of two lessons.
    pub fn keep(path: &Path, key: &str, work: Work, way: Way) -> Result<()> {
        let mut learned = Self::read(path);
        if !learned.drives.contains_key(key) && learned.drives.len() >= DRIVES_MAX {
            learned.drives.pop_first();
        }
        let drive = learned.drives.entry(key.to_owned()).or_default();
        drive.insert(work.to_string(), way.to_string());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::os("write", path.display(), e))?;
        }
        let text = toml::to_string_pretty(&learned).expect("lessons are plain data");
        ReportFile::begin(path, MARK)?.finish(&text)
    }
}

fn text_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = open_plain(path).ok()?;
    file.take(BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= BYTES_MAX).then_some(text)
}

/// What lessons about the drives behind a path are kept by.
fn key_of(path: &Path) -> Option<String> {
    let backing = Backing::of(&Root::machine(), path).ok()?;
    let drives: Vec<_> = backing.drives.into_iter().map(|d| d.name).collect();
    Some(profile::key(&backing.mount.file_system, &drives))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_are_kept_by_drive_and_what_cannot_be_read_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/learned.toml");
        assert_eq!(Learned::read(&path).lessons("vda"), Lessons::new());
        Learned::keep(&path, "vda", Work::Read, Way::Ring).unwrap();
        Learned::keep(&path, "tmpfs", Work::Copy, Way::Calls).unwrap();
        Learned::keep(&path, "tmpfs", Work::Copy, Way::Mapping).unwrap();
        let kept = Learned::read(&path);
        assert_eq!(kept.lessons("vda"), [(Work::Read, Way::Ring)].into());
        assert_eq!(kept.lessons("tmpfs"), [(Work::Copy, Way::Mapping)].into());
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "nothing is left beside the file");

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
            Learned::keep(&path, &format!("d{number:03}"), Work::Read, Way::Direct).unwrap();
        }
        let kept = Learned::read(&path);
        assert_eq!(kept.drives.len(), DRIVES_MAX);
        assert!(kept.drives.contains_key(&format!("d{:03}", DRIVES_MAX + 2)));
        assert!(fs::metadata(&path).unwrap().len() < BYTES_MAX);
    }
}
