//! The work of one copy: the sources and the target that the user named, resolved to pairs of objects.
//!
//! Between file systems, folders keep their permissions and symbolic links stay links. Where a source or the target is
//! in another store, each object keeps its name relative to the source.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::io::Errno;
use straightway_core::{Error, ErrorKind, Result, text::shell_word};
use straightway_io::{
    draft,
    store::{
        Listing, Location, Missing, NAMES_MAX, Named, Registry, StoreExt, Tag, file_identity, is_same_file, list_all,
        too_many_names,
    },
};
use straightway_sys::Rights;

/// The maximum depth of nested folders. Deeper nesting is treated as a loop.
const DEPTH_MAX: usize = 256;

/// An object and the target of its copy.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The object.
    pub source: Location,
    /// The name of its copy in the store of the target.
    pub target: PathBuf,
    /// The length of the object in bytes.
    pub bytes: u64,
    /// The object's version from the listing, if there was one. Only this version is copied.
    pub tag: Option<Tag>,
}

impl Pair {
    /// The object's name with its known version and length. A file's length may have changed, so it is left out and
    /// read again.
    pub(crate) fn named(&self) -> Named {
        Named {
            bytes: self.tag.is_some().then_some(self.bytes),
            tag: self.tag.clone(),
            ..Named::new(&self.source.name)
        }
    }
}

/// A folder to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedFolder {
    /// Its path.
    pub target: PathBuf,
    /// The permissions of the original.
    pub rights: Rights,
}

/// A symbolic link inside a folder, and the path of its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedLink {
    /// The path that the link contains, unresolved.
    pub points_to: PathBuf,
    /// The path of its copy.
    pub target: PathBuf,
}

/// Everything that a copy creates. Each folder comes before its contents.
#[derive(Clone, Debug)]
pub struct CopyJob {
    /// The folder that the user named as the target, or the parent of the named file or folder. Everything is created
    /// below it, and links below it are not followed.
    pub base: Location,
    /// Folders to create.
    pub folders: Vec<CopiedFolder>,
    /// Objects to copy.
    pub pairs: Vec<Pair>,
    /// Links to recreate.
    pub links: Vec<CopiedLink>,
    /// Whether the target is a block device that the user asked to overwrite.
    pub(crate) onto_device: bool,
}

impl CopyJob {
    /// Resolves `sources` and `target`, each a path or a URI, to a job.
    pub fn find(stores: &Registry, sources: &[PathBuf], target: &Path) -> Result<Self> {
        let sources = sources.iter().map(|source| stores.locate(source));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        Self::new(&sources, &stores.locate(target)?)
    }

    /// Makes a job from resolved locations.
    ///
    /// One file is copied to `target` itself, unless that is a folder, a whole store, or (outside a file system) ends
    /// with a slash. Several files, or a folder, are copied into `target`. A source that is a link is followed; links
    /// inside folders stay links.
    pub fn new(sources: &[Location], target: &Location) -> Result<Self> {
        let is_local = target.path().is_some();
        let name = target.name.as_os_str();
        let is_store = sources.len() > 1 || name.is_empty() || name.as_bytes().ends_with(b"/");
        let into = target.is_folder(is_store && !is_local);
        let mut job = Self {
            base: if into { target.clone() } else { target.parent() },
            folders: Vec::new(),
            pairs: Vec::new(),
            links: Vec::new(),
            onto_device: false,
        };
        if target.path().is_some_and(|path| is_device(&path)) {
            let message = "it is a block device, and its contents would be lost";
            return Err(target
                .error(ErrorKind::Invalid, "write to", message)
                .with_hint("⟦to_device⟧ overwrites it"));
        }
        let needs_folder = |why| {
            let folder = shell_word(&target.name.to_string_lossy()).to_string();
            Err(target
                .error(ErrorKind::Invalid, "copy into", why)
                .with_hint(format!("mkdir -p {folder}")))
        };
        if sources.len() > 1 && !into {
            return needs_folder("several sources need a folder that exists");
        }
        for source in sources {
            let at = match source.name.file_name() {
                Some(name) if into => target.join(name),
                _ => target.clone(),
            };
            let Some(path) = source.path() else {
                job.add_object(source, at.name, 0)?;
                continue;
            };
            let meta = fs::metadata(&path).map_err(|e| Error::os("open", path.display(), e))?;
            if meta.is_dir() {
                if is_local {
                    check_outside(&path, &at.name)?;
                    if fs::metadata(&at.name).is_ok_and(|there| !there.is_dir()) {
                        let message = "it is a file, not a folder";
                        return Err(at.error(ErrorKind::Invalid, "copy into", message));
                    }
                }
                job.add_folder(source, &at.name, &meta, 0)?;
            } else if !into && at.name.as_os_str().as_bytes().ends_with(b"/") {
                return needs_folder("it ends in a slash, and there is no such folder");
            } else {
                job.add_file(source, &at.name, &meta)?;
            }
        }
        job.check_targets_differ()?;
        Ok(job)
    }

    /// Makes a job that overwrites a block device with one file or object. Only the user may ask for that: no other
    /// job writes to a device. A link to the device is followed.
    pub fn onto_device(sources: &[Location], device: &Location) -> Result<Self> {
        let refuse = |message: &str| Err(device.error(ErrorKind::Invalid, "overwrite", message));
        let path = device.path().and_then(|path| fs::canonicalize(path).ok());
        let Some(path) = path.filter(|path| is_device(path)) else {
            return refuse("it is not a block device");
        };
        let [source] = sources else {
            return refuse("only one file can be copied onto a device");
        };
        let target = Location::from(&path);
        let mut job = Self {
            base: target.parent(),
            folders: Vec::new(),
            pairs: Vec::new(),
            links: Vec::new(),
            onto_device: true,
        };
        let Some(from) = source.path() else {
            let opened = source.open()?;
            job.add_pair(source, path, opened.object().bytes, opened.tag());
            return Ok(job);
        };
        let meta = fs::metadata(&from).map_err(|e| Error::os("open", from.display(), e))?;
        if meta.is_dir() {
            return refuse("a folder cannot be copied onto a device");
        }
        // Two nodes of one device differ in their inodes.
        let devices = (device_number(&from), device_number(&path));
        if devices.0.is_some() && devices.0 == devices.1 {
            let message = format!("{} is the same device", path.display());
            return Err(source.error(ErrorKind::Invalid, "copy", message));
        }
        job.add_file(source, &path, &meta)?;
        Ok(job)
    }

    /// The location of a pair's copy.
    pub fn target(&self, pair: &Pair) -> Location {
        Location {
            store: Arc::clone(&self.base.store),
            name: pair.target.clone(),
        }
    }

    /// The total length of all objects in bytes.
    pub fn bytes(&self) -> u64 {
        self.pairs.iter().map(|p| p.bytes).sum()
    }

    /// Whether the target is a file system, which has links and permissions.
    fn is_local(&self) -> bool {
        self.base.path().is_some()
    }

    fn add_file(&mut self, source: &Location, target: &Path, meta: &fs::Metadata) -> Result<()> {
        let kind = meta.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(not_a_file(source));
        }
        let existing = file_identity(target).filter(|_| self.is_local());
        if existing == Some((meta.dev(), meta.ino())) {
            let message = format!("{} is the same file", target.display());
            return Err(source.error(ErrorKind::Invalid, "copy", message));
        }
        if existing.is_none() && self.is_local() && self.folders.is_empty() {
            let failed = |e| Error::os("create", target.display(), e);
            if !fs::metadata(draft::folder_of(target)).map_err(failed)?.is_dir() {
                return Err(failed(Errno::NOTDIR.into()));
            }
        }
        self.add_pair(source, target.to_owned(), meta.len(), None);
        Ok(())
    }

    fn add_pair(&mut self, source: &Location, target: PathBuf, bytes: u64, tag: Option<Tag>) {
        self.pairs.push(Pair {
            source: source.clone(),
            target,
            bytes,
            tag,
        });
    }

    fn add_folder(&mut self, source: &Location, target: &Path, meta: &fs::Metadata, depth: usize) -> Result<()> {
        check_depth(source, depth)?;
        if self.is_local() {
            self.folders.push(CopiedFolder {
                target: target.to_owned(),
                rights: Rights::of_folder(&source.name, meta.mode()),
            });
        }
        let failed = |e| Error::os("list", source.describe(), e);
        let mut entries: Vec<_> = fs::read_dir(&source.name)
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        // In a fixed order, so that two runs do the same.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name();
            let (from, to) = (source.join(&name), target.join(&name));
            let meta = fs::symlink_metadata(&from.name).map_err(|e| Error::os("open", from.describe(), e))?;
            if meta.is_dir() {
                self.add_folder(&from, &to, &meta, depth + 1)?;
            } else if meta.file_type().is_block_device() {
                // The user named a tree of files, not a drive.
                return Err(not_a_file(&from).with_hint("name the device itself as a source, or leave it out"));
            } else if !meta.is_symlink() {
                self.add_file(&from, &to, &meta)?;
            } else if self.is_local() {
                let points_to = fs::read_link(&from.name).map_err(|e| Error::os("read", from.describe(), e))?;
                self.links.push(CopiedLink { points_to, target: to });
            } else {
                let message = "a symbolic link cannot be kept in that store";
                return Err(from
                    .error(ErrorKind::Invalid, "copy", message)
                    .with_hint("name its target as a source, or leave it out"));
            }
        }
        Ok(())
    }

    /// Adds an object, or all objects below its name, of a store that is not a file system.
    fn add_object(&mut self, source: &Location, target: PathBuf, depth: usize) -> Result<()> {
        let is_folder = source.name.as_os_str().as_bytes().ends_with(b"/");
        let refused = match source.open() {
            Ok(opened) if !is_folder => {
                self.add_pair(source, target, opened.object().bytes, opened.tag());
                return Ok(());
            }
            // A name that ends with a slash stands for the objects below it.
            Ok(_) => source.error(ErrorKind::NotFound, "copy", "nothing is below it"),
            Err(error) => error,
        };
        let names_before = self.pairs.len();
        match source.below(Missing::Refuse) {
            Ok(_) => self.add_below(source, &target, depth, &mut 0)?,
            Err(_) => return Err(refused),
        }
        if self.pairs.len() == names_before {
            return Err(refused);
        }
        Ok(())
    }

    /// Adds all objects below a name. Lengths and versions come from the listing where it has them. `names` counts the
    /// names of the whole tree: each folder of a faulty service may list further folders.
    fn add_below(&mut self, source: &Location, target: &Path, depth: usize, names: &mut usize) -> Result<()> {
        check_depth(source, depth)?;
        let Listing { objects, folders, .. } = list_all(&*source.below(Missing::Refuse)?)?;
        *names += objects.len() + folders.len();
        if *names > NAMES_MAX {
            return Err(too_many_names(source.describe(), NAMES_MAX));
        }
        for Named { name, bytes, tag, .. } in objects {
            let (from, to) = (source.join(&name), target.join(&name));
            if let (Some(bytes), Some(tag)) = (bytes, tag) {
                self.add_pair(&from, to, bytes, Some(tag));
            } else {
                let opened = from.open()?;
                self.add_pair(&from, to, opened.object().bytes, opened.tag());
            }
        }
        for folder in folders {
            self.add_below(&source.join(&folder), &target.join(&folder), depth + 1, names)?;
        }
        Ok(())
    }

    fn check_targets_differ(&self) -> Result<()> {
        let refuse = |target: &Path| {
            let message = "two sources would go there";
            let target = target.display();
            Err(Error::new(ErrorKind::Invalid, "copy into", target, message))
        };
        let files = self.pairs.iter().map(|p| &p.target);
        let mut targets: Vec<_> = files.chain(self.links.iter().map(|l| &l.target)).collect();
        targets.sort_unstable();
        if let Some(pair) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(pair[0]);
        }
        // Folders of the same name are merged, but a file or link must not have the same target as a folder.
        let mut folders = self.folders.iter().map(|f| &f.target);
        match folders.find(|folder| targets.binary_search(folder).is_ok()) {
            Some(folder) => refuse(folder),
            None => Ok(()),
        }
    }

    /// Returns an error if `path`, which is about to be written, is a source or a target of this job.
    pub fn check_apart(&self, path: &Path) -> Result<()> {
        let sources = self.pairs.iter().filter_map(|p| p.source.path());
        let targets = self.pairs.iter().map(|p| &p.target);
        let targets = targets.chain(self.links.iter().map(|l| &l.target));
        let targets = targets.filter_map(|name| self.base.store.path(name.as_os_str()));
        match sources.chain(targets).find(|other| is_same_file(path, other)) {
            None => Ok(()),
            Some(other) => {
                let message = format!("{} is being copied, and is the same file", other.display());
                Err(Error::new(ErrorKind::Invalid, "write to", path.display(), message))
            }
        }
    }
}

fn not_a_file(source: &Location) -> Error {
    source.error(ErrorKind::Invalid, "copy", "it is neither a file nor a folder")
}

/// Whether a path leads to a block device.
fn is_device(path: &Path) -> bool {
    device_number(path).is_some()
}

/// The number of a block device; `None` for anything else.
fn device_number(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

fn check_depth(source: &Location, depth: usize) -> Result<()> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    let message = format!("folders are nested deeper than {DEPTH_MAX}");
    Err(source.error(ErrorKind::Invalid, "copy", message))
}

/// Returns an error if `target` is inside the folder `source`.
fn check_outside(source: &Path, target: &Path) -> Result<()> {
    let own = file_identity(source);
    let mut folder = Some(target);
    while let Some(part) = folder {
        // The parent of a bare file name is the empty path, which means the current folder.
        let here = if part.as_os_str().is_empty() {
            Path::new(".")
        } else {
            part
        };
        if let Ok(real) = fs::canonicalize(here) {
            // Compared by inode, because a bind mount gives a folder a second path.
            if real.ancestors().any(|part| file_identity(part) == own) {
                let message = format!("{} is inside it", target.display());
                return Err(Error::new(ErrorKind::Invalid, "copy", source.display(), message));
            }
            break;
        }
        folder = part.parent();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
            let mut job = CopyJob {
                base: source.clone(),
                folders: Vec::new(),
                pairs: Vec::new(),
                links: Vec::new(),
                onto_device: false,
            };
            let added = job.add_below(&source, Path::new("copy"), 0, &mut (NAMES_MAX - room));
            assert_eq!(added.is_ok(), is_enough, "{added:?}");
            if let Err(error) = added {
                assert!(error.to_string().contains(&NAMES_MAX.to_string()), "{error}");
            }
        }
    }
}
