//! Stores on web servers whose reads go through a cache.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, sync::Arc, time::Instant};

use straightway_core::Result;
use straightway_io::{
    engine::Engine,
    parallel,
    store::{Facts, Handle, LaneSpec, ListPage, Listing, Local, Missing, Named, Store, Verb, Verbs},
};

use crate::{asked::AskedVersions, cache::Cache, engine::CacheEngine, object::CachedObject};

/// The family of these stores. All of them use engines of `net`.
const FAMILY: &str = "cached http";

/// The most objects that the server is asked for in parallel, as when S3 opens objects without a cache.
const ASKED_MAX: usize = 32;

/// A read-only store whose reads go through a cache.
#[derive(Clone, Debug)]
pub struct CachedStore {
    inner: Arc<dyn Store>,
    cache: Arc<Cache>,
    /// The location of the store, if its names do not include it.
    site: Arc<str>,
    asked: Arc<AskedVersions>,
}

impl CachedStore {
    /// A store on web servers through a cache. `site` distinguishes stores whose objects have the same names.
    pub fn new(inner: Arc<dyn Store>, cache: &Arc<Cache>, site: &str) -> Self {
        assert_eq!(
            inner.facts().family,
            straightway_net::FAMILY,
            "lanes are shared by the family"
        );
        Self {
            inner,
            cache: Arc::clone(cache),
            site: site.into(),
            asked: Arc::default(),
        }
    }

    fn wrap(&self, named: &Named, handle: Arc<dyn Handle>) -> Arc<dyn Handle> {
        // `describe` omits the query of a URL, but two objects may differ only in it.
        let name = self.inner.describe(&named.name);
        let query = named.name.as_bytes().split(|byte| *byte == b'?').nth(1);
        let identity = [self.site.as_bytes(), name.as_bytes(), query.unwrap_or_default()];
        match CachedObject::new(&handle, &self.cache, &identity) {
            Some(cached) => Arc::new(cached),
            None => handle,
        }
    }

    /// Asks the server for each object that was opened without a request.
    ///
    /// Objects from a listing have a known length and version, and stores open them without a request. If all their
    /// bytes are cached, no other request shows that they may no longer be read, or that they were replaced.
    fn ask_server(&self, objects: &[Named], opened: &[Arc<dyn Handle>]) -> Result<()> {
        let now = Instant::now();
        let mut unasked = Vec::new();
        for (named, handle) in objects.iter().zip(opened) {
            // The bytes of other objects come from the server.
            let Some(object) = CachedObject::of(handle) else {
                continue;
            };
            let is_known = named.bytes.is_some() && named.tag.is_some();
            if !is_known {
                self.asked.add(*object.key(), now);
            } else if !self.asked.has(object.key(), now) {
                unasked.push(object);
            }
        }
        parallel::try_each(unasked.into_iter(), ASKED_MAX, |object| {
            object.remote.check_unchanged()?;
            self.asked.add(*object.key(), now);
            Ok(())
        })
        .map(drop)
    }
}

impl Store for CachedStore {
    fn describe(&self, name: &OsStr) -> String {
        self.inner.describe(name)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            family: FAMILY,
            kept_bytes_max: 0,
            local: Local::No,
            ..self.inner.facts()
        }
    }

    fn verbs(&self) -> Verbs {
        let list = self.inner.verbs().has(Verb::List).then_some(Verb::List);
        Verbs::of(list.as_slice())
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let opened = self.inner.open(objects)?;
        let wrap = |(named, handle)| self.wrap(named, handle);
        let opened: Vec<_> = objects.iter().zip(opened).map(wrap).collect();
        self.ask_server(objects, &opened)?;
        Ok(opened)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(CacheEngine::new(self.inner.engine(lane)?)?))
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        self.inner.list(page)
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        let inner = self.inner.below(folder, missing)?;
        Ok(Arc::new(Self { inner, ..self.clone() }))
    }
}
