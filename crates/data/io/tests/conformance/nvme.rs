//! Namespaces of our own NVMe/TCP target conform to the contracts of stores and engines, also over connections that
//! break.

use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use straightway_core::Result;
use straightway_io::{
    Handle,
    engine::Engine,
    request::Op,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Files, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Verb, Verbs, open_one,
    },
    wrapper::faulty::{Faults, Faulty},
};
use straightway_lab::ByteRelay;
use straightway_nvme::{Digests, Nqn};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_nvme_target::{Config, NamespaceSource, Target};
use straightway_sys::IoPath;
use tempfile::TempDir;

use crate::{
    defect::{Defect, DefectiveStore},
    engine::{self, OBJECT_BYTES},
    store::conforms,
};

const NQN: &str = "nqn.2026-11.org.example:conformance";

/// The folder that is served.
const FOLDER: &str = "served";

/// A target, on its own or behind a relay that breaks connections.
#[derive(Debug)]
pub(crate) struct Nvme {
    target: Target,
    wire: Option<ByteRelay>,
}

impl Nvme {
    /// A writable target. `breaks` is the seed of a relay and the percentage of connections that it breaks.
    pub(crate) fn start(sources: Vec<NamespaceSource>, breaks: Option<(u64, u64)>) -> Self {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
        config.is_writable = true;
        let target = Target::start(&config).unwrap();
        let upstream = target.addresses()[0];
        let wire = breaks.map(|(seed, percent)| ByteRelay::start(upstream, seed, percent).unwrap());
        Self { target, wire }
    }

    /// The store of its namespaces below a folder. Digests detect every wrong bit.
    pub(crate) fn store(&self, folder: &str) -> Arc<dyn Store> {
        let direct = self.target.addresses()[0];
        let address = self.wire.as_ref().map_or(direct, ByteRelay::address);
        let portal = Portal::new(&address.ip().to_string(), address.port());
        let settings = HostSettings {
            digests: Digests {
                header: true,
                data: true,
            },
            connect_max: Duration::from_secs(2),
            command_max: Duration::from_secs(2),
            keep_alive: Duration::from_secs(2),
            delay_first: Duration::from_millis(10),
            delay_max: Duration::from_millis(100),
            attempts_max: 200,
            retries_max: 100,
            ..HostSettings::default()
        };
        let store = NvmeTcp::new(portal, settings);
        let below = OsStr::new(NQN).to_owned();
        let store = store.below(&below, Missing::Refuse).unwrap();
        match folder {
            "" => store,
            folder => store.below(OsStr::new(folder), Missing::Refuse).unwrap(),
        }
    }

    /// The number of broken connections.
    pub(crate) fn broken(&self) -> u64 {
        self.wire.as_ref().map_or(0, ByteRelay::broken)
    }
}

/// A store of a folder that a target serves. Puts write to the folder, because NVMe cannot create a namespace. All
/// other calls go to the store.
#[derive(Debug)]
struct Served {
    store: Arc<dyn Store>,
    files: Arc<dyn Store>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    nvme: Nvme,
    /// Whether files were put that the target has not scanned yet.
    is_stale: AtomicBool,
    _folder: TempDir,
}

impl Served {
    fn start() -> Arc<dyn Store> {
        let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folder = home.path().join(FOLDER);
        std::fs::create_dir(&folder).unwrap();
        let files = Files::below_path(&folder, Missing::Refuse).unwrap();
        let nvme = Nvme::start(vec![NamespaceSource::Path(folder)], None);
        Arc::new(Self {
            store: nvme.store(FOLDER),
            files: Arc::new(files),
            shared: Arc::new(Shared {
                nvme,
                is_stale: AtomicBool::new(false),
                _folder: home,
            }),
        })
    }

    /// The store, after the target has scanned its folder again if needed.
    fn seen(&self) -> Result<&dyn Store> {
        if self.shared.is_stale.swap(false, Ordering::SeqCst) {
            self.shared.nvme.target.rescan()?;
        }
        Ok(&*self.store)
    }
}

impl Store for Served {
    fn describe(&self, name: &OsStr) -> String {
        self.store.describe(name)
    }

    fn verbs(&self) -> Verbs {
        let store = self.store.verbs();
        let has = |verb: &Verb| *verb == Verb::Put || store.has(*verb);
        Verbs::of(&Verb::ALL.into_iter().filter(has).collect::<Vec<_>>())
    }

    fn facts(&self) -> Facts<'_> {
        self.store.facts()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        self.seen()?.open(objects)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        self.store.engine(lane)
    }

    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        self.store.settle(after, objects)
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        self.seen()?.list(page)
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self {
            store: self.seen()?.below(folder, missing)?,
            files: self.files.below(folder, Missing::Create)?,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn create(&self, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        self.seen()?.create(name, bytes, like)
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        self.store.commit(drafts, mode)
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, how: Durability) -> Result<bool> {
        if *on != Condition::Always {
            return self.store.put(name, bytes, on, how);
        }
        self.shared.is_stale.store(true, Ordering::SeqCst);
        self.files.put(name, bytes, on, how)
    }

    fn remove_all(&self, removals: &[Removal<'_>], how: Durability) -> Result<Vec<bool>> {
        self.store.remove_all(removals, how)
    }
}

#[test]
fn a_served_folder_conforms() {
    conforms(&Served::start).unwrap();
}

#[test]
fn a_served_folder_with_one_defect_fails() {
    for defect in [
        Defect::Skips(Verb::List),
        Defect::Hides(Verb::List),
        Defect::LosesName,
        Defect::OpensSome,
        Defect::BelowIsAll,
        Defect::DecodesNames,
        Defect::FillsUp,
    ] {
        let make = move || -> Arc<dyn Store> { Arc::new(DefectiveStore::new(Served::start(), defect)) };
        let outcome = conforms(&make);
        println!(
            "{defect:?}: {}",
            outcome.expect_err(&format!("{defect:?} goes unnoticed"))
        );
    }
}

/// An engine, or a printed reason why there is none.
fn new_engine(depth: u32) -> Option<NvmeEngine> {
    NvmeEngine::new(depth)
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
}

/// A target with one writable namespace, and that namespace.
fn scratch(breaks: Option<(u64, u64)>) -> (Nvme, Arc<dyn Handle>) {
    let memory = NamespaceSource::Memory {
        name: "scratch".to_owned(),
        bytes: OBJECT_BYTES,
    };
    let nvme = Nvme::start(vec![memory], breaks);
    let object = open_one(&*nvme.store(""), OsStr::new("scratch")).unwrap();
    (nvme, object)
}

#[test]
fn the_engine_conforms_at_any_depth() {
    let (_nvme, object) = scratch(None);
    for depth in [1, 2, 32, 200] {
        if let Some(mut engine) = new_engine(depth) {
            engine::conforms_with(&mut engine, &object, IoPath::Direct);
        }
    }
}

#[test]
fn the_engine_conforms_when_completions_are_late() {
    let faults = Faults {
        seed: 5,
        late_per_mille: 400,
        ..Faults::default()
    };
    let (_nvme, object) = scratch(None);
    if let Some(engine) = new_engine(16) {
        let mut late = Faulty::new(Box::new(engine), faults);
        engine::conforms_with(&mut late, &object, IoPath::Direct);
    }
}

#[test]
fn the_engine_conforms_over_connections_that_break() {
    let mut broken = 0;
    for seed in 0..6 {
        let (nvme, object) = scratch(Some((seed, 50)));
        if let Some(mut engine) = new_engine(16) {
            engine::conforms_with(&mut engine, &object, IoPath::Direct);
        }
        broken += nvme.broken();
    }
    println!("{broken} connections broke");
}
