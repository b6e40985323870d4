//! A tree of folders that is written to, none of which may be a symbolic link.
//!
//! The root is the user's own word, and links on the way to it are followed. What is below it may have been prepared
//! by somebody else: a link there would lead what is written out of the tree. Each folder is opened by its name
//! relative to the one above it, never through a link, and what is done in it is done through its descriptor, so that
//! nobody can put a link in its place meanwhile.

use std::{
    ffi::OsStr,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io::Errno,
};
use straightway_core::{Error, Kind, Result};

/// A tree of folders.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

impl Tree {
    /// The tree below `path`, which is there.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty());
        let root = root.map_err(|e| Error::os("open", path.display(), e.into()))?;
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    /// Opens a folder of the tree. `path` begins with the root's.
    pub fn folder(&self, path: &Path) -> Result<OwnedFd> {
        self.walk(path, |_, _| Ok(()))
    }

    /// Opens a folder of the tree, and makes it and those above it where they are missing.
    pub fn make_folder(&self, path: &Path) -> Result<OwnedFd> {
        self.walk(path, |above, name| {
            match mkdirat(above, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(errno),
            }
        })
    }

    fn walk(
        &self,
        path: &Path,
        prepare: impl Fn(&OwnedFd, &OsStr) -> rustix::io::Result<()>,
    ) -> Result<OwnedFd> {
        let failed = |at: &Path, errno: Errno| Error::os("open", at.display(), errno.into());
        let below = match path.strip_prefix(&self.path) {
            Ok(below) => below,
            // A path in the current folder may be written without its dot.
            Err(_) if self.path == Path::new(".") && path.is_relative() => path,
            Err(_) => {
                let message = format!("it is not below {}", self.path.display());
                return Err(Error::new(Kind::Invalid, "open", path.display(), message));
            }
        };
        let mut at = self.path.clone();
        let mut folder = self
            .root
            .try_clone()
            .map_err(|e| Error::os("open", at.display(), e))?;
        for part in below.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::CurDir => continue,
                _ => {
                    let message = "it leads out of the tree";
                    return Err(Error::new(Kind::Invalid, "open", path.display(), message));
                }
            };
            at.push(name);
            prepare(&folder, name).map_err(|errno| failed(&at, errno))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = match openat(&folder, name, flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(no_folder(&at)),
                Err(errno) => return Err(failed(&at, errno)),
            };
        }
        Ok(folder)
    }
}

fn no_folder(path: &Path) -> Error {
    let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    let (message, hint) = if is_link {
        (
            "it is a symbolic link, which is not followed there",
            "name where it leads as the target, or remove it",
        )
    } else {
        ("it is no folder", "choose another target, or remove it")
    };
    Error::new(Kind::Invalid, "write into", path.display(), message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn folders_are_made_and_opened_below_the_root_and_never_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let (root, outside) = (home.path().join("root"), home.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink("root", home.path().join("named")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let tree = Tree::open(&home.path().join("named")).unwrap();
        let inside = |name: &str| home.path().join("named").join(name);
        tree.make_folder(&inside("a/b")).unwrap();
        assert!(root.join("a/b").is_dir());
        let identity = |folder: OwnedFd| {
            let stat = rustix::fs::fstat(folder).unwrap();
            (stat.st_dev, stat.st_ino)
        };
        assert_eq!(
            identity(tree.folder(&inside("")).unwrap()),
            identity(Tree::open(&root).unwrap().root)
        );
        for name in ["link", "link/deep", "a/../../outside", "file", "file/x"] {
            assert!(tree.folder(&inside(name)).is_err(), "{name}");
            assert!(tree.make_folder(&inside(name)).is_err(), "{name}");
        }
        let error = tree.folder(&inside("link")).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert!(tree.folder(&outside).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
