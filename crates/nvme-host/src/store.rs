//! The store of one portal: its subsystems, and their namespaces by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    sync::{Arc, Mutex, PoisonError},
};

use straightway_core::{Direction, Error, Extent, Kind, Reason, Result, Survey};
use straightway_io::{
    Handle, Store,
    engine::Engine,
    store::{
        Draft, LaneSpec, Like, Listing, Missing, Named, Page, Tag, Tuning, Verb, Verbs, own_draft,
        text,
    },
};
use straightway_nvme::Nqn;

use crate::{
    discovery::discover,
    engine::NvmeEngine,
    index,
    namespace::{InPlace, Namespace},
    portal::Portal,
    settings::Settings,
    subsystem::Subsystem,
};

/// The family of stores whose lanes have this engine.
pub const FAMILY: &str = "nvme-tcp";

/// The sizes that suit it: a command costs a target about as much as 64 KiB of data.
pub const TUNING: Tuning = Tuning {
    chunk_bytes: 1 << 20,
    depth: 32,
};

/// The most subsystems that are remembered.
const SUBSYSTEMS_MAX: usize = 256;

/// Namespaces at a portal. Names are `NQN/NSID`, or `NQN/NAME` where the target has an index of names.
#[derive(Clone, Debug)]
pub struct NvmeTcp {
    portal: Portal,
    settings: Arc<Settings>,
    subsystems: Arc<Mutex<BTreeMap<Nqn, Arc<Subsystem>>>>,
    /// What all names begin with: nothing, or parts that end with `/`.
    prefix: String,
}

/// What a name is about.
struct Place {
    subsystem: Arc<Subsystem>,
    /// What follows the NQN.
    rest: String,
}

impl Place {
    /// The number of the namespace, if it is named by one.
    fn nsid(&self) -> Option<u32> {
        let nsid = self.rest.parse().ok();
        nsid.filter(|nsid| (1..u32::MAX).contains(nsid))
    }

    /// What the names in this folder begin with: nothing, or parts that end with `/`.
    fn folder(&self) -> String {
        match self.rest.trim_end_matches('/') {
            "" => String::new(),
            rest => format!("{rest}/"),
        }
    }
}

impl NvmeTcp {
    /// The store of a portal. Nothing is connected before the first object is opened.
    pub fn new(portal: Portal, settings: Settings) -> Self {
        Self {
            portal,
            settings: Arc::new(settings),
            subsystems: Arc::default(),
            prefix: String::new(),
        }
    }

    /// What a name is about: its subsystem, which is connected later.
    fn find(&self, name: &OsStr) -> Result<Place> {
        let refuse = |why: &str| Error::new(Kind::Invalid, "open", self.describe(name), why);
        let full = format!("{}{}", self.prefix, text(self, name)?);
        let (nqn, rest) = full.split_once('/').unwrap_or((&full, ""));
        let nqn = Nqn::new(nqn).map_err(|error| refuse(error.0))?;
        let mut all = self
            .subsystems
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SUBSYSTEMS_MAX {
            all.clear();
        }
        let known = all.get(&nqn).filter(|known| known.is_own());
        let subsystem = if let Some(known) = known {
            Arc::clone(known)
        } else {
            let made = Subsystem::new(&self.portal, nqn.clone(), &self.settings);
            all.insert(nqn, Arc::clone(&made));
            made
        };
        subsystem.forgive();
        let rest = rest.to_owned();
        let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !rest.parse().is_ok_and(|nsid| (1..u32::MAX).contains(&nsid)) {
            return Err(refuse("a namespace is 1 to 4294967294"));
        }
        Ok(Place { subsystem, rest })
    }

    fn namespace(&self, name: &OsStr) -> Result<Namespace> {
        let place = self.find(name)?;
        let shown = self.describe(name);
        if let Some(nsid) = place.nsid() {
            let namespace = Namespace::open(&place.subsystem, nsid, shown)?;
            // A target of ours tells by its index when the file behind a number is replaced.
            let index = index::read(&place.subsystem)?.unwrap_or_default();
            let entry = index.entries.iter().find(|entry| entry.nsid == nsid);
            return Ok(namespace.known_as(entry.cloned()));
        }
        let missing = |why: &str| Error::new(Kind::NotFound, "open", &shown, why);
        let Some(index) = index::read(&place.subsystem)? else {
            let why = "the target has no index of names: a namespace is a number";
            return Err(missing(why));
        };
        let entry = index.find(place.rest.as_bytes()).cloned();
        let entry = entry.ok_or_else(|| missing("there is no such name in the target's index"))?;
        Namespace::by_entry(&place.subsystem, entry, shown)
    }

    /// The names of objects and folders directly below a place, with what is known of the objects.
    fn names(place: &Place) -> Result<BTreeMap<String, Named>> {
        let Some(index) = index::read(&place.subsystem)? else {
            let numbers = match place.folder().as_str() {
                "" => index::numbers(&place.subsystem)?,
                _ => Vec::new(),
            };
            let named = |nsid: u32| (nsid.to_string(), Named::new(nsid.to_string()));
            return Ok(numbers.into_iter().map(named).collect());
        };
        let before = place.folder();
        let mut names = BTreeMap::new();
        for listed in &index.entries {
            // Names that are no text cannot be written in a URI.
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

    fn verbs(&self) -> Verbs {
        Verbs::of(&[Verb::List])
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let one = |named: &Named| -> Result<Arc<dyn Handle>> {
            let namespace = self.namespace(&named.name)?;
            if named.tag.is_some() && named.tag != namespace.tag() {
                let why = "it is another version";
                let name = self.describe(&named.name);
                return Err(Error::new(Kind::Corrupt, "open", name, why));
            }
            Ok(Arc::new(namespace))
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(NvmeEngine::new(lane.depth())?))
    }

    fn family(&self) -> &'static str {
        FAMILY
    }

    fn survey(
        &self,
        objects: &[Arc<dyn Handle>],
        _hulls: &[Option<Extent>],
        _: Direction,
    ) -> Result<Vec<Survey>> {
        let survey =
            |handle: &Arc<dyn Handle>| Survey::block_socket(Reason::Tcp, handle.block_bytes());
        Ok(objects.iter().map(survey).collect())
    }

    fn sync(&self, written: &[Arc<dyn Handle>]) -> Result<()> {
        let mut flushed: Vec<&str> = Vec::new();
        let own: Vec<_> = written.iter().filter_map(Namespace::of).collect();
        for namespace in &own {
            if !flushed.contains(&namespace.name.as_str()) {
                namespace.flush()?;
                flushed.push(&namespace.name);
            }
        }
        Ok(())
    }

    fn tuning(&self) -> Tuning {
        TUNING
    }

    /// At the portal, the subsystems that its discovery controller lists, as folders; in a subsystem, its names.
    fn list(&self, page: &Page) -> Result<Listing> {
        if self.prefix.is_empty() {
            let (found, failed) = discover(&self.portal, &self.settings)?;
            for error in failed {
                tracing::warn!("a referral was left out: {error}");
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

    /// A namespace that is named by its number is no folder.
    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        let place = self.find(folder)?;
        if place.nsid().is_some() {
            let why = "it is a namespace and no folder";
            let error = Error::new(Kind::Invalid, "list", self.describe(folder), why);
            return Err(error.with_hint("name a folder that the target serves, or `ls` its NQN"));
        }
        let prefix = format!("{}/{}", place.subsystem.nqn, place.folder());
        Ok(Arc::new(Self {
            prefix,
            ..self.clone()
        }))
    }

    /// Writes a namespace that is there, in place, as a block device is written. None can be made.
    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        if self.prefix.is_empty() && !name.as_encoded_bytes().starts_with(b"nqn.") {
            return Err(self.lacks(Verb::Create));
        }
        match self.namespace(name) {
            Ok(namespace) => Ok(Box::new(namespace.draft(bytes)?)),
            Err(error) if error.kind() == Kind::NotFound => {
                let name = self.describe(name);
                let hint = format!("namespaces are written in place: serve one as {name} first");
                Err(self.lacks(Verb::Create).with_hint(hint))
            }
            Err(error) => Err(error),
        }
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        let own = drafts.into_iter().map(own_draft::<InPlace>);
        for InPlace { namespace } in own.collect::<Result<Vec<_>>>()? {
            namespace.flush()?;
        }
        Ok(())
    }
}
