//! One page of the names in a store.

use std::ffi::{OsStr, OsString};

use super::Named;

/// A request for one page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// [`Listing::next`] of the previous page.
    pub after: Option<OsString>,
    /// The most names to list. A store may list fewer.
    pub names_max: usize,
}

/// One page of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Objects whose names have one part.
    pub objects: Vec<Named>,
    /// The first parts of all other names.
    pub folders: Vec<OsString>,
    /// The start of the next page; `None` at the end.
    pub next: Option<OsString>,
}

impl Listing {
    /// Cuts one page out of all `names`. Names of folders end with a slash, as in an object store.
    pub fn of(mut names: Vec<String>, page: &ListPage) -> Self {
        let after = page.after.as_deref();
        names.retain(|name| after.is_none_or(|after| OsStr::new(name) > after));
        names.sort_unstable();
        let is_more = names.len() > page.names_max;
        names.truncate(page.names_max);
        let next = names.last().filter(|_| is_more).map(OsString::from);
        let (folders, objects): (Vec<_>, Vec<_>) = names.into_iter().partition(|n| n.ends_with('/'));
        let folder = |name: String| name.trim_end_matches('/').into();
        Self {
            objects: objects.into_iter().map(Named::new).collect(),
            folders: folders.into_iter().map(folder).collect(),
            next,
        }
    }
}
