//! Publishes the files of a new model in a folder, so that readers see them all at once.
//!
//! Several files cannot be renamed atomically, so one rename must be the switch. It is that of the index, because
//! readers open the files that the index names and ignore all others.
//!
//! - A folder with an index shows its old model until the new index replaces the old one. The new files therefore get
//!   unused names. If the usual name is taken, a random number is inserted
//!   (`model-1f3a9c02-00001-of-00004.safetensors`), and the old file is removed once the new model is complete.
//! - In a folder without an index, the index is written first. Until the last file exists, readers report which one is
//!   missing.
//! - A single file that replaces a single file needs no index: its own rename is the switch.
//! - The other files that the old index names are removed too, once nothing names them any more.
//! - Readers prefer `model.safetensors` to an index that does not name it. If the new model has no such file, the old
//!   one is removed last, and that removal is the switch.
//!
//! `Store::commit` makes objects visible in order, and removes the new ones again if it fails.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use regex::Regex;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{CommitMode, Draft, Durability, Listing, Location, StoreExt};
use straightway_sys::nonce::nonce;

use super::{
    INDEX_NAME, SINGLE_NAME,
    index::WeightIndex,
    model::{INDEX_SUFFIX, ending, find_index, single_file},
};

/// The number of random names to try. Two numbers of 32 bits hardly ever collide.
const TRIES: u32 = 8;

/// The names of a new model's files, and the old files that they displace.
#[derive(Debug)]
pub(crate) struct Publication {
    folder: Location,
    /// Whether the index is committed after the files.
    index_last: bool,
    /// Pairs of a new file's name and the old file that has its usual name. The old files are removed at the end.
    displaced: Vec<(PathBuf, PathBuf)>,
    /// The old `model.safetensors`, which hides the index from readers until it is removed.
    hiding: Option<PathBuf>,
    /// Other files of the model whose index is replaced. They are removed at the end.
    superseded: Vec<PathBuf>,
}

impl Publication {
    /// Plans the publication of `targets` in a folder whose listing is `there`, and renames the targets whose names are
    /// taken. A file that replaces its own source (the entry of `sources` at the same index) keeps its name.
    pub(crate) fn new(
        folder: &Location,
        there: &Listing,
        targets: &mut [&mut Location],
        sources: &[Location],
    ) -> Result<Self> {
        let is_there = |path: &Path| {
            let objects = there.objects.iter().map(|object| &object.name);
            let mut names = objects.chain(&there.folders);
            names.any(|name| Some(name.as_os_str()) == path.file_name())
        };
        let is_own = |number: usize| {
            let source = sources.get(number);
            source.is_some_and(|source| targets[number].is_same(source))
        };
        let index = find_index(folder, there)?;
        let single = folder.join(SINGLE_NAME);
        // One of several files must not be called like that before the new index names it: readers would take it alone.
        let is_early = |name: &Path| targets.len() > 1 && index.is_some() && *name == single.name;
        let taken: Vec<usize> = (0..targets.len())
            .filter(|&number| {
                let name = &targets[number].name;
                (is_there(name) || is_early(name)) && !is_own(number)
            })
            .collect();
        let is_alone = matches!(&*targets, [at] if shows_only(folder, there, index.as_deref(), &at.name));
        let is_kept = targets.iter().any(|target| target.name == single.name)
            || sources.iter().any(|source| source.is_same(&single));
        let mut superseded = superseded(folder, there, index.as_deref(), sources);
        let publication = |displaced: Vec<(PathBuf, PathBuf)>, targets: &[&mut Location]| {
            let is_new = |old: &PathBuf| targets.iter().any(|target| target.name == *old);
            superseded.retain(|old| !is_new(old) && displaced.iter().all(|(_, other)| other != old));
            Self {
                folder: folder.clone(),
                index_last: is_alone || index.is_some(),
                displaced,
                hiding: (is_there(&single.name) && !is_kept).then_some(single.name),
                superseded,
            }
        };
        if taken.is_empty() || is_alone {
            return Ok(publication(Vec::new(), targets));
        }
        for _ in 0..TRIES {
            let number = format!("{:08x}", nonce() >> 32);
            let fresh: Vec<_> = taken.iter().map(|&i| renamed(&targets[i].name, &number)).collect();
            if fresh.iter().any(|path| is_there(path)) {
                continue;
            }
            let swap = |(&i, fresh): (&usize, PathBuf)| {
                let old = std::mem::replace(&mut targets[i].name, fresh.clone());
                is_there(&old).then_some((fresh, old))
            };
            let displaced = taken.iter().zip(fresh).filter_map(swap).collect();
            return Ok(publication(displaced, targets));
        }
        let message = "no free names were found for the files";
        Err(folder.error(ErrorKind::Transient, "write to", message))
    }

    /// The old file whose name the new file `name` would have had.
    pub(crate) fn displaced_by(&self, name: &Path) -> Option<&Path> {
        let found = self.displaced.iter().find(|(fresh, _)| fresh == name);
        found.map(|(_, old)| old.as_path())
    }

    /// Publishes files whose bytes are all durable. After an error the old model is unchanged. Returns the errors of
    /// old files that could not be removed.
    pub(crate) fn run(self, mut files: Vec<Box<dyn Draft>>, index: Box<dyn Draft>) -> Result<Vec<Error>> {
        let store = &self.folder.store;
        let remove = |name: &Path| store.remove(name.as_os_str(), Durability::Unsynced);
        if self.index_last {
            files.push(index);
            store.commit(files, CommitMode::InOrder)?;
        } else {
            store.commit(vec![index], CommitMode::InOrder)?;
            // On failure, the index is removed after the new files: until then readers must see it.
            let index = self.folder.name.join(INDEX_NAME);
            store
                .commit(files, CommitMode::InOrder)
                .inspect_err(|_| drop(remove(&index)))?;
        }
        let displaced = self.displaced.iter().map(|(_, old)| old);
        let (hiding, old): (Vec<_>, Vec<_>) = displaced
            .chain(&self.hiding)
            .partition(|old| old.ends_with(SINGLE_NAME));
        for old in hiding {
            remove(old)?;
        }
        let old = old.into_iter().chain(&self.superseded);
        Ok(old.filter_map(|old| remove(old).err()).collect())
    }
}

/// The files in the folder that only its usual index names. They are of no use once that index is replaced. Files that
/// another index of the folder names belong to another model as well, and sources stay. If an index cannot be read,
/// nothing is removed.
fn superseded(folder: &Location, there: &Listing, index: Option<&Path>, sources: &[Location]) -> Vec<PathBuf> {
    let usual = folder.name.join(INDEX_NAME);
    let files = |index: &Path| WeightIndex::read(&*folder.store, index).map(|index| index.files);
    let Some(Ok(mut old)) = index.filter(|index| *index == usual).map(files) else {
        return Vec::new();
    };
    let listed = ending(folder, there, ".safetensors");
    let at = |file: &Path| Location {
        store: Arc::clone(&folder.store),
        name: file.to_owned(),
    };
    old.retain(|file| {
        let is_source = sources.iter().any(|source| source.is_same(&at(file)));
        // `model.safetensors` is removed before all others, because it hides the index.
        listed.contains(file) && !file.ends_with(SINGLE_NAME) && !is_source
    });
    for other in ending(folder, there, INDEX_SUFFIX)
        .iter()
        .filter(|other| **other != usual)
    {
        match files(other) {
            Ok(kept) => old.retain(|file| !kept.contains(file)),
            Err(_) => return Vec::new(),
        }
    }
    old
}

/// Whether the folder's current model is only this file, or nothing.
fn shows_only(folder: &Location, there: &Listing, index: Option<&Path>, name: &Path) -> bool {
    let files = match index {
        Some(index) => match single_file(folder, there, index) {
            Some(file) => Ok(vec![file]),
            None => WeightIndex::read(&*folder.store, index).map(|index| index.files),
        },
        None => Ok(ending(folder, there, ".safetensors")),
    };
    files.is_ok_and(|files| files.iter().all(|file| file == name))
}

/// A path with `number` inserted into its file name: before the file count if there is one (as in
/// `model-00001-of-00004.safetensors`), otherwise before the suffix.
fn renamed(path: &Path, number: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) => (stem, format!(".{ending}")),
        None => (&*name, String::new()),
    };
    let counted = Regex::new("^(.*-)([0-9]{5}-of-[0-9]{5})$").expect("it is well formed");
    let fresh = match counted.captures(stem) {
        Some(parts) => format!("{}{number}-{}{ending}", &parts[1], &parts[2]),
        None => format!("{stem}-{number}{ending}"),
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
            ("x-0001-of-00004.safetensors", "x-0001-of-00004-1f.safetensors"),
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
