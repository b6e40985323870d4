//! The path of a served file, and where links on the way to it may lead.
//!
//! A link below a served folder may lead to any file that the target's user can read. Whoever may write to the folder can
//! then serve such a file. With [`Links::Inside`] or [`Links::None`] the kernel resolves the path (`openat2`), at each
//! look and each open: a link that is changed in between is refused too.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};

/// The attempts to open a file while a folder on the way to it is being renamed.
const TRIES: usize = 16;

/// The links below a served folder that are followed. Links in the path of the folder itself are always followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// All, wherever they lead.
    #[default]
    Any,
    /// Those that lead to a file in the folder, by a relative path that does not leave it.
    Inside,
    /// None: a link is not served.
    None,
}

/// The path of a served file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedPath {
    /// The file's path, for messages, and for opening it if links are not restricted.
    path: PathBuf,
    /// The served folder and the path in it, if links below it are restricted.
    beneath: Option<Beneath>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Beneath {
    folder: PathBuf,
    relative: PathBuf,
    resolve: ResolveFlags,
}

impl ServedPath {
    /// A file that the user named.
    pub(crate) fn named(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            beneath: None,
        }
    }

    /// A file in a served folder.
    pub(crate) fn inside(folder: &Path, relative: &Path, links: Links) -> Self {
        let resolve = match links {
            Links::Any => None,
            Links::Inside => Some(ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS),
            Links::None => Some(ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS),
        };
        Self {
            path: folder.join(relative),
            beneath: resolve.map(|resolve| Beneath {
                folder: folder.to_owned(),
                relative: relative.to_owned(),
                resolve,
            }),
        }
    }

    /// The path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata of the file. A file behind a link that is not followed does not exist.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        match &self.beneath {
            None => fs::metadata(&self.path),
            Some(beneath) => beneath.open(OFlags::PATH)?.metadata(),
        }
    }

    /// Opens the file.
    pub(crate) fn open(&self, is_writable: bool) -> io::Result<File> {
        match &self.beneath {
            None => OpenOptions::new().read(true).write(is_writable).open(&self.path),
            Some(beneath) => {
                let access = if is_writable { OFlags::RDWR } else { OFlags::RDONLY };
                // A pipe that has taken the place of the file is not waited for.
                beneath.open(access | OFlags::NONBLOCK)
            }
        }
    }
}

impl Beneath {
    fn open(&self, flags: OFlags) -> io::Result<File> {
        let folder = openat(
            CWD,
            &self.folder,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        for _ in 0..TRIES {
            let flags = flags | OFlags::CLOEXEC;
            match openat2(&folder, &self.relative, flags, Mode::empty(), self.resolve) {
                Ok(file) => return Ok(File::from(file)),
                Err(Errno::AGAIN) => {}
                Err(Errno::XDEV | Errno::LOOP) => {
                    let why = "a link on the way to it is not followed";
                    return Err(io::Error::new(io::ErrorKind::NotFound, why));
                }
                Err(Errno::NOSYS) => {
                    let why = "links can be restricted from Linux 5.6 on: use `--links any`, or a newer kernel";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, why));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::AGAIN.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_as_far_as_they_may() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("served");
        fs::create_dir_all(folder.join("sub")).expect("it is new");
        fs::write(top.path().join("secret"), b"outside").expect("small");
        fs::write(folder.join("file"), b"inside").expect("small");
        let whole = folder.join("file");
        for (name, to) in [
            ("sub/up", "../file".as_ref()),
            ("out", "../secret".as_ref()),
            ("sub/far", "../../secret".as_ref()),
            ("whole", whole.as_path()),
            ("chain", "sub/up".as_ref()),
            ("through", "../served/file".as_ref()),
        ] {
            symlink(to, folder.join(name)).expect("it is new");
        }
        symlink("sub", folder.join("folder")).expect("it is new");
        for (name, links) in [
            ("file", &[Links::Any, Links::Inside, Links::None][..]),
            ("sub/up", &[Links::Any, Links::Inside]),
            ("chain", &[Links::Any, Links::Inside]),
            ("folder/up", &[Links::Any, Links::Inside]),
            ("out", &[Links::Any]),
            ("sub/far", &[Links::Any]),
            ("whole", &[Links::Any]),
            ("through", &[Links::Any]),
        ] {
            for one in [Links::Any, Links::Inside, Links::None] {
                let path = ServedPath::inside(&folder, name.as_ref(), one);
                let found = path.metadata().map(|meta| meta.len());
                let opened = path.open(false).and_then(|file| file.metadata());
                let lengths = (found, opened.map(|meta| meta.len()));
                match lengths {
                    (Ok(length), Ok(opened)) if links.contains(&one) => assert_eq!(length, opened),
                    (Err(error), Err(_)) if !links.contains(&one) => {
                        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name} with {one:?}: {error}");
                    }
                    other => panic!("{name} with {one:?}: {other:?}"),
                }
            }
        }
        // A link in the path of the folder itself is followed.
        let alias = top.path().join("alias");
        symlink(&folder, &alias).expect("it is new");
        let path = ServedPath::inside(&alias, "file".as_ref(), Links::None);
        assert_eq!(path.metadata().expect("it exists").len(), 6);
    }
}
