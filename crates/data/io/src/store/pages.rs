//! The pages of a listing, one after the other. The listing ends even if the service is faulty.

use std::ffi::{OsStr, OsString};

use straightway_core::{Error, ErrorKind, Result};

use super::{ListPage, Listing, Store};

/// The most names that [`list_all`] lists, and that a tree may have which is copied or removed. More are refused, not
/// read in part.
pub const NAMES_MAX: usize = straightway_sys::folder::NAMES_MAX;

/// The most pages without a name in a row. A service may send some, for example while it skips removed objects.
const EMPTY_PAGES_MAX: u32 = 1000;

/// The pages of a listing of a store, with at most `names_max` names each. Pages that do not advance, or too many empty
/// pages in a row, are an error. The iterator ends after an error.
pub fn pages<S: Store + ?Sized>(store: &S, names_max: usize) -> impl Iterator<Item = Result<Listing>> {
    Pages {
        store,
        names_max,
        after: None,
        empty: 0,
        is_over: false,
    }
}

/// Lists all names in a store, page by page. Pages that do not advance, or too many names, are an error.
pub fn list_all<S: Store + ?Sized>(store: &S) -> Result<Listing> {
    let mut all = Listing::default();
    for page in pages(store, NAMES_MAX) {
        let page = page?;
        all.objects.extend(page.objects);
        all.folders.extend(page.folders);
        if all.objects.len() + all.folders.len() > NAMES_MAX {
            return Err(too_many_names(store.describe(OsStr::new("")), NAMES_MAX));
        }
    }
    Ok(all)
}

/// The error of a listing of `store` with more than `names_max` names. A faulty service may list names forever.
pub fn too_many_names(store: String, names_max: usize) -> Error {
    let message = format!("it has more than {names_max} names below it, or its service lists names without end");
    Error::new(ErrorKind::Invalid, "list", store, message).with_hint("name a longer prefix or a folder below it")
}

struct Pages<'a, S: ?Sized> {
    store: &'a S,
    names_max: usize,
    /// The start of the next page.
    after: Option<OsString>,
    /// The number of pages without a name since the last page with one.
    empty: u32,
    is_over: bool,
}

impl<S: Store + ?Sized> Pages<'_, S> {
    fn request(&mut self) -> Result<Listing> {
        let page = self.store.list(&ListPage {
            after: self.after.clone(),
            names_max: self.names_max,
        })?;
        if page.next.is_none() {
            self.is_over = true;
            return Ok(page);
        }
        if page.next <= self.after {
            return Err(self.refuse("its pages do not advance".to_owned()));
        }
        self.after.clone_from(&page.next);
        let is_empty = page.objects.is_empty() && page.folders.is_empty();
        self.empty = if is_empty { self.empty + 1 } else { 0 };
        if self.empty > EMPTY_PAGES_MAX {
            let why = format!("more than {EMPTY_PAGES_MAX} pages in a row are empty");
            return Err(self.refuse(why));
        }
        Ok(page)
    }

    fn refuse(&self, why: String) -> Error {
        let store = self.store.describe(OsStr::new(""));
        Error::new(ErrorKind::Corrupt, "list", store, why)
            .with_hint("the service or a gateway in front of it is faulty: list a longer prefix")
    }
}

impl<S: Store + ?Sized> Iterator for Pages<'_, S> {
    type Item = Result<Listing>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let page = self.request();
        self.is_over |= page.is_err();
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::Engine,
        store::{Facts, Handle, LaneSpec, Named, Verb, Verbs},
    };

    /// A store whose page number `n` is made by a function. The start of a page is its number.
    #[derive(Debug)]
    struct Scripted(fn(u32) -> Listing);

    impl Store for Scripted {
        fn describe(&self, name: &OsStr) -> String {
            format!("scripted:{}", name.display())
        }

        fn verbs(&self) -> Verbs {
            Verbs::of(&[Verb::List])
        }

        fn open(&self, _: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
            unreachable!("nothing is opened")
        }

        fn engine(&self, _: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
            unreachable!("nothing is read")
        }

        fn facts(&self) -> Facts<'_> {
            Facts::of("scripted")
        }

        fn list(&self, page: &ListPage) -> Result<Listing> {
            let number = page.after.as_ref().map_or(0, |after| {
                let number = after.to_str().unwrap();
                number.parse().unwrap()
            });
            Ok((self.0)(number))
        }
    }

    fn start(number: u32) -> OsString {
        format!("{number:06}").into()
    }

    #[test]
    fn all_pages_are_listed_although_some_are_empty() {
        let store = Scripted(|number| Listing {
            objects: match number % 100 {
                99 => vec![Named::new(number.to_string())],
                _ => Vec::new(),
            },
            next: (number < 3000).then(|| start(number + 1)),
            ..Listing::default()
        });
        assert_eq!(pages(&store, 10).count(), 3001);
        assert_eq!(list_all(&store).unwrap().objects.len(), 30);
    }

    #[test]
    fn a_listing_that_does_not_advance_ends_with_one_error() {
        let repeats: fn(u32) -> Listing = |_| Listing {
            objects: vec![Named::new("x")],
            next: Some(start(7)),
            ..Listing::default()
        };
        let is_empty: fn(u32) -> Listing = |number| Listing {
            next: Some(start(number + 1)),
            ..Listing::default()
        };
        for (script, listed, why) in [(repeats, 1, "do not advance"), (is_empty, EMPTY_PAGES_MAX, "are empty")] {
            let pages: Vec<_> = pages(&Scripted(script), 10).collect();
            let (last, before) = pages.split_last().unwrap();
            assert_eq!(before.len(), listed as usize);
            assert!(before.iter().all(Result::is_ok));
            let error = last.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(why) && error.hint().is_some(), "{error}");
        }
    }
}
