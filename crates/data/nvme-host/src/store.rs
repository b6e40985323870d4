//! The store of one portal: its subsystems, and their namespaces as named objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::{
    Handle, Store,
    engine::Engine,
    request::Op,
    store::{
        CommitMode, Draft, Facts, LaneSpec, Like, ListPage, Listing, Missing, Named, StoreExt, Tag, Tuning, Verb,
        Verbs, own_draft, text,
    },
};
use straightway_nvme::{Nqn, index::NameIndex};

use crate::{
    discovery::discover,
    engine::NvmeEngine,
    identity::{
        catalog::{Catalog, EntryKey, Lookup, has_folder},
        opened::changed,
        unchanged,
    },
    namespace::{InPlace, Namespace},
    portal::Portal,
    settings::HostSettings,
};

/// The store family: stores whose lanes can share this engine.
pub const FAMILY: &str = "nvme-tcp";

/// The sizes of I/Os: those of web servers. The engine divides an I/O into commands that the target accepts.
pub const TUNING: Tuning = Tuning {
    chunk_bytes: 8 << 20,
    depth: 16,
};

/// The maximum number of cached subsystems.
const SUBSYSTEMS_MAX: usize = 256;

/// The namespaces at a portal. Names are `NQN/NSID`, or `NQN/NAME` if the target has a name index. A number is a name
/// if the index has a file or folder of that name; otherwise it is the number of a namespace.
#[derive(Clone, Debug)]
pub struct NvmeTcp {
    portal: Portal,
    settings: Arc<HostSettings>,
    catalogs: Arc<Lock<BTreeMap<Nqn, Arc<Catalog>>>>,
    /// The prefix of all names: empty, or path components that end with `/`.
    prefix: String,
}

/// A parsed object name.
struct Place {
    catalog: Arc<Catalog>,
    /// The part of the name after the NQN.
    rest: String,
}

impl Place {
    /// Whether the name is a number.
    fn is_number(&self) -> bool {
        !self.rest.is_empty() && self.rest.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// The namespace identifier, if the name is a number in its range.
    fn nsid(&self) -> Option<u32> {
        let nsid = self.rest.parse().ok().filter(|_| self.is_number());
        nsid.filter(|nsid| (1..u32::MAX).contains(nsid))
    }

    /// The prefix of the names in this folder: empty, or path components that end with `/`.
    fn folder(&self) -> String {
        match self.rest.trim_end_matches('/') {
            "" => String::new(),
            rest => format!("{rest}/"),
        }
    }
}

impl NvmeTcp {
    /// The store of a portal. It connects when the first object is opened.
    pub fn new(portal: Portal, settings: HostSettings) -> Self {
        Self {
            portal,
            settings: Arc::new(settings),
            catalogs: Arc::default(),
            prefix: String::new(),
        }
    }

    /// Parses a name and finds its subsystem, which is connected later.
    fn find(&self, name: &OsStr) -> Result<Place> {
        let refuse = |why: &str| Error::new(ErrorKind::Invalid, "open", self.describe(name), why);
        let full = format!("{}{}", self.prefix, text(self, name)?);
        let (nqn, rest) = full.split_once('/').unwrap_or((&full, ""));
        let nqn = Nqn::new(nqn).map_err(|error| refuse(error.0))?;
        let mut all = self.catalogs.lock();
        let known = all.get(&nqn).filter(|known| known.subsystem.is_own());
        let catalog = if let Some(known) = known {
            Arc::clone(known)
        } else {
            if all.len() >= SUBSYSTEMS_MAX {
                all.clear();
            }
            let made = Catalog::new(&self.portal, nqn.clone(), &self.settings);
            all.insert(nqn, Arc::clone(&made));
            made
        };
        catalog.subsystem.allow_retries();
        let rest = rest.to_owned();
        Ok(Place { catalog, rest })
    }

    fn namespace(&self, name: &OsStr) -> Result<Namespace> {
        let place = self.find(name)?;
        let shown = self.describe(name);
        let Place { catalog, rest } = &place;
        let index = match catalog.lookup(EntryKey::Name(rest.as_bytes()))? {
            Lookup::Found(entry) => return Namespace::open_entry(catalog, entry, shown),
            Lookup::Missing(index) => index,
        };
        let has_index = index.is_some();
        let index = index.unwrap_or_default();
        let missing = |why: &str| Error::new(ErrorKind::NotFound, "open", &shown, why);
        if has_folder(&index, rest) {
            return Err(missing("it is a folder").with_hint("name a file in it"));
        }
        if let Some(nsid) = place.nsid() {
            // The entry shows when the file of the namespace is replaced. It is read anew: that in the index may have
            // an old version.
            let entry = if index.entries.iter().any(|entry| entry.nsid == nsid) {
                catalog.lookup(EntryKey::Namespace(nsid))?.into_entry()
            } else {
                None
            };
            return Namespace::open(catalog, nsid, entry, shown);
        }
        Err(if place.is_number() {
            let why = "a namespace is 1 to 4294967294";
            Error::new(ErrorKind::Invalid, "open", &shown, why)
        } else if has_index {
            missing("the target's index has no such name")
        } else {
            missing("the target has no name index: use the number of a namespace")
        })
    }

    /// The objects and folders directly below a place, with the known properties of the objects.
    fn names(place: &Place) -> Result<BTreeMap<String, Named>> {
        let Some(index) = place.catalog.read()? else {
            let numbers = match place.folder().as_str() {
                "" => place.catalog.numbers()?,
                _ => Vec::new(),
            };
            let named = |nsid: u32| (nsid.to_string(), Named::new(nsid.to_string()));
            return Ok(numbers.into_iter().map(named).collect());
        };
        let before = place.folder();
        let mut names = BTreeMap::new();
        for listed in &index.entries {
            // A name that is not UTF-8 cannot be written in a URI.
            let name = str::from_utf8(&listed.name).ok();
            let Some(below) = name.and_then(|name| name.strip_prefix(&before)) else {
                continue;
            };
            let first: String = below.split_inclusive('/').take(1).collect();
            let known = Named {
                bytes: Some(listed.bytes),
                tag: Some(Tag::Text(listed.version.to_string())),
                ..Named::new(&first)
            };
            names.insert(first, known);
        }
        Ok(names)
    }
}

impl Store for NvmeTcp {
    fn describe(&self, name: &OsStr) -> String {
        let Self { portal, prefix, .. } = self;
        format!("nvme-tcp://{portal}/{prefix}{}", name.display())
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            tuning: Some(TUNING),
            ..Facts::of(FAMILY)
        }
    }

    fn verbs(&self) -> Verbs {
        Verbs::of(&[Verb::List])
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let one = |named: &Named| -> Result<Arc<dyn Handle>> {
            let namespace = self.namespace(&named.name)?;
            let is_other_tag = named.tag.is_some() && named.tag != namespace.tag();
            let is_other_length = named.bytes.is_some_and(|bytes| bytes != namespace.object().bytes);
            if is_other_tag || is_other_length {
                let why = "it is another version than the one that was listed";
                let name = self.describe(&named.name);
                return Err(changed("open", name, why));
            }
            Ok(Arc::new(namespace))
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(NvmeEngine::new(lane.depth())?))
    }

    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        match after {
            Op::Read => check_unchanged(objects),
            Op::Write => flush(objects),
        }
    }

    /// Lists the subsystems of the discovery controller at the portal as folders, or the names in a subsystem.
    fn list(&self, page: &ListPage) -> Result<Listing> {
        if self.prefix.is_empty() {
            let (found, failed) = discover(&self.portal, &self.settings)?;
            for error in failed {
                tracing::warn!("cannot read a referral: {error}");
            }
            let names: BTreeSet<_> = found.iter().map(|f| format!("{}/", f.subsystem)).collect();
            return Ok(Listing::of(names.into_iter().collect(), page));
        }
        let known = Self::names(&self.find(OsStr::new(""))?)?;
        let mut listing = Listing::of(known.keys().cloned().collect(), page);
        for named in &mut listing.objects {
            if let Some(known) = named.name.to_str().and_then(|name| known.get(name)) {
                *named = known.clone();
            }
        }
        Ok(listing)
    }

    /// A number is a folder only if the target has names below it.
    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        let place = self.find(folder)?;
        let is_folder = |index: Arc<NameIndex>| has_folder(&index, &place.rest);
        if place.nsid().is_some() && !place.catalog.current()?.is_some_and(is_folder) {
            let why = "it is a namespace, not a folder";
            let error = Error::new(ErrorKind::NotFolder, "list", self.describe(folder), why);
            return Err(error.with_hint("name a folder that the target serves, or `ls` its NQN"));
        }
        let prefix = format!("{}/{}", place.catalog.subsystem.nqn, place.folder());
        Ok(Arc::new(Self { prefix, ..self.clone() }))
    }

    /// Writes an existing namespace in place, like a block device. Namespaces cannot be created.
    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        if self.prefix.is_empty() && !name.as_encoded_bytes().starts_with(b"nqn.") {
            return Err(self.lacks(Verb::Create));
        }
        match self.namespace(name) {
            Ok(namespace) => Ok(Box::new(namespace.draft(bytes)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let name = self.describe(name);
                let hint = format!("namespaces are written in place: serve one as {name} first");
                Err(self.lacks(Verb::Create).with_hint(hint))
            }
            Err(error) => Err(error),
        }
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, _: CommitMode) -> Result<()> {
        let own = drafts.into_iter().map(own_draft::<InPlace>);
        for InPlace { namespace } in own.collect::<Result<Vec<_>>>()? {
            namespace.opened.flush()?;
        }
        Ok(())
    }
}

/// Flushes the namespaces of objects, each once.
fn flush(written: &[Arc<dyn Handle>]) -> Result<()> {
    let mut flushed: Vec<&str> = Vec::new();
    let own: Vec<_> = written.iter().filter_map(Namespace::of).collect();
    for namespace in &own {
        if !flushed.contains(&namespace.name()) {
            namespace.opened.flush()?;
            flushed.push(namespace.name());
        }
    }
    Ok(())
}

/// Reads the versions of all files of a subsystem together. One command for each file and path would take a round trip
/// each.
fn check_unchanged(objects: &[Arc<dyn Handle>]) -> Result<()> {
    let mut own = Vec::new();
    for object in objects {
        match Namespace::of(object) {
            Some(namespace) => own.push(Arc::clone(&namespace.opened)),
            None => object.check_unchanged()?,
        }
    }
    unchanged::check_all(&own)
}
