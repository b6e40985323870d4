//! What a copy is to do: sources and a target as people name them, made into pairs of objects.
//!
//! Between file systems, folders keep their permissions and links stay links. Where a source or the target is in another
//! store, each object below a source keeps the rest of its name.

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
use straightway_core::{Error, Kind, Result, Uri, text::shell_word};
use straightway_io::{
    draft,
    store::{Listing, Location, Missing, Named, Registry, Tag, list_all},
};

/// Folders nested deeper than this are taken for a loop.
const DEPTH_MAX: usize = 256;

/// An object and where its copy goes.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The object.
    pub source: Location,
    /// The name of its copy in the store of the target.
    pub target: PathBuf,
    /// How long the object is.
    pub bytes: u64,
    /// The version that a listing told. That one is copied, or none.
    pub tag: Option<Tag>,
}

impl Pair {
    /// The object by name, with what is known of it. The length of a file may have changed, and is asked again.
    pub(crate) fn named(&self) -> Named {
        Named {
            bytes: self.tag.is_some().then_some(self.bytes),
            tag: self.tag.clone(),
            ..Named::new(&self.source.name)
        }
    }
}

/// A folder to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// Where.
    pub target: PathBuf,
    /// The permission bits of the one that it is a copy of.
    pub mode: u32,
}

/// A symbolic link inside a folder, and where its copy goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What it points to, as it says.
    pub points_to: PathBuf,
    /// Its copy.
    pub target: PathBuf,
}

/// Everything that a copy has to make, folders before what is in them.
#[derive(Clone, Debug)]
pub struct Errand {
    /// The folder that the user named, or that holds the file or folder that the user named. Everything is made below
    /// it, and links below it are not followed.
    pub base: Location,
    /// Folders to make.
    pub folders: Vec<Folder>,
    /// Objects to copy.
    pub pairs: Vec<Pair>,
    /// Links to make again.
    pub links: Vec<Link>,
}

impl Errand {
    /// Works out what copying `sources` to `target` means, each of which is a path or a URI.
    pub fn find(stores: &Registry, sources: &[PathBuf], target: &Path) -> Result<Self> {
        let locate = |name: &Path| stores.find(&Uri::parse(name)?).map(Location::from);
        let sources = sources.iter().map(|source| locate(source));
        Self::new(&sources.collect::<Result<Vec<_>>>()?, &locate(target)?)
    }

    /// The same, by their places.
    ///
    /// One file goes to `target` itself, unless that is a folder or a whole store, or outside of a file system ends with
    /// a slash; several files, or a folder, go into it. Links given by name are followed; links inside folders are kept as links.
    pub fn new(sources: &[Location], target: &Location) -> Result<Self> {
        let is_local = target.path().is_some();
        let name = target.name.as_os_str();
        let is_store = sources.len() > 1 || name.is_empty() || name.as_bytes().ends_with(b"/");
        let into = target.is_folder(is_store && !is_local);
        let mut errand = Self {
            base: if into {
                target.clone()
            } else {
                target.parent()
            },
            folders: Vec::new(),
            pairs: Vec::new(),
            links: Vec::new(),
        };
        let needs_folder = |why| {
            let folder = shell_word(&target.name.to_string_lossy()).to_string();
            Err(target
                .error(Kind::Invalid, "copy into", why)
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
                errand.add_object(source, at.name, 0)?;
                continue;
            };
            let meta = fs::metadata(&path).map_err(|e| Error::os("open", path.display(), e))?;
            if meta.is_dir() {
                if is_local {
                    check_outside(&path, &at.name)?;
                    if fs::metadata(&at.name).is_ok_and(|there| !there.is_dir()) {
                        let message = "it is a file, and a folder is meant";
                        return Err(at.error(Kind::Invalid, "copy into", message));
                    }
                }
                errand.add_folder(source, &at.name, &meta, 0)?;
            } else if !into && at.name.as_os_str().as_bytes().ends_with(b"/") {
                return needs_folder("it ends in a slash, and there is no such folder");
            } else {
                errand.add_file(source, &at.name, &meta)?;
            }
        }
        errand.check_targets_differ()?;
        Ok(errand)
    }

    /// Where the copy of a pair goes.
    pub fn target(&self, pair: &Pair) -> Location {
        Location {
            store: Arc::clone(&self.base.store),
            name: pair.target.clone(),
        }
    }

    /// How many bytes the files hold.
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
            let message = "it is neither a file nor a folder";
            return Err(source.error(Kind::Invalid, "copy", message));
        }
        let there = identity(target).filter(|_| self.is_local());
        if there == Some((meta.dev(), meta.ino())) {
            let message = format!("{} is the same file", target.display());
            return Err(source.error(Kind::Invalid, "copy", message));
        }
        if there.is_none() && self.is_local() && self.folders.is_empty() {
            let failed = |e| Error::os("create", target.display(), e);
            if !fs::metadata(draft::folder_of(target))
                .map_err(failed)?
                .is_dir()
            {
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

    fn add_folder(
        &mut self,
        source: &Location,
        target: &Path,
        meta: &fs::Metadata,
        depth: usize,
    ) -> Result<()> {
        check_depth(source, depth)?;
        if self.is_local() {
            self.folders.push(Folder {
                target: target.to_owned(),
                mode: meta.mode() & 0o777,
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
            let meta = fs::symlink_metadata(&from.name)
                .map_err(|e| Error::os("open", from.describe(), e))?;
            if meta.is_dir() {
                self.add_folder(&from, &to, &meta, depth + 1)?;
            } else if !meta.is_symlink() {
                self.add_file(&from, &to, &meta)?;
            } else if self.is_local() {
                let points_to =
                    fs::read_link(&from.name).map_err(|e| Error::os("read", from.describe(), e))?;
                self.links.push(Link {
                    points_to,
                    target: to,
                });
            } else {
                let message = "a symbolic link cannot be kept in that store";
                return Err(from
                    .error(Kind::Invalid, "copy", message)
                    .with_hint("name what it leads to as a source, or leave it out"));
            }
        }
        Ok(())
    }

    /// Adds an object, or all that is below it, of a store that is no file system.
    fn add_object(&mut self, source: &Location, target: PathBuf, depth: usize) -> Result<()> {
        let is_folder = source.name.as_os_str().as_bytes().ends_with(b"/");
        let refused = match source.open() {
            Ok(opened) if !is_folder => {
                self.add_pair(source, target, opened.object().bytes, opened.tag());
                return Ok(());
            }
            // What ends with a slash stands for what is below it.
            Ok(_) => source.error(Kind::NotFound, "copy", "nothing is below it"),
            Err(error) => error,
        };
        let names_before = self.pairs.len();
        match source.below(Missing::Refuse) {
            Ok(_) => self.add_below(source, &target, depth)?,
            Err(_) => return Err(refused),
        }
        if self.pairs.len() == names_before {
            return Err(refused);
        }
        Ok(())
    }

    /// Adds all that is below a name. What a listing tells of an object is not asked again.
    fn add_below(&mut self, source: &Location, target: &Path, depth: usize) -> Result<()> {
        check_depth(source, depth)?;
        let Listing {
            objects, folders, ..
        } = list_all(&*source.below(Missing::Refuse)?)?;
        for Named {
            name, bytes, tag, ..
        } in objects
        {
            let (from, to) = (source.join(&name), target.join(&name));
            if let (Some(bytes), Some(tag)) = (bytes, tag) {
                self.add_pair(&from, to, bytes, Some(tag));
            } else {
                let opened = from.open()?;
                self.add_pair(&from, to, opened.object().bytes, opened.tag());
            }
        }
        for folder in folders {
            self.add_below(&source.join(&folder), &target.join(&folder), depth + 1)?;
        }
        Ok(())
    }

    fn check_targets_differ(&self) -> Result<()> {
        let refuse = |target: &Path| {
            let message = "two sources would go there";
            let target = target.display();
            Err(Error::new(Kind::Invalid, "copy into", target, message))
        };
        let files = self.pairs.iter().map(|p| &p.target);
        let mut targets: Vec<_> = files.chain(self.links.iter().map(|l| &l.target)).collect();
        targets.sort_unstable();
        if let Some(pair) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(pair[0]);
        }
        // Folders of the same name become one, but nothing else is put where a folder goes.
        let mut folders = self.folders.iter().map(|f| &f.target);
        match folders.find(|folder| targets.binary_search(folder).is_ok()) {
            Some(folder) => refuse(folder),
            None => Ok(()),
        }
    }

    /// An error where `path`, which is about to be written, is something that is copied or made here.
    pub fn check_apart(&self, path: &Path) -> Result<()> {
        let sources = self.pairs.iter().filter_map(|p| p.source.path());
        let targets = self.pairs.iter().map(|p| &p.target);
        let targets = targets.chain(self.links.iter().map(|l| &l.target));
        let targets = targets.filter_map(|name| self.base.store.path(name.as_os_str()));
        match sources.chain(targets).find(|other| is_same(path, other)) {
            None => Ok(()),
            Some(other) => {
                let message = format!("{} is being copied, and is the same file", other.display());
                Err(Error::new(
                    Kind::Invalid,
                    "write to",
                    path.display(),
                    message,
                ))
            }
        }
    }
}

fn check_depth(source: &Location, depth: usize) -> Result<()> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    let message = format!("folders are nested deeper than {DEPTH_MAX}");
    Err(source.error(Kind::Invalid, "copy", message))
}

/// What the kernel knows a file by.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Whether two paths lead to one file, be it there yet or not.
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => {
            let folder = |path| identity(draft::folder_of(path));
            one.file_name() == other.file_name() && folder(one) == folder(other)
        }
        _ => false,
    }
}

/// Whether two names are of one object.
pub(crate) fn is_same_place(one: &Location, other: &Location) -> bool {
    match (one.path(), other.path()) {
        (Some(one), Some(other)) => is_same(&one, &other),
        _ => one.describe() == other.describe(),
    }
}

/// A folder cannot be copied into itself.
fn check_outside(source: &Path, target: &Path) -> Result<()> {
    let own = identity(source);
    let mut folder = Some(target);
    while let Some(part) = folder {
        // A path of one name lies in the current folder, though its parent is written as nothing.
        let here = if part.as_os_str().is_empty() {
            Path::new(".")
        } else {
            part
        };
        if let Ok(real) = fs::canonicalize(here) {
            // By what the kernel knows them by: a bind mount gives a folder a second path.
            if real.ancestors().any(|part| identity(part) == own) {
                let message = format!("{} is inside it", target.display());
                return Err(Error::new(Kind::Invalid, "copy", source.display(), message));
            }
            break;
        }
        folder = part.parent();
    }
    Ok(())
}
