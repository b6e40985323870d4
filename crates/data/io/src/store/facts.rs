//! What does not change about a store, as data.

use straightway_sys::Folder;

use super::Tuning;

/// What does not change about a store.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The family of stores whose engines can serve it. Stores of one family share their lanes.
    pub family: &'static str,
    /// The service's address, where [`describe`](super::Store::describe) omits it.
    pub service: Option<&'a str>,
    /// The chunk size and queue depth that suit it; `None` for those of a drive, which are measured.
    pub tuning: Option<Tuning>,
    /// Objects up to this length stay in memory from creation to commit.
    pub kept_bytes_max: u64,
    /// Whether its objects are local files.
    pub local: Local<'a>,
}

impl Facts<'_> {
    /// The facts of a store of this family, with default values.
    pub fn of(family: &'static str) -> Self {
        Self {
            family,
            service: None,
            tuning: None,
            kept_bytes_max: 0,
            local: Local::No,
        }
    }
}

/// The place of a store in the file system.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// It is not in the file system.
    No,
    /// Its names are paths.
    Paths,
    /// Its names are below this folder. Folders have safeguards that object stores lack: locks that end with their
    /// process, a unique number, and rename.
    Below(&'a Folder),
}
