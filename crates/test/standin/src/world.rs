//! The whole state of the stand-in, behind one lock.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::env;
use std::sync::{LazyLock, MutexGuard};

use straightway_core::{Lock, Signal};

use crate::cufile::state::Cufile;
use crate::device::Allocation;
use crate::plan::Plan;
use crate::queue::{Mark, Queue};

/// The environment variable with the first plan.
pub(crate) const PLAN_VARIABLE: &str = "STRAIGHTWAY_STANDIN";

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const CONTEXT_DESTROYED: u32 = 709;

/// The state of the simulated machine.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// The number of calls by name since the plan was set.
    calls: HashMap<String, u64>,
    /// Misuses by callers.
    pub(crate) misuses: Vec<String>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Pinned host memory: start and length.
    pub(crate) pinned: BTreeMap<usize, usize>,
    pub(crate) streams: HashMap<usize, Queue>,
    pub(crate) events: HashMap<usize, Mark>,
    /// The number of contexts retained and not released.
    pub(crate) contexts: usize,
    /// The number of resets of the contexts, which changes their ids.
    pub(crate) resets: u64,
    /// Whether the contexts were reset and not retained since.
    pub(crate) is_reset: bool,
    /// Streams and events that a reset destroyed.
    pub(crate) lost_handles: HashSet<usize>,
    /// The error that all later work fails with.
    pub(crate) fatal: Option<u32>,
    /// Whether the scheduler is paused.
    pub(crate) is_held: bool,
    pub(crate) random: u64,
    pub(crate) cufile: Cufile,
    last_handle: usize,
}

static WORLD: LazyLock<Lock<World>> = LazyLock::new(|| {
    let plan = env::var(PLAN_VARIABLE).unwrap_or_default();
    let plan = Plan::parse(&plan).unwrap_or_else(|wrong| panic!("{PLAN_VARIABLE}: {wrong}"));
    Lock::new(World {
        random: plan.seed,
        plan,
        ..World::default()
    })
});

/// Signalled whenever the world changes.
static CHANGED: Signal = Signal::new();

thread_local! {
    /// The contexts pushed on this thread, by device.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock()
}

/// Unlocks the world until something changes in it.
pub(crate) fn wait_for_change(world: MutexGuard<'static, World>) -> MutexGuard<'static, World> {
    CHANGED.wait(world)
}

pub(crate) fn changed() {
    CHANGED.notify_all();
}

pub(crate) fn push_context(device: usize) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(device));
}

pub(crate) fn pop_context() -> Option<usize> {
    CONTEXTS.with_borrow_mut(Vec::pop)
}

/// The device whose context is current on this thread.
pub(crate) fn current_device() -> Option<usize> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied())
}

impl World {
    /// Counts a call of `name`. Returns the code it must fail with, if any.
    pub(crate) fn call(&mut self, name: &str) -> Option<u32> {
        let nth = self.calls.entry(name.to_owned()).or_default();
        *nth += 1;
        let failures = &self.plan.failures;
        failures
            .iter()
            .find(|f| f.name == name && f.nth == *nth)
            .map(|f| f.code)
    }

    /// The calls since the plan was set: name and count.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, u64)> {
        self.calls.iter().map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn misuse(&mut self, what: impl Into<String>) {
        self.misuses.push(what.into());
    }

    /// A handle that was never used before, so that it is never mistaken for another.
    pub(crate) fn handle(&mut self) -> usize {
        self.last_handle += 1;
        0x1000 + self.last_handle
    }

    /// Sets a new plan and clears calls, misuses and faults. A paused scheduler stays paused.
    pub(crate) fn set_plan(&mut self, plan: Plan) {
        if self.fatal.is_some() {
            self.drop_work();
        }
        self.random = plan.seed;
        self.plan = plan;
        self.calls.clear();
        self.misuses.clear();
        self.fatal = None;
        self.is_held = false;
    }

    /// Resets the contexts: all objects are gone, and only the contexts stay retained.
    pub(crate) fn reset(&mut self) {
        self.resets += 1;
        self.is_reset = true;
        self.lost_handles.extend(self.streams.drain().map(|(stream, _)| stream));
        self.lost_handles.extend(self.events.drain().map(|(event, _)| event));
        self.pinned.clear();
        self.allocations.clear();
    }

    /// The code for the use of a stream or an event that does not exist, `lost` if a reset destroyed it. Its user may
    /// not know that yet. A handle that never existed, or that its owner destroyed, is a misuse.
    pub(crate) fn unknown_handle(&mut self, handle: usize, lost: u32, misuse: &str) -> u32 {
        if self.lost_handles.contains(&handle) {
            return lost;
        }
        self.misuse(misuse);
        INVALID_HANDLE
    }

    /// The allocation that contains the whole range.
    pub(crate) fn allocation(&self, address: u64, len: usize) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        allocation.contains(address, len).then_some(allocation)
    }

    /// Whether the whole range is pinned.
    pub(crate) fn is_pinned(&self, address: usize, len: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(start, pinned)| address + len <= start + pinned)
    }

    /// The number of objects of a kind, for leak checks.
    pub(crate) fn count(&self, what: &str) -> Option<u64> {
        Some(match what {
            "allocations" => self.allocations.len(),
            "pinned" => self.pinned.len(),
            "streams" => self.streams.len(),
            "events" => self.events.len(),
            "contexts" => self.contexts,
            "pending" => self.streams.values().map(Queue::len).sum(),
            "misuses" => self.misuses.len(),
            "files" => self.cufile.files.len(),
            "buffers" => self.cufile.buffers.len(),
            "opened" => usize::from(self.cufile.is_open),
            _ => return None,
        } as u64)
    }

    /// The next number of the seeded sequence (`SplitMix64`), below `bound`. It is not that of `straightway_core`,
    /// because the shared object depends on no crate of this workspace.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}
