//! How the files of a new model appear in a folder: for a reader, all at once.
//!
//! Several files cannot be renamed together, so one rename has to be the switch. It is the index's,
//! because readers take the index for the model and ignore files that it does not name.
//!
//! - A folder that has an index shows its old model until the new index replaces the old one. The new
//!   files therefore get names that are free. Where the usual name is taken, a random number is put into
//!   it (`model-1f3a9c02-00001-of-00004.safetensors`), and the file that has it goes when the new model is there.
//! - A folder without an index gets the index first. Until the last file is there, readers say which one
//!   is missing.
//! - A single file that replaces a single file needs neither: its own rename is the switch.
//!
//! The work is a list of steps, so that a test can stop after each.

use std::{
    fs,
    path::{Path, PathBuf},
};

use straightway_core::{Error, Kind, Result};
use straightway_io::{FileDraft, draft, store::Files};
use straightway_sys::nonce::nonce;

use super::{
    index::Index,
    model::{find_index, names_ending},
};
use crate::errand::is_same;

/// How often another number is drawn for names that are taken. Two draws of 32 bits hardly ever meet.
const TRIES: u32 = 8;

/// The names of a new model's files, and what they displace.
#[derive(Debug)]
pub(crate) struct Publication {
    folder: PathBuf,
    /// Whether the index comes after the files.
    index_last: bool,
    /// Files whose names the new model's files would have had, behind the names that these got. They go at the end.
    displaced: Vec<(PathBuf, PathBuf)>,
}

/// One change of the folder.
#[derive(Debug)]
pub(crate) enum Step {
    /// Gives a file its name.
    Name(FileDraft),
    /// Removes a file that the new index does not name.
    Remove(PathBuf),
    /// Makes all names so far durable.
    Sync,
}

impl Publication {
    /// Looks at a folder that is to get files under the names in `paths`, and changes those that are
    /// taken. A file that is written over itself (`sources` has it at the same place) keeps its name.
    pub(crate) fn new(
        folder: &Path,
        paths: &mut [&mut PathBuf],
        sources: &[&Path],
    ) -> Result<Self> {
        let is_own = |number: usize, path: &Path| {
            sources
                .get(number)
                .is_some_and(|source| is_same(path, source))
        };
        let taken: Vec<usize> = (0..paths.len())
            .filter(|&number| is_there(paths[number]) && !is_own(number, paths[number]))
            .collect();
        let index = find_index(&Files::default(), folder)?;
        let is_alone = matches!(&*paths, [path] if shows_only(folder, index.as_deref(), path));
        let publication = |displaced| Self {
            folder: folder.to_owned(),
            index_last: is_alone || index.is_some(),
            displaced,
        };
        if taken.is_empty() || is_alone {
            return Ok(publication(Vec::new()));
        }
        for _ in 0..TRIES {
            let number = format!("{:08x}", nonce() >> 32);
            let fresh: Vec<_> = taken.iter().map(|&i| renamed(paths[i], &number)).collect();
            if fresh.iter().any(|path| is_there(path)) {
                continue;
            }
            let swap = |(&i, fresh): (&usize, PathBuf)| std::mem::replace(&mut *paths[i], fresh);
            let displaced = taken.iter().zip(fresh.clone()).map(swap);
            let displaced = fresh.iter().cloned().zip(displaced).collect();
            return Ok(publication(displaced));
        }
        let message = "no free names were found for the files";
        Err(Error::new(
            Kind::Transient,
            "write to",
            folder.display(),
            message,
        ))
    }

    /// The file whose name the one at `path` would have had.
    pub(crate) fn displaced_by(&self, path: &Path) -> Option<&Path> {
        let found = self.displaced.iter().find(|(fresh, _)| fresh == path);
        found.map(|(_, old)| old.as_path())
    }

    /// What has to be done, in this order, once all bytes of all drafts are durable.
    pub(crate) fn steps(self, files: Vec<FileDraft>, index: FileDraft) -> Vec<Step> {
        let mut steps: Vec<_> = files.into_iter().map(Step::Name).collect();
        steps.push(Step::Sync);
        let switch = if self.index_last { steps.len() } else { 0 };
        steps.splice(switch..switch, [Step::Name(index), Step::Sync]);
        let old = self.displaced.into_iter().map(|(_, old)| old);
        steps.extend(old.map(Step::Remove));
        steps
    }

    /// Does it. An error leaves what was there before. Answers what could not be removed, and why.
    pub(crate) fn run(self, files: Vec<FileDraft>, index: FileDraft) -> Result<Vec<Error>> {
        let folder = self.folder.clone();
        let mut named = Vec::new();
        let mut left = Vec::new();
        for step in self.steps(files, index) {
            match step {
                Step::Remove(path) => left.extend(remove(&path).err()),
                step => step.run(&folder, &mut named).inspect_err(|_| {
                    // The last to come goes first: a folder without an index has to show it until then.
                    named.iter().rev().for_each(|path| drop(remove(path)));
                })?,
            }
        }
        Ok(left)
    }
}

impl Step {
    /// Does it, and adds the name to `named` if nothing had it.
    pub(crate) fn run(self, folder: &Path, named: &mut Vec<PathBuf>) -> Result<()> {
        match self {
            Self::Remove(path) => remove(&path),
            Self::Sync => draft::sync_folder(folder),
            Self::Name(draft) => {
                let target = draft.target().to_owned();
                let is_new = !is_there(&target);
                draft.name()?;
                named.extend(is_new.then_some(target));
                Ok(())
            }
        }
    }
}

/// Whether the model that a folder shows is this file or nothing.
fn shows_only(folder: &Path, index: Option<&Path>, path: &Path) -> bool {
    let files = match index {
        Some(index) => Index::read(&Files::default(), index).map(|index| index.files),
        None => names_ending(&Files::default(), folder, ".safetensors"),
    };
    files.is_ok_and(|files| files.iter().all(|file| file == path))
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|e| Error::os("remove", path.display(), e))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A path with `number` in its file name: before the count of the files where it has one, as in
/// `model-00001-of-00004.safetensors`, else before the ending.
fn renamed(path: &Path, number: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem, format!(".{ending}")),
        None => (&*name, String::new()),
    };
    let is_count = |tail: &str| {
        let mut parts = tail.split("-of-");
        let is_number = |part: Option<&str>| {
            part.is_some_and(|p| p.len() == 5 && p.bytes().all(|b| b.is_ascii_digit()))
        };
        is_number(parts.next()) && is_number(parts.next()) && parts.next().is_none()
    };
    // Five digits, `-of-`, five digits.
    let count = stem
        .len()
        .checked_sub(14)
        .filter(|&at| stem.is_char_boundary(at));
    let fresh = match count.map(|at| stem.split_at(at)) {
        Some((front, tail)) if is_count(tail) && front.ends_with('-') => {
            format!("{front}{number}-{tail}{ending}")
        }
        _ => format!("{stem}-{number}{ending}"),
    };
    path.with_file_name(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_a_number_where_the_count_of_files_stays_at_its_end() {
        for (name, fresh) in [
            (
                "model-00001-of-00004.safetensors",
                "model-1f-00001-of-00004.safetensors",
            ),
            ("model.safetensors", "model-1f.safetensors"),
            (
                "x-0001-of-00004.safetensors",
                "x-0001-of-00004-1f.safetensors",
            ),
            ("plain", "plain-1f"),
            (
                "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}.x",
                "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}-1f.x",
            ),
        ] {
            let path = Path::new("/folder").join(name);
            assert_eq!(renamed(&path, "1f"), Path::new("/folder").join(fresh));
        }
    }
}
