//! The store of a URI. The registry is built where the environment is read: in `cli` and at the Python edge.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Lock, Result, Scheme, Uri};

use super::{Files, Location, Store};

/// Makes the store of an authority.
type Maker = Box<dyn Fn(&str) -> Result<Arc<dyn Store>> + Send + Sync>;

/// Stores by scheme and authority. Each is made once.
pub struct Registry {
    makers: BTreeMap<Scheme, Maker>,
    made: Lock<BTreeMap<(Scheme, String), Arc<dyn Store>>>,
}

impl Default for Registry {
    /// A registry with local files only.
    fn default() -> Self {
        let empty = Self {
            makers: BTreeMap::new(),
            made: Lock::default(),
        };
        empty.with(Scheme::Path, |_| Ok(Arc::new(Files::default())))
    }
}

impl Registry {
    /// Adds a kind of store.
    #[must_use]
    pub fn with(
        mut self,
        scheme: Scheme,
        maker: impl Fn(&str) -> Result<Arc<dyn Store>> + Send + Sync + 'static,
    ) -> Self {
        self.makers.insert(scheme, Box::new(maker));
        self
    }

    /// The store of a URI, and the object's name in it.
    pub fn find(&self, uri: &Uri) -> Result<(Arc<dyn Store>, OsString)> {
        let key = (uri.scheme(), uri.authority().to_owned());
        let mut made = self.made.lock();
        if let Some(store) = made.get(&key) {
            return Ok((Arc::clone(store), uri.name().to_owned()));
        }
        let maker = self.makers.get(&uri.scheme()).ok_or_else(|| {
            let known: Vec<_> = self.makers.keys().map(|scheme| scheme.form()).collect();
            let message = "this program has no such store";
            Error::new(ErrorKind::Unsupported, "open", uri, message).with_hint(format!(
                "copy it by other means to where this program reaches: {}",
                known.join(", ")
            ))
        })?;
        let store = maker(uri.authority())?;
        made.insert(key, Arc::clone(&store));
        Ok((store, uri.name().to_owned()))
    }

    /// The location that a path or URI names.
    pub fn locate(&self, name: impl AsRef<OsStr>) -> Result<Location> {
        self.find(&Uri::parse(name)?).map(Location::from)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.makers.keys()).finish()
    }
}
