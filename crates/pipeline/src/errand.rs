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
use straightway_core::{Error, Kind, Result, Scheme, Uri, text::shell_word};
use straightway_io::{
    draft,
    store::{Listing, Location, Missing, Registry, list_all},
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
        let all = sources.iter().map(PathBuf::as_path).chain([target]);
        let mut uris: Vec<_> = all.map(Uri::parse).collect::<Result<_>>()?;
        if uris.iter().all(|uri| uri.scheme() == Scheme::Path) {
            return Self::new(sources, target);
        }
        let target = uris.pop().expect("the target is the last");
        let sources = uris.iter().map(|uri| stores.find(uri).map(Location::from));
        Self::between(
            &sources.collect::<Result<Vec<_>>>()?,
            &stores.find(&target)?.into(),
        )
    }

    /// What copying objects and all that is below them means. One object goes to `target` itself, unless that is a
    /// folder or a whole store; several go into it.
    pub fn between(sources: &[Location], target: &Location) -> Result<Self> {
        let into =
            sources.len() > 1 || target.name.as_os_str().is_empty() || target.is_folder(false);
        let base = if into {
            target.clone()
        } else {
            target.parent()
        };
        let mut errand = Self::below(base);
        for source in sources {
            let target = match source.name.file_name() {
                Some(name) if into => target.name.join(name),
                _ => target.name.clone(),
            };
            errand.add_all(source, target, 0)?;
        }
        errand.check_targets_differ()?;
        Ok(errand)
    }

    fn below(base: Location) -> Self {
        Self {
            base,
            folders: Vec::new(),
            pairs: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Works out what copying files and folders to `target` means.
    ///
    /// One file goes to `target` itself, unless that is a folder; several files, or a folder, go
    /// into it. Links given by name are followed; links inside folders are kept as links.
    pub fn new(sources: &[PathBuf], target: &Path) -> Result<Self> {
        let into = target.is_dir();
        let base = if into {
            target
        } else {
            draft::folder_of(target)
        };
        let mut errand = Self::below(base.into());
        let needs_folder = |why| {
            Err(
                Error::new(Kind::Invalid, "copy into", target.display(), why).with_hint(format!(
                    "mkdir -p {}",
                    shell_word(&target.to_string_lossy())
                )),
            )
        };
        if sources.len() > 1 && !into {
            return needs_folder("several sources need a folder that exists");
        }
        for source in sources {
            let meta = fs::metadata(source).map_err(|e| Error::os("open", source.display(), e))?;
            let target = match source.file_name() {
                Some(name) if into => target.join(name),
                _ => target.to_owned(),
            };
            if meta.is_dir() {
                check_outside(source, &target)?;
                if fs::metadata(&target).is_ok_and(|there| !there.is_dir()) {
                    let message = "it is a file, and a folder is meant";
                    let at = target.display();
                    return Err(Error::new(Kind::Invalid, "copy into", at, message));
                }
                errand.add_folder(source, &target, &meta, 0)?;
            } else if !into && target.as_os_str().as_bytes().ends_with(b"/") {
                return needs_folder("it ends in a slash, and there is no such folder");
            } else {
                errand.add_file(source, &target, &meta)?;
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

    fn add_file(&mut self, source: &Path, target: &Path, meta: &fs::Metadata) -> Result<()> {
        let kind = meta.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let message = "it is neither a file nor a folder";
            return Err(Error::new(Kind::Invalid, "copy", source.display(), message));
        }
        if let Some(there) = identity(target) {
            if there == (meta.dev(), meta.ino()) {
                let message = format!("{} is the same file", target.display());
                return Err(Error::new(Kind::Invalid, "copy", source.display(), message));
            }
        } else if let Some(folder) = target.parent().filter(|f| !f.as_os_str().is_empty())
            && self.folders.is_empty()
        {
            let failed = |e| Error::os("create", target.display(), e);
            if !fs::metadata(folder).map_err(failed)?.is_dir() {
                return Err(failed(Errno::NOTDIR.into()));
            }
        }
        self.pairs.push(Pair {
            source: Location {
                store: Arc::clone(&self.base.store),
                name: source.to_owned(),
            },
            target: target.to_owned(),
            bytes: meta.len(),
        });
        Ok(())
    }

    /// Adds an object, or all that is below it.
    fn add_all(&mut self, source: &Location, target: PathBuf, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            let message = format!("folders are nested deeper than {DEPTH_MAX}");
            return Err(source.error(Kind::Invalid, "copy", message));
        }
        let is_link = |path: PathBuf| path.is_symlink();
        if depth > 0 && source.path().is_some_and(is_link) {
            let message = "a symbolic link cannot be kept in another store";
            return Err(source
                .error(Kind::Invalid, "copy", message)
                .with_hint("name what it leads to as a source, or leave it out"));
        }
        let refused = match source.open() {
            Ok(opened) => {
                self.pairs.push(Pair {
                    source: source.clone(),
                    target,
                    bytes: opened.object().bytes,
                });
                return Ok(());
            }
            Err(error) => error,
        };
        let Ok(inside) = source.below(Missing::Refuse) else {
            return Err(refused);
        };
        let names = list_all(&*inside)?;
        if names == Listing::default() && depth == 0 {
            return Err(refused);
        }
        let objects = names.objects.iter().map(|object| &object.name);
        for name in objects.chain(&names.folders) {
            self.add_all(&source.join(name), target.join(name), depth + 1)?;
        }
        Ok(())
    }

    fn add_folder(
        &mut self,
        source: &Path,
        target: &Path,
        meta: &fs::Metadata,
        depth: usize,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            let message = format!("folders are nested deeper than {DEPTH_MAX}");
            return Err(Error::new(Kind::Invalid, "copy", source.display(), message));
        }
        self.folders.push(Folder {
            target: target.to_owned(),
            mode: meta.mode() & 0o777,
        });
        let failed = |e| Error::os("list", source.display(), e);
        let mut entries: Vec<_> = fs::read_dir(source)
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        // In a fixed order, so that two runs do the same.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (from, to) = (entry.path(), target.join(entry.file_name()));
            let meta =
                fs::symlink_metadata(&from).map_err(|e| Error::os("open", from.display(), e))?;
            if meta.is_symlink() {
                let points_to =
                    fs::read_link(&from).map_err(|e| Error::os("read", from.display(), e))?;
                self.links.push(Link {
                    points_to,
                    target: to,
                });
            } else if meta.is_dir() {
                self.add_folder(&from, &to, &meta, depth + 1)?;
            } else {
                self.add_file(&from, &to, &meta)?;
            }
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
