//! Finds what is below the sources of a copy: files, folders and links of a file system, or objects below a name.
//!
//! A folder behind a link is walked like any other. It may contain itself, and links to the same folder multiply what is
//! copied: folders that are open are compared by inode, and all names are counted.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{Listing, Location, Missing, NAMES_MAX, Named, list_all, too_many_names};
use straightway_sys::Rights;

use crate::{
    job::{CopiedFolder, CopiedLink, CopyJob, check_outside},
    links::{LinkChoice, broken, circle, stays_inside},
};

/// The maximum depth of nested folders. Deeper nesting is treated as a loop.
const DEPTH_MAX: usize = 256;

/// Says whether a target is wanted, and what is below it.
pub(crate) type Filter<'a> = dyn Fn(&Path) -> bool + 'a;

/// A walk below one source. What it finds is added to the job.
pub(crate) struct Walk<'a> {
    job: &'a mut CopyJob,
    links: LinkChoice,
    /// Says of each target whether it is wanted.
    filter: Option<&'a Filter<'a>>,
    /// The folders that are being walked, the outermost first, by device and inode.
    open: Vec<(u64, u64)>,
    /// The names of the whole tree: each folder of a faulty service may list further folders.
    names: usize,
}

/// The part of a tree that one link led to, or that the user named.
#[derive(Clone, Copy)]
struct Branch<'a> {
    /// Its folder. Links that stay below it may be kept.
    root: &'a Path,
    /// Whether a link led to it. Its files are then copied in the version that was found: another process may let the
    /// link lead to another file meanwhile.
    is_followed: bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(job: &'a mut CopyJob, links: LinkChoice) -> Self {
        Self {
            job,
            links,
            filter: None,
            open: Vec::new(),
            names: 0,
        }
    }

    /// The same walk, of wanted targets only.
    pub(crate) fn filtered(self, filter: &'a Filter<'a>) -> Self {
        Self {
            filter: Some(filter),
            ..self
        }
    }

    fn wants(&self, target: &Path) -> bool {
        self.filter.is_none_or(|filter| filter(target))
    }

    /// Adds a folder of a file system and everything below it.
    pub(crate) fn folder(&mut self, source: &Location, target: &Path, meta: &fs::Metadata) -> Result<()> {
        let root = source.name.clone();
        let branch = Branch {
            root: &root,
            is_followed: false,
        };
        self.branch(source, target, meta, branch)
    }

    fn branch(&mut self, source: &Location, target: &Path, meta: &fs::Metadata, branch: Branch<'_>) -> Result<()> {
        self.check_depth(source)?;
        self.open.push((meta.dev(), meta.ino()));
        if self.job.is_local() {
            self.job.folders.push(CopiedFolder {
                target: target.to_owned(),
                rights: Rights::of_folder(&source.name, meta.mode()),
            });
        }
        let failed = |e| Error::os("list", source.describe(), e);
        let mut entries: Vec<_> = fs::read_dir(&source.name)
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        self.count(source, entries.len())?;
        // In a fixed order, so that two runs do the same.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let (from, to) = (source.join(&name), target.join(&name));
            if !self.wants(&to) {
                continue;
            }
            let meta = fs::symlink_metadata(&from.name).map_err(|e| Error::os("open", from.describe(), e))?;
            if meta.is_symlink() {
                self.link(&from, to, branch)?;
            } else if meta.is_dir() {
                self.branch(&from, &to, &meta, branch)?;
            } else {
                self.file(&from, &to, &meta, branch)?;
            }
        }
        self.open.pop();
        Ok(())
    }

    fn file(&mut self, from: &Location, to: &Path, meta: &fs::Metadata, branch: Branch<'_>) -> Result<()> {
        if meta.file_type().is_block_device() {
            // The user named a tree of files, not a drive.
            return Err(not_a_file(from).with_hint("name the device itself as a source, or leave it out"));
        }
        self.job.add_file(from, to, meta)?;
        if branch.is_followed {
            let opened = from.open()?;
            let pair = self.job.pairs.last_mut().expect("it was just added");
            pair.tag = Some(opened.tag().ok_or_else(|| not_a_file(from))?);
            pair.bytes = opened.object().bytes;
        }
        Ok(())
    }

    /// Adds a link, or what it leads to.
    fn link(&mut self, from: &Location, to: PathBuf, branch: Branch<'_>) -> Result<()> {
        let is_local = self.job.is_local();
        let is_kept = match self.links {
            LinkChoice::Keep => true,
            LinkChoice::Follow => false,
            LinkChoice::Auto => is_local && stays_inside(branch.root, &from.name)?,
        };
        if is_kept && !is_local {
            let message = "a symbolic link cannot be kept in that store";
            return Err(from
                .error(ErrorKind::Invalid, "copy", message)
                .with_hint("⟦links=follow⟧ copies what it leads to"));
        }
        if is_kept {
            let points_to = fs::read_link(&from.name).map_err(|e| Error::os("read", from.describe(), e))?;
            self.job.links.push(CopiedLink { points_to, target: to });
            return Ok(());
        }
        let meta = fs::metadata(&from.name).map_err(|e| broken(&from.name, e))?;
        let followed = Branch {
            root: &from.name,
            is_followed: true,
        };
        if !meta.is_dir() {
            return self.file(from, &to, &meta, followed);
        }
        if self.open.contains(&(meta.dev(), meta.ino())) {
            return Err(circle(&from.name));
        }
        if is_local {
            check_outside(&from.name, &to)?;
        }
        self.branch(from, &to, &meta, followed)
    }

    /// Adds an object, or all objects below its name, of a store that is not a file system.
    pub(crate) fn object(&mut self, source: &Location, target: PathBuf) -> Result<()> {
        let is_folder = source.name.as_os_str().as_bytes().ends_with(b"/");
        let refused = match source.open() {
            Ok(opened) if !is_folder => {
                self.job.add_pair(source, target, opened.object().bytes, opened.tag());
                return Ok(());
            }
            // A name that ends with a slash stands for the objects below it.
            Ok(_) => source.error(ErrorKind::NotFound, "copy", "nothing is below it"),
            Err(error) => error,
        };
        let names_before = self.job.pairs.len();
        match source.below(Missing::Refuse) {
            Ok(_) => self.below(source, &target, 0)?,
            Err(_) => return Err(refused),
        }
        if self.job.pairs.len() == names_before {
            return Err(refused);
        }
        Ok(())
    }

    /// Adds all objects below a name, of which there may be none. Lengths and versions come from the listing where it has them.
    pub(crate) fn below(&mut self, source: &Location, target: &Path, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(too_deep(source));
        }
        let Listing { objects, folders, .. } = list_all(&*source.below(Missing::Refuse)?)?;
        self.count(source, objects.len() + folders.len())?;
        for Named { name, bytes, tag, .. } in objects {
            let (from, to) = (source.join(&name), target.join(&name));
            if !self.wants(&to) {
                continue;
            }
            if let (Some(bytes), Some(tag)) = (bytes, tag) {
                self.job.add_pair(&from, to, bytes, Some(tag));
            } else {
                let opened = from.open()?;
                self.job.add_pair(&from, to, opened.object().bytes, opened.tag());
            }
        }
        for folder in folders {
            let to = target.join(&folder);
            if self.wants(&to) {
                self.below(&source.join(&folder), &to, depth + 1)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, source: &Location, names: usize) -> Result<()> {
        self.names += names;
        if self.names <= NAMES_MAX {
            return Ok(());
        }
        Err(too_many_names(source.describe(), NAMES_MAX))
    }

    fn check_depth(&self, source: &Location) -> Result<()> {
        if self.open.len() <= DEPTH_MAX {
            return Ok(());
        }
        Err(too_deep(source))
    }
}

/// The error of a source that can be neither read nor listed.
pub(crate) fn not_a_file(source: &Location) -> Error {
    source.error(ErrorKind::Invalid, "copy", "it is neither a file nor a folder")
}

fn too_deep(source: &Location) -> Error {
    let message = format!("folders are nested deeper than {DEPTH_MAX}");
    source.error(ErrorKind::Invalid, "copy", message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use straightway_io::store::{Condition, Durability, Store};
    use straightway_memory::Memory;

    use super::*;

    #[test]
    fn a_tree_with_too_many_names_is_refused() {
        let store = Memory::new("tree");
        for name in ["a", "b/c", "b/d/e", "b/d/f"] {
            let put = store.put(name.as_ref(), b"x", &Condition::Always, Durability::Unsynced);
            put.expect("memory takes it");
        }
        let source = Location {
            store: Arc::new(store),
            name: PathBuf::new(),
        };
        // The folders count too: `a`, `b`, `b/c`, `b/d`, `b/d/e`, `b/d/f`.
        for (room, is_enough) in [(5, false), (6, true)] {
            let mut job = CopyJob::empty(source.clone());
            let mut walk = Walk::new(&mut job, LinkChoice::Auto);
            walk.names = NAMES_MAX - room;
            let added = walk.below(&source, Path::new("copy"), 0);
            assert_eq!(added.is_ok(), is_enough, "{added:?}");
            if let Err(error) = added {
                assert!(error.to_string().contains(&NAMES_MAX.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn links_that_multiply_a_tree_are_counted() {
        let top = tempfile::tempdir().expect("a folder");
        // Each folder has two links to the next: 2 + 4 + 8 + 8 names.
        for number in 0..3 {
            let folder = top.path().join(number.to_string());
            fs::create_dir(&folder).expect("it is new");
            for name in ["a", "b"] {
                let next = format!("../{}", number + 1);
                std::os::unix::fs::symlink(next, folder.join(name)).expect("it is new");
            }
        }
        fs::create_dir(top.path().join("3")).expect("it is new");
        fs::write(top.path().join("3/file"), b"x").expect("small");
        let source = Location::from(&top.path().join("0"));
        let meta = fs::metadata(&source.name).expect("it is there");
        for (room, is_enough) in [(21, false), (22, true)] {
            let mut job = CopyJob::empty(Location::from(&top.path().join("copy")));
            let mut walk = Walk::new(&mut job, LinkChoice::Auto);
            walk.names = NAMES_MAX - room;
            let walked = walk.folder(&source, Path::new("copy"), &meta);
            assert_eq!(walked.is_ok(), is_enough, "{walked:?}");
            assert!(!is_enough || job.pairs.len() == 8);
        }
    }
}
