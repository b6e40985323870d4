//! Access to the small objects of a store of checkpoints: records, tags and manifests.

use straightway_core::{ErrorKind, Result};
use straightway_io::store::{Condition, Durability, Store, list_all};

/// The names in a store that are valid UTF-8.
pub(crate) fn names(store: &dyn Store) -> Result<Vec<String>> {
    let all = list_all(store)?;
    let objects = all.objects.into_iter().map(|object| object.name);
    let names = objects.chain(all.folders);
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Puts an object if its name is free. Returns whether it was put.
pub(crate) fn put(store: &dyn Store, name: &str, text: &str, how: Durability) -> Result<bool> {
    store.put(name.as_ref(), text.as_bytes(), &Condition::IfAbsent, how)
}

/// Turns a `NotFound` error into `None`.
pub(crate) fn if_there<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
