//! What a copy made in a file system, so that a copy that fails can remove it.
//!
//! A folder changes what the same command does: `copy model new` makes `new`, and repeated it would make `new/model`. So
//! a copy that fails or is interrupted removes the folders that it made, with the files and links that it put there.
//! Files in folders that existed before stay: each of them is complete.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, FileType, fstat, statat, unlinkat};
use straightway_io::store::{Draft, Missing, StoreExt};
use straightway_sys::{Folder, IoPath};

use crate::{copier::Tree, job::CopyJob};

/// The folders that a copy makes, and what it put into them.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// The folder of the target and those above it that did not exist, the outermost first.
    above: Vec<PathBuf>,
    /// The folders below it that did not exist, relative to it.
    below: BTreeSet<PathBuf>,
    /// The files in them with their inodes, relative to the folder of the target.
    files: Vec<(PathBuf, u64)>,
}

impl Made {
    /// The folders that `job` will make.
    pub(crate) fn before(job: &CopyJob) -> Self {
        let mut made = Self::default();
        if !job.is_local() {
            return made;
        }
        let is_missing =
            |path: &Path| fs::symlink_metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let base = &job.base.name;
        made.above = base.ancestors().map(Path::to_owned).collect();
        made.above
            .retain(|folder| !folder.as_os_str().is_empty() && is_missing(folder));
        made.above.reverse();
        let targets = job.pairs.iter().map(|pair| pair.target.as_path());
        let targets = targets.chain(job.links.iter().map(|link| link.target.as_path()));
        let folders = job.folders.iter().map(|folder| folder.target.as_path());
        let mut seen = BTreeSet::new();
        for folder in targets.filter_map(Path::parent).chain(folders) {
            let mut inside = relative(job, folder);
            // A folder that was seen has been looked at with all above it.
            while !inside.as_os_str().is_empty() && seen.insert(inside.to_owned()) {
                if is_missing(&base.join(inside)) {
                    made.below.insert(inside.to_owned());
                }
                inside = inside.parent().unwrap_or(Path::new(""));
            }
        }
        made
    }

    /// Records the files of drafts that are about to be committed, if they are in a folder that the copy made.
    pub(crate) fn note(&mut self, job: &CopyJob, drafts: &[Box<dyn Draft>]) {
        if self.is_empty() {
            return;
        }
        for handle in drafts.iter().map(|draft| draft.handle()) {
            let Some(file) = handle.file() else {
                return;
            };
            let path = relative(job, file.path());
            let stat = fstat(file.descriptor(IoPath::PageCache));
            if let (true, Ok(stat)) = (self.is_inside(path), stat) {
                self.files.push((path.to_owned(), stat.st_ino));
            }
        }
    }

    /// Removes the files and links that the copy put into its folders, and then the folders that are empty. Errors are
    /// ignored: the error of the copy is reported.
    pub(crate) fn undo(self, job: &CopyJob) {
        if self.is_empty() {
            return;
        }
        if let Ok(tree) = Tree::open_existing(job) {
            for (file, inode) in &self.files {
                remove_at(&tree, file, |stat| stat.st_ino == *inode);
            }
            let links = job.links.iter().map(|link| relative(job, &link.target));
            for link in links.filter(|link| self.is_inside(link)) {
                remove_at(&tree, link, |stat| {
                    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
                });
            }
            // Those inside a folder come after it.
            for folder in self.below.iter().rev() {
                in_folder(&tree, folder, |above, name| {
                    let _ = unlinkat(above, name, AtFlags::REMOVEDIR);
                });
            }
        }
        for folder in self.above.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Whether the copy makes no folder.
    fn is_empty(&self) -> bool {
        self.above.is_empty() && self.below.is_empty()
    }

    /// Whether a name is directly in a folder that the copy made.
    fn is_inside(&self, path: &Path) -> bool {
        let folder = path.parent().unwrap_or(Path::new(""));
        self.below.contains(folder) || folder.as_os_str().is_empty() && !self.above.is_empty()
    }
}

/// A path relative to the folder of the target.
fn relative<'a>(job: &CopyJob, path: &'a Path) -> &'a Path {
    // A path in the current folder may lack its leading `./`.
    path.strip_prefix(&job.base.name).unwrap_or(path)
}

/// Removes a file or link, if it is still the one that is meant.
fn remove_at(tree: &Tree, path: &Path, is_own: impl FnOnce(&rustix::fs::Stat) -> bool) {
    in_folder(tree, path, |folder, name| {
        if statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| is_own(&stat)) {
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    });
}

/// Calls `call` with the open folder of a path below the target and the path's last part. Links are not followed.
fn in_folder(tree: &Tree, path: &Path, call: impl FnOnce(&Folder, &OsStr)) {
    let at = tree.inside(path);
    let opened = at.parent().below(Missing::Refuse);
    if let (Ok(inside), Some(name)) = (opened, path.file_name())
        && let Some(folder) = inside.folder()
    {
        call(folder, name);
    }
}
