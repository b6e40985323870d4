//! The work of one copy: the sources and the target that the user named, resolved to pairs of objects.
//!
//! Between file systems, folders keep their permissions, and symbolic links are kept or followed ([`LinkChoice`]). Where a
//! source or the target is in another store, each object keeps its name relative to the source.

use std::{
    collections::BTreeSet,
    fs, io,
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
    store::{Location, Named, Registry, StoreExt, Tag, file_identity, is_same_file},
};
use straightway_sys::Rights;

use crate::{
    links::LinkChoice,
    sources::Sources,
    walk::{Walk, not_a_file},
};

/// What a copy has to know besides its sources and its target.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// What becomes of symbolic links inside folders.
    pub links: LinkChoice,
    /// Whether the target is a folder even for a single source: a pattern may match any number of names.
    pub into_folder: bool,
}

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
    /// Resolves `sources` and `target`, each a path or a URI, to a job. Sources may be patterns ([`Sources::find`]).
    pub fn find(stores: &Registry, sources: &[PathBuf], target: &Path) -> Result<Self> {
        let sources = Sources::find(stores, sources)?;
        let options = CopyOptions {
            into_folder: sources.has_pattern,
            ..CopyOptions::default()
        };
        Self::with(&sources.found, &stores.locate(target)?, options)
    }

    /// Makes a job from resolved locations, with the usual options.
    pub fn new(sources: &[Location], target: &Location) -> Result<Self> {
        Self::with(sources, target, CopyOptions::default())
    }

    /// Makes a job from resolved locations.
    ///
    /// One file is copied to `target` itself, unless that is a folder, a whole store, or (outside a file system) ends
    /// with a slash. Several files, or a folder, are copied into `target`. A source that is a link is followed; for
    /// links inside folders, see [`LinkChoice`].
    pub fn with(sources: &[Location], target: &Location, options: CopyOptions) -> Result<Self> {
        let is_local = target.path().is_some();
        let is_several = sources.len() > 1 || options.into_folder;
        let name = target.name.as_os_str();
        let is_store = is_several || name.is_empty() || name.as_bytes().ends_with(b"/");
        let into = target.is_folder(is_store && !is_local);
        let mut job = Self::empty(if into { target.clone() } else { target.parent() });
        if target.path().is_some_and(|path| is_device(&path)) {
            let message = "it is a block device, and its contents would be lost";
            return Err(target
                .error(ErrorKind::Invalid, "write to", message)
                .with_hint("⟦to_device⟧ overwrites it"));
        }
        if is_several && !into {
            return Err(no_folder(target, "several sources need a folder that exists"));
        }
        for source in sources {
            let at = match source.name.file_name() {
                Some(name) if into => target.join(name),
                _ => target.clone(),
            };
            let Some(path) = source.path() else {
                Walk::new(&mut job, options.links).object(source, at.name)?;
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
                Walk::new(&mut job, options.links).folder(source, &at.name, &meta)?;
            } else if !into && at.name.as_os_str().as_bytes().ends_with(b"/") {
                return Err(no_folder(target, "it ends in a slash, and there is no such folder"));
            } else {
                job.add_file(source, &at.name, &meta)?;
            }
        }
        job.check_targets_differ()?;
        Ok(job)
    }

    /// Makes a job that copies the contents of a folder into `target`, which need not exist: the files whose paths
    /// relative to the folder `is_wanted` accepts. It is asked about folders too. Links are followed.
    pub fn contents(source: &Location, target: &Location, is_wanted: impl Fn(&Path) -> bool) -> Result<Self> {
        let mut job = Self::empty(target.clone());
        let filter = |to: &Path| to.strip_prefix(&target.name).is_ok_and(&is_wanted);
        let walk = Walk::new(&mut job, LinkChoice::Follow);
        let mut walk = walk.filtered(&filter);
        match source.path() {
            Some(path) => {
                let meta = fs::metadata(&path).map_err(|e| Error::os("open", path.display(), e))?;
                walk.folder(source, &target.name, &meta)?;
            }
            None => walk.below(source, &target.name, 0)?,
        }
        // Folders without a wanted file are left out, and the target itself is not a copy.
        let files = job.pairs.iter().flat_map(|pair| pair.target.ancestors().skip(1));
        let parents: BTreeSet<_> = files.map(Path::to_owned).collect();
        job.folders
            .retain(|folder| folder.target != target.name && parents.contains(&folder.target));
        Ok(job)
    }

    /// A job that does nothing yet.
    pub(crate) fn empty(base: Location) -> Self {
        Self {
            base,
            folders: Vec::new(),
            pairs: Vec::new(),
            links: Vec::new(),
            onto_device: false,
        }
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
            onto_device: true,
            ..Self::empty(target.parent())
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

    /// What to say about a job without a file: it moves nothing, although something was named.
    pub(crate) fn nothing_to_move(&self) -> Option<String> {
        let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        self.pairs.is_empty().then(|| {
            let (folders, links) = (count(self.folders.len(), "folder"), count(self.links.len(), "link"));
            format!("no file was copied, because the sources have none: they have {folders} and {links}")
        })
    }

    /// Whether the target is a file system, which has links and permissions.
    pub(crate) fn is_local(&self) -> bool {
        self.base.path().is_some()
    }

    pub(crate) fn add_file(&mut self, source: &Location, target: &Path, meta: &fs::Metadata) -> Result<()> {
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
            check_folder_of(target)?;
        }
        self.add_pair(source, target.to_owned(), meta.len(), None);
        Ok(())
    }

    pub(crate) fn add_pair(&mut self, source: &Location, target: PathBuf, bytes: u64, tag: Option<Tag>) {
        self.pairs.push(Pair {
            source: source.clone(),
            target,
            bytes,
            tag,
        });
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

/// Returns an error if the folder of a new file does not exist.
fn check_folder_of(target: &Path) -> Result<()> {
    let failed = |e| Error::os("create", target.display(), e);
    let folder = draft::folder_of(target);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(failed(Errno::NOTDIR.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = "its folder does not exist";
            let error = Error::new(ErrorKind::NotFound, "create", target.display(), message);
            Err(error.with_hint(format!("mkdir -p {}", shell_word(&folder.to_string_lossy()))))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The error of a target that has to be a folder.
fn no_folder(target: &Location, why: &str) -> Error {
    if target.path().is_some_and(|path| path.exists()) {
        let message = "it is a file, and several sources need a folder";
        return target.error(ErrorKind::NotFolder, "copy into", message);
    }
    let folder = shell_word(&target.name.to_string_lossy()).to_string();
    let error = target.error(ErrorKind::Invalid, "copy into", why);
    error.with_hint(format!("mkdir -p {folder}"))
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

/// Returns an error if `target` is inside the folder `source`.
pub(crate) fn check_outside(source: &Path, target: &Path) -> Result<()> {
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
