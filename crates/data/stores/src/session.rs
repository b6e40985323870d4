//! The session of a program: what its transfers share.
//!
//! A session has the registries of the options in use, the facts about drives, and one executor for each tuning. After
//! a fork, the child begins with an empty one: it has neither the threads of its parent's executors nor, for certain,
//! the locks of its stores.

use std::{collections::VecDeque, path::Path, sync::Arc};

use straightway_core::{Bytes, Error, ErrorKind, Result};
use straightway_io::{
    Executor, ExecutorParts, Peers, Settings,
    settings::Demand,
    store::{Location, Medium, Registry},
    wrapper::traced::Trace,
};
use straightway_probe::profile::{DriveTuning, Profile};
use straightway_sys::{FreeMemory, PerProcess, root::Root};

use crate::{
    drives::{Drive, Drives},
    options::StoreOptions,
    registry::{environment, registry, variables},
};

/// The most registries and executors that are kept. The oldest registry, or the executor that was not used for longest,
/// is dropped for a new one; transfers that use it go on.
const KEPT_MAX: usize = 8;

/// The file with proofs of peer-to-peer DMA, kept until the next boot. Only root can use memory in a BAR.
const PEER_PROOFS: &str = "/run/straightway/p2p-proofs";

/// What the transfers of a program share.
#[derive(Debug, Default)]
pub struct Session {
    registries: PerProcess<VecDeque<SharedRegistry>>,
    drives: PerProcess<Drives>,
    executors: PerProcess<VecDeque<SharedExecutor>>,
}

/// The transfers that an executor is for.
#[derive(Clone, Debug, Default)]
pub struct TransferSpec<'a> {
    /// The objects and folders of the transfers, which may not exist yet.
    pub ends: Vec<&'a Location>,
    /// The sizes of the objects, where they are known. They matter over a network: [`Medium::settings`].
    pub sizes: Vec<u64>,
    /// The settings that the user demands.
    pub demand: Demand,
    /// Which facts about the drive are used.
    pub drive: DriveFacts,
    /// The trace that records all I/Os. An executor with a trace is not shared.
    pub trace: Option<Trace>,
}

/// Which facts about the drive of a transfer are used: its profile, and what earlier transfers learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriveFacts {
    /// All. A damaged profile is an error.
    #[default]
    Known,
    /// All. A damaged profile is a warning: it must not stop a restore.
    Readable,
    /// None, for transfers that mostly write. The profile has no data about those.
    Unused,
}

/// A registry, and what it was made from.
#[derive(Debug)]
struct SharedRegistry {
    options: StoreOptions,
    variables: Vec<(String, String)>,
    registry: Arc<Registry>,
}

/// An executor, and what determined its settings.
#[derive(Debug)]
struct SharedExecutor {
    usual: Settings,
    demand: Demand,
    executor: Executor,
}

impl Session {
    /// An empty session.
    pub const fn new() -> Self {
        Self {
            registries: PerProcess::new(),
            drives: PerProcess::new(),
            executors: PerProcess::new(),
        }
    }

    /// The stores for these options. Calls with the same options share them, so long as the environment stays the same.
    pub fn stores(&self, options: &StoreOptions) -> Arc<Registry> {
        let environment = environment();
        let variables = variables(&environment);
        let mut known = self.registries.lock();
        if let Some(at) = known.iter().position(|shared| shared.options == *options) {
            if known[at].variables == variables {
                return Arc::clone(&known[at].registry);
            }
            known.remove(at);
        }
        let registry = Arc::new(registry(options, environment));
        if known.len() == KEPT_MAX {
            known.pop_front();
        }
        known.push_back(SharedRegistry {
            options: options.clone(),
            variables,
            registry: Arc::clone(&registry),
        });
        registry
    }

    /// The executor of transfers between these locations.
    pub fn executor<'a>(&self, ends: impl IntoIterator<Item = &'a Location>) -> Result<Executor> {
        self.executor_for(TransferSpec {
            ends: ends.into_iter().collect(),
            ..TransferSpec::default()
        })
    }

    /// The executor of these transfers. It shares its lanes with those of other transfers with the same tuning.
    pub fn executor_for(&self, spec: TransferSpec<'_>) -> Result<Executor> {
        let medium = Medium::of(spec.ends);
        let drive = match &medium {
            Medium::Drive(path) => self.drive(path, spec.drive)?,
            Medium::Network(_) => Drive::default(),
        };
        let usual = medium.settings(spec.sizes, DriveTuning::settings(drive.tuning));
        let executor = match spec.trace {
            Some(trace) => executor(usual, spec.demand, Some(trace))?,
            None => self.shared(usual, spec.demand)?,
        };
        // A demanded chunk size is used as it is; what is learned may choose another.
        let learning = drive.learning.filter(|_| spec.demand.chunk_bytes.is_none());
        let is_demanded = spec.demand.chunk_bytes.is_some() && spec.demand.depth.is_some();
        let origin = drive
            .tuning
            .filter(|_| !is_demanded)
            .map(|tuning| profile_text(&tuning));
        let settings = executor.settings();
        tracing::info!(
            "chunks of {}, {} in flight{}",
            Bytes(settings.chunk_bytes),
            settings.depth,
            origin
                .as_deref()
                .map_or(String::new(), |origin| format!(", from {origin}"))
        );
        Ok(executor.learning(learning).settings_from(origin))
    }

    /// The drive behind a path.
    fn drive(&self, path: &Path, facts: DriveFacts) -> Result<Drive> {
        match facts {
            DriveFacts::Unused => Ok(Drive::default()),
            DriveFacts::Known => self.drives.lock().of(path),
            DriveFacts::Readable => Ok(self.drives.lock().of(path).unwrap_or_else(|error| {
                tracing::warn!(%error, "the default settings are used");
                Drive::default()
            })),
        }
    }

    /// The shared executor for these settings. It is made if it is missing.
    fn shared(&self, usual: Settings, demand: Demand) -> Result<Executor> {
        let mut known = self.executors.lock();
        let is_wanted = |one: &SharedExecutor| one.usual == usual && one.demand == demand;
        if let Some(shared) = known.iter().position(is_wanted).and_then(|at| known.remove(at)) {
            let executor = shared.executor.clone();
            known.push_back(shared);
            return Ok(executor);
        }
        let executor = executor(usual, demand, None)?;
        let oldest = if known.len() == KEPT_MAX {
            known.pop_front()
        } else {
            None
        };
        known.push_back(SharedExecutor {
            usual,
            demand,
            executor: executor.clone(),
        });
        drop(known);
        if let Some(oldest) = oldest {
            // This waits for its lanes, which may hang with their drive.
            let _ = std::thread::Builder::new().spawn(move || drop(oldest));
        }
        Ok(executor)
    }
}

/// Refuses demanded staging memory that this machine does not have.
fn check_memory(staging_bytes: u64, free: Option<FreeMemory>) -> Result<()> {
    let Some(free) = free.filter(|free| free.bytes < staging_bytes) else {
        return Ok(());
    };
    let target = format!("staging memory of {}", Bytes(staging_bytes));
    let why = format!("this process can have {} more", Bytes(free.bytes));
    let hint = "leave out ⟦staging⟧, or name less; more than 1 GiB is rarely faster";
    Err(Error::new(ErrorKind::Invalid, "run with", target, why).with_hint(hint))
}

/// The profile that gave these settings, in words.
fn profile_text(tuning: &DriveTuning) -> Arc<str> {
    let file = Profile::place().map_or_else(String::new, |path| format!(" {}", path.display()));
    let (chunk, depth) = (Bytes(tuning.chunk_bytes), tuning.depth);
    format!("profile{file}: chunks of {chunk}, {depth} in flight").into()
}

/// An executor with these settings, and with smaller rings if there is little memory.
fn executor(usual: Settings, demand: Demand, trace: Option<Trace>) -> Result<Executor> {
    let settings = demand.over(usual.within_groups());
    if demand.staging_bytes.is_some() {
        check_memory(settings.staging_bytes, FreeMemory::of(&Root::machine()))?;
    }
    let parts = ExecutorParts {
        peers: Peers::kept_in(PEER_PROOFS.into()),
        trace,
        ..ExecutorParts::default()
    };
    Executor::with_parts(settings, parts)
}
