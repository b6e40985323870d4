//! The location of an object or of a prefix: a store, and a name in it. Also tells whether two lead to the same object.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Result};

use super::{Draft, Files, Handle, Like, Missing, Named, Store, StoreExt};
use crate::draft::folder_of;

/// A store and a name in it. A plain path is a name in the store of local files.
#[derive(Clone, Debug)]
pub struct Location {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The name, empty for the store itself.
    pub name: PathBuf,
}

impl Location {
    /// A name below it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        Self {
            store: Arc::clone(&self.store),
            name: self.name.join(name),
        }
    }

    /// The enclosing folder or prefix.
    #[must_use]
    pub fn parent(&self) -> Self {
        let is_path = self.path().is_some() && self.store.folder().is_none();
        let parent = match self.name.parent() {
            _ if is_path => folder_of(&self.name),
            parent => parent.unwrap_or(Path::new("")),
        };
        Self {
            store: Arc::clone(&self.store),
            name: parent.to_owned(),
        }
    }

    /// The store of the objects below it.
    pub fn below(&self, missing: Missing) -> Result<Arc<dyn Store>> {
        if self.name.as_os_str().is_empty() {
            return Ok(Arc::clone(&self.store));
        }
        self.store.below(self.name.as_os_str(), missing)
    }

    /// The store of the objects below it, if it is a folder. A file system knows that; for other stores
    /// `is_like_folder` decides.
    pub fn folder(&self, is_like_folder: bool) -> Result<Option<Arc<dyn Store>>> {
        match self.below(Missing::Refuse) {
            Ok(inside) if inside.folder().is_some() || is_like_folder => Ok(Some(inside)),
            Ok(_) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFolder) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is a folder.
    pub fn is_folder(&self, is_like_folder: bool) -> bool {
        matches!(self.folder(is_like_folder), Ok(Some(_)))
    }

    /// Opens it for reading.
    pub fn open(&self) -> Result<Arc<dyn Handle>> {
        let mut opened = self.store.open(&[Named::new(&self.name)])?;
        Ok(opened.pop().expect("one handle for each name"))
    }

    /// Begins the object.
    pub fn create(&self, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        self.store.create(self.name.as_os_str(), bytes, like)
    }

    /// Its path, if it is a local file or folder.
    pub fn path(&self) -> Option<PathBuf> {
        self.store.path(self.name.as_os_str())
    }

    /// Whether it and `other` are the same object, which need not exist yet.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.path(), other.path()) {
            (Some(one), Some(other)) => is_same_file(&one, &other),
            _ => self.describe() == other.describe(),
        }
    }

    /// Its name in messages.
    pub fn describe(&self) -> String {
        self.store.describe(self.name.as_os_str())
    }

    /// An error about it.
    pub fn error(&self, kind: ErrorKind, operation: &'static str, why: impl Into<String>) -> Error {
        Error::new(kind, operation, self.describe(), why.into())
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Location {
    fn from(path: &P) -> Self {
        Self {
            store: Arc::new(Files::default()),
            name: path.as_ref().to_owned(),
        }
    }
}

impl From<(Arc<dyn Store>, OsString)> for Location {
    fn from((store, name): (Arc<dyn Store>, OsString)) -> Self {
        let name = name.into();
        Self { store, name }
    }
}

/// Whether two paths lead to the same file, which need not exist yet.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (file_identity(one), file_identity(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => {
            let folder = |path| file_identity(folder_of(path));
            one.file_name() == other.file_name() && folder(one) == folder(other)
        }
        _ => false,
    }
}

/// The device and inode number of a file, if it exists.
pub fn file_identity(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}
