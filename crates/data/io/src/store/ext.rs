//! Conveniences for users of a store, which follow from its methods.

use std::{ffi::OsStr, path::PathBuf, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{Folder, folder::Durability};

use super::{Handle, Local, Named, Removal, Store, Tag, Verb};
use crate::request::Op;

/// Conveniences of every store.
pub trait StoreExt: Store {
    /// An address that no other store has. It includes the service's address where `describe` omits it.
    fn address(&self) -> String {
        let store = self.describe(OsStr::new(""));
        match self.facts().service {
            Some(service) => format!("{store} at {service}"),
            None => store,
        }
    }

    /// The error for a verb that is not declared.
    fn lacks(&self, verb: Verb) -> Error {
        verb.missing_in(self.describe(OsStr::new("")))
    }

    /// Reads a whole small object of at most `bytes_max` bytes.
    fn get(&self, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
        read_whole(self, &*open_one(self, name)?, name, bytes_max)
    }

    /// Returns an error if one of these open objects has changed since it was opened.
    fn check_unchanged(&self, objects: &[Arc<dyn Handle>]) -> Result<()> {
        self.settle(Op::Read, objects)
    }

    /// Waits until the bytes written to objects are durable.
    fn sync(&self, written: &[Arc<dyn Handle>]) -> Result<()> {
        self.settle(Op::Write, written)
    }

    /// Removes an object, or an empty folder where folders exist. A missing object is not an error.
    fn remove(&self, name: &OsStr, how: Durability) -> Result<()> {
        self.remove_all(&[Removal::Object(name)], how).map(drop)
    }

    /// Removes an object if its version is still this one. Returns whether it was removed.
    fn remove_if_match(&self, name: &OsStr, tag: &Tag, how: Durability) -> Result<bool> {
        let removed = self.remove_all(&[Removal::Version(name, tag)], how)?;
        Ok(removed == [true])
    }

    /// Removes all objects whose names begin with `folder/`, and the folder.
    fn clear(&self, folder: &OsStr) -> Result<()> {
        self.remove_all(&[Removal::Tree(folder)], Durability::Unsynced)
            .map(drop)
    }

    /// The path of an object that is a local file.
    fn path(&self, name: &OsStr) -> Option<PathBuf> {
        match self.facts().local {
            Local::No => None,
            Local::Paths => Some(name.into()),
            Local::Below(root) if name.is_empty() => Some(root.path().to_owned()),
            Local::Below(root) => Some(root.join(name)),
        }
    }

    /// The local folder behind this store.
    fn folder(&self) -> Option<&Folder> {
        match self.facts().local {
            Local::Below(root) => Some(root),
            Local::No | Local::Paths => None,
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// Opens one object for reading.
pub fn open_one<S: Store + ?Sized>(store: &S, name: &OsStr) -> Result<Arc<dyn Handle>> {
    let mut opened = store.open(&[Named::new(name)])?;
    Ok(opened.pop().expect("one handle for each name"))
}

/// Reads a whole open object of at most `bytes_max` bytes.
pub fn read_whole<S: Store + ?Sized>(store: &S, handle: &dyn Handle, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
    let bytes = handle.object().bytes;
    if bytes > bytes_max {
        let message = format!("it is longer than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::Corrupt, "read", store.describe(name), message));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    handle.read_exact_at(0, &mut content)?;
    Ok(content)
}
