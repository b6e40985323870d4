//! What is removed from a store.

use std::ffi::OsStr;

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::folder::Durability;

use super::{Missing, Store, Tag, Verb, list_all};

/// The deepest nesting of folders that [`clear_below`] accepts.
const DEPTH_MAX: usize = 64;

/// One thing to remove.
#[derive(Clone, Copy, Debug)]
pub enum Removal<'a> {
    /// An object, or an empty folder where folders exist. A missing one is not an error.
    Object(&'a OsStr),
    /// An object, if its version is still this one.
    Version(&'a OsStr, &'a Tag),
    /// All objects whose names begin with `folder/`, and the folder.
    Tree(&'a OsStr),
}

impl<'a> Removal<'a> {
    /// The name of the object or the folder.
    pub fn name(&self) -> &'a OsStr {
        match *self {
            Self::Object(name) | Self::Version(name, _) | Self::Tree(name) => name,
        }
    }

    /// The verb of this removal.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Object(_) | Self::Tree(_) => Verb::Remove,
            Self::Version(..) => Verb::RemoveIfMatch,
        }
    }
}

/// Removes a tree one folder after the other. For stores that cannot remove it at once.
pub fn clear_below<S: Store + ?Sized>(store: &S, folder: &OsStr) -> Result<()> {
    clear_to_depth(store, folder, DEPTH_MAX)
}

fn clear_to_depth<S: Store + ?Sized>(store: &S, folder: &OsStr, depth: usize) -> Result<()> {
    if depth == 0 {
        let message = format!("its folders are nested more than {DEPTH_MAX} deep");
        return Err(Error::new(ErrorKind::Invalid, "clear", store.describe(folder), message));
    }
    let inside = store.below(folder, Missing::Refuse)?;
    let listing = list_all(&*inside)?;
    let objects: Vec<_> = listing.objects.iter().map(|o| Removal::Object(&o.name)).collect();
    inside.remove_all(&objects, Durability::Unsynced)?;
    for below in listing.folders {
        clear_to_depth(&*inside, &below, depth - 1)?;
    }
    let own = [Removal::Object(folder)];
    store.remove_all(&own, Durability::Unsynced).map(drop)
}
