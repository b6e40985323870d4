//! What a copy is to do: sources and a target as people name them, made into pairs of files.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use straightway_core::{Error, Kind, Result, text::shell_word};
use straightway_io::draft;

/// Folders nested deeper than this are taken for a loop.
const DEPTH_MAX: usize = 256;

/// A file and where its copy goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The file.
    pub source: PathBuf,
    /// Its copy.
    pub target: PathBuf,
    /// How long the file is.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errand {
    /// The folder that the user named, or that holds the file or folder that the user named. Everything is made below
    /// it, and links below it are not followed.
    pub base: PathBuf,
    /// Folders to make.
    pub folders: Vec<Folder>,
    /// Files to copy.
    pub pairs: Vec<Pair>,
    /// Links to make again.
    pub links: Vec<Link>,
}

impl Errand {
    /// Works out what copying `sources` to `target` means.
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
        let mut errand = Self {
            base: base.to_owned(),
            ..Self::default()
        };
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
        let (source, target) = (source.to_owned(), target.to_owned());
        self.pairs.push(Pair {
            source,
            target,
            bytes: meta.len(),
        });
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
        let sources = self.pairs.iter().map(|p| &p.source);
        let targets = self.pairs.iter().map(|p| &p.target);
        let links = self.links.iter().map(|l| &l.target);
        match sources
            .chain(targets)
            .chain(links)
            .find(|other| is_same(path, other))
        {
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
