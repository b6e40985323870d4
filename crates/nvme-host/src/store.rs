//! The store of one portal: its subsystems, and their namespaces by name.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{Arc, Mutex, PoisonError},
};

use straightway_core::{Direction, Error, Extent, Kind, Reason, Result, Survey};
use straightway_io::{
    Handle, Store,
    engine::Engine,
    store::{Draft, LaneSpec, Like, Named, Tuning, Verb, Verbs, own_draft, text},
};
use straightway_nvme::Nqn;

use crate::{
    engine::NvmeEngine,
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

/// Namespaces at a portal. Names are `NQN/NSID`.
#[derive(Debug)]
pub struct NvmeTcp {
    portal: Portal,
    settings: Arc<Settings>,
    subsystems: Mutex<BTreeMap<Nqn, Arc<Subsystem>>>,
}

impl NvmeTcp {
    /// The store of a portal. Nothing is connected before the first object is opened.
    pub fn new(portal: Portal, settings: Settings) -> Self {
        Self {
            portal,
            settings: Arc::new(settings),
            subsystems: Mutex::default(),
        }
    }

    /// The portal.
    pub fn portal(&self) -> &Portal {
        &self.portal
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The subsystem and the namespace of a name.
    fn find(&self, name: &OsStr) -> Result<(Arc<Subsystem>, u32)> {
        let refuse = |why: String| Error::new(Kind::Invalid, "open", self.describe(name), why);
        let text = text(self, name)?;
        let (nqn, nsid) = text.rsplit_once('/').unwrap_or((text, "1"));
        let nsid: u32 = nsid
            .parse()
            .ok()
            .filter(|nsid| (1..u32::MAX).contains(nsid))
            .ok_or_else(|| refuse("a namespace is 1 to 4294967294".to_owned()))?;
        let nqn = Nqn::new(nqn).map_err(|error| refuse(error.to_string()))?;
        let mut all = self
            .subsystems
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SUBSYSTEMS_MAX {
            all.clear();
        }
        let known = all.get(&nqn).filter(|known| known.is_own());
        let subsystem = match known {
            Some(known) => Arc::clone(known),
            None => {
                let made = Subsystem::new(&self.portal, nqn.clone(), &self.settings);
                all.insert(nqn, Arc::clone(&made));
                made
            }
        };
        Ok((subsystem, nsid))
    }

    fn namespace(&self, name: &OsStr) -> Result<Namespace> {
        let (subsystem, nsid) = self.find(name)?;
        subsystem.forgive();
        Namespace::open(&subsystem, nsid, self.describe(name))
    }
}

impl Store for NvmeTcp {
    fn describe(&self, name: &OsStr) -> String {
        format!("nvme-tcp://{}/{}", self.portal, name.display())
    }

    fn verbs(&self) -> Verbs {
        Verbs::default()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let one = |named: &Named| -> Result<Arc<dyn Handle>> {
            Ok(Arc::new(self.namespace(&named.name)?))
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

    /// Writes a namespace that is there, in place, as a block device is written. None can be made.
    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        if !name.as_encoded_bytes().starts_with(b"nqn.") {
            return Err(self.lacks(Verb::Create));
        }
        Ok(Box::new(self.namespace(name)?.draft(bytes)?))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        let own = drafts.into_iter().map(own_draft::<InPlace>);
        for InPlace { namespace } in own.collect::<Result<Vec<_>>>()? {
            namespace.flush()?;
        }
        Ok(())
    }
}
