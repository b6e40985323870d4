//! A planned transfer with everything it needs to run: the objects, the regions, and its progress.

pub(crate) mod planning;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use straightway_core::{
    Choice, Chunk, Direction, Error, ErrorKind, Leg, Lock, PciAddress, Place, Plan, Reason, Result, Route,
};
use straightway_sys::Region;

use crate::{
    ask::Ask,
    direct_path::DirectPath,
    gds::Proof,
    inspect::Inspect,
    learning::{Method, WorkKind},
    objects::Objects,
    opening::Opening,
    progress::Progress,
    scattered::Scattered,
    stage::Regions,
    track::Track,
};

/// A planned transfer, ready to run.
#[derive(Debug)]
pub(crate) struct Job {
    direction: Direction,
    plan: Plan,
    /// The objects that are read or, from a region, written.
    pub(crate) objects: Objects,
    twins: Option<Objects>,
    regions: Regions,
    /// The whole that several regions make up, if there are several.
    scattered: Option<Arc<Scattered>>,
    /// The inspector of its portions, if it has portions.
    inspect: Option<Arc<dyn Inspect>>,
    /// Wanted bytes of refused portions.
    refused_bytes: AtomicU64,
    pub(crate) ask: Ask,
    /// The mechanism by which bytes reach a device without the CPU, if it uses one.
    pub(crate) direct_path: Option<DirectPath>,
    /// The method of writing to a file system in memory, if it does so.
    in_memory: Option<Method>,
    /// The device whose BAR holds the ring of a copy across, if the ring is not in host memory.
    through: Option<PciAddress>,
    /// Warnings from its planning.
    pub(crate) warnings: Vec<String>,
    /// The origins of settings that are not the defaults.
    pub(crate) settings_from: Vec<Arc<str>>,
    /// When its planning began.
    pub(crate) opening: Opening,
    /// The number of chunks taken, by track.
    taken: [AtomicUsize; 3],
    failed: AtomicBool,
    /// Whether it was asked to stop. Its ticket shares this.
    cancelled: Arc<AtomicBool>,
    error: Lock<Option<Error>>,
}

impl Job {
    fn new(direction: Direction, ask: Ask, plan: Plan, objects: Objects, opening: Opening) -> Self {
        Self {
            direction,
            ask,
            plan,
            objects,
            opening,
            twins: None,
            regions: Arc::new([]),
            scattered: None,
            inspect: None,
            refused_bytes: AtomicU64::new(0),
            direct_path: None,
            in_memory: None,
            through: None,
            warnings: Vec::new(),
            settings_from: Vec::new(),
            taken: Default::default(),
            failed: AtomicBool::new(false),
            cancelled: Arc::default(),
            error: Lock::new(None),
        }
    }

    /// Its progress.
    pub(crate) fn progress(&self) -> &Progress {
        &self.ask.progress
    }

    /// Its plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The direction of its bytes.
    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// The objects that are written, if any are.
    pub(crate) fn written(&self) -> Option<&Objects> {
        match self.direction {
            Direction::In => None,
            Direction::Out => Some(&self.objects),
            Direction::Across => self.twins.as_ref(),
        }
    }

    /// The objects that its end makes durable, if there are any.
    pub(crate) fn synced(&self) -> Option<&Objects> {
        self.written().filter(|_| self.ask.syncs)
    }

    /// The first region; a copy across has none.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.regions.first()
    }

    /// All regions.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The whole that several regions make up, if there are several.
    pub(crate) fn whole(&self) -> Option<&Scattered> {
        self.scattered.as_deref()
    }

    /// The region whose place its lanes serve: one on a GPU, if there is one.
    pub(crate) fn lead_region(&self) -> Option<&Arc<Region>> {
        let on_gpu = |region: &&Arc<Region>| matches!(region.place(), Place::Gpu(_));
        self.regions.iter().find(on_gpu).or(self.regions.first())
    }

    fn place(&self) -> Place {
        self.lead_region().map_or(Place::Host, |r| r.place())
    }

    /// The place of its lanes: a GPU, or a BAR that holds the ring. The CPU reaches a region in a BAR like host memory.
    pub(crate) fn lanes_place(&self) -> Place {
        match (self.through, self.place()) {
            (Some(provider), _) => Place::P2p(provider),
            (None, place @ Place::Gpu(_)) => place,
            (None, Place::Host | Place::P2p(_)) => Place::Host,
        }
    }

    /// Its legs.
    pub(crate) fn legs(&self) -> &'static [Leg] {
        match self.direction {
            Direction::In => &[Leg::Read],
            Direction::Out => &[Leg::Write],
            Direction::Across => &[Leg::Read, Leg::Write],
        }
    }

    /// The inspector of its portions, if it has portions.
    pub(crate) fn inspect(&self) -> Option<&dyn Inspect> {
        self.inspect.as_deref()
    }

    /// Records that a portion could not be read or was refused. An error stops the job; the inspector has the reason.
    pub(crate) fn refuse(&self, chunk: &Chunk, error: Error) -> Result<()> {
        let inspect = self.inspect().expect("only portions are refused");
        let (number, portion) = self.plan.portion(chunk);
        self.refused_bytes.fetch_add(portion.wanted_bytes, Ordering::Relaxed);
        if inspect.refuse(number, error) {
            return Ok(());
        }
        let name = self.objects.handles()[portion.object as usize].object().name;
        Err(Error::new(ErrorKind::Corrupt, "read", name, "a part of it was refused"))
    }

    /// The number of bytes delivered, once it has succeeded.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.plan.bytes() - self.refused_bytes.load(Ordering::Relaxed)
    }

    /// Returns an error if the user demands the direct route and the bytes took another.
    pub(crate) fn check_route(&self, proof: Proof) -> Result<()> {
        if self.ask.choice != Choice::Only(Route::Direct) || proof.is_direct() {
            return Ok(());
        }
        let name = self.objects.name();
        let (_, reason) = proof.route_and_reason();
        Err(Error::new(
            ErrorKind::Unsupported,
            "go direct with",
            name,
            format!("the bytes arrived, but not directly: {reason}"),
        )
        .with_hint("`straightway doctor` says what is missing; ⟦route=auto⟧ stages instead"))
    }

    /// Sets the method of writing to memory, if it does so. `is_measured` is whether a profile gave it, and not a lesson.
    pub(crate) fn set_method(&mut self, method: Method, is_measured: bool) {
        let is_read = WorkKind::Read.methods().contains(&method);
        let is_used = if is_read {
            self.suits(WorkKind::Read)
        } else {
            self.in_memory.is_some()
        };
        if is_used && !(is_read && is_measured) {
            self.settings_from.push(format!("learned: {method}").into());
        }
        self.in_memory = self.in_memory.map(|_| method);
    }

    /// Whether the two methods for `work` apply to it.
    pub(crate) fn suits(&self, work: WorkKind) -> bool {
        match work {
            WorkKind::Read => {
                let by_route = self.plan.bytes_by_route();
                let direct = by_route.get(&(Route::Direct, Reason::Aligned));
                let most = self.plan.bytes() / 10 * 9;
                self.place() == Place::Host && direct.is_some_and(|bytes| *bytes >= most)
            }
            WorkKind::Write | WorkKind::Copy => self.in_memory.is_some(),
        }
    }

    /// Whether each chunk goes from file to file without a buffer in this process.
    pub(crate) fn is_between_files(&self) -> bool {
        self.direction == Direction::Across && self.in_memory.is_some()
    }

    /// Whether it writes through mappings of the files.
    pub(crate) fn maps_writes(&self) -> bool {
        self.in_memory == Some(Method::Mapping)
    }

    /// The most lanes that can work on it at once. The kernel admits one writer at a time to a file in memory.
    pub(crate) fn lanes_max(&self) -> usize {
        match (self.in_memory, self.written()) {
            (Some(Method::Calls), Some(written)) => written.handles().len().max(1),
            _ => usize::MAX,
        }
    }

    /// Whether a chunk goes through the ring: the CPU and O_DIRECT cannot access GPU memory.
    pub(crate) fn needs_slot(&self, chunk: &Chunk) -> bool {
        match (self.place(), chunk.route) {
            _ if self.is_between_files() => false,
            _ if self.direction == Direction::Across || self.inspect.is_some() => true,
            (Place::Host | Place::P2p(_), route) => route == Route::Staged,
            (Place::Gpu(_), route) => route != Route::Direct,
        }
    }

    /// The next chunk of a track that no lane has taken yet.
    pub(crate) fn take(&self, track: Track) -> Option<Chunk> {
        if self.is_stopped() {
            return None;
        }
        let taken = &self.taken[track as usize];
        let chunks = self.chunks(track);
        if self.has_all_memory() {
            let number = taken.fetch_add(1, Ordering::Relaxed);
            return chunks.get(number).copied();
        }
        let mut number = taken.load(Ordering::Relaxed);
        loop {
            let chunk = chunks.get(number).filter(|chunk| self.has_memory(chunk))?;
            let next = (number + 1, Ordering::Relaxed, Ordering::Relaxed);
            match taken.compare_exchange_weak(number, next.0, next.1, next.2) {
                Ok(_) => return Some(*chunk),
                Err(now) => number = now,
            }
        }
    }

    /// Whether its next chunk of a track needs memory that is not allocated yet.
    pub(crate) fn waits_for_memory(&self, track: Track) -> bool {
        if self.has_all_memory() {
            return false;
        }
        let next = self.taken[track as usize].load(Ordering::Relaxed);
        let next = self.chunks(track).get(next);
        next.is_some_and(|chunk| !self.has_memory(chunk))
    }

    fn has_all_memory(&self) -> bool {
        self.whole().is_none_or(|whole| whole.is_ready(whole.bytes()))
    }

    fn has_memory(&self, chunk: &Chunk) -> bool {
        let ends = self.plan.pieces(chunk).iter().map(|p| p.at + p.extent.bytes);
        let end = ends.max().unwrap_or(0);
        self.whole().is_none_or(|whole| whole.is_ready(end))
    }

    /// Whether a track has no more chunks to take.
    pub(crate) fn is_over(&self, track: Track) -> bool {
        let taken = self.taken[track as usize].load(Ordering::Relaxed);
        taken >= self.chunks(track).len() || self.is_stopped()
    }

    /// Its chunks of a track.
    pub(crate) fn chunks(&self, track: Track) -> &[Chunk] {
        match track {
            // No drive is involved.
            Track::Drive if self.is_between_files() => &[],
            Track::Cached if self.is_between_files() => self.plan.drive(),
            Track::Drive => self.plan.drive(),
            Track::Cached => self.plan.cached(),
            Track::Checked => self.plan.checked(),
        }
    }

    /// Whether it failed or was asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.progress().is_cancelled()
    }

    /// Whether the user cancelled it, and nobody can notice that I/Os are still in flight: they do not write to memory
    /// that others own, only to slots, to drafts that are removed, and to regions that they keep. Nobody waits for a job
    /// whose ticket was dropped, so its lanes can.
    pub(crate) fn can_leave_ios(&self) -> bool {
        let is_own = || self.regions.iter().all(|region| region.is_own());
        self.progress().is_cancelled() && (self.direction != Direction::In || is_own())
    }

    /// The flag that stops it.
    pub(crate) fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.cancelled
    }

    /// Stops the job with an error. Only the first error is kept.
    pub(crate) fn fail(&self, error: Error) {
        self.error.lock().get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// The error that stopped it, if any.
    pub(crate) fn outcome(&self) -> Result<()> {
        if let Some(error) = self.error.lock().take() {
            return Err(error);
        }
        if self.is_cancelled() {
            let name = self.objects.name();
            return Err(Error::new(
                ErrorKind::Cancelled,
                "finish with",
                name,
                "it was interrupted",
            ));
        }
        Ok(())
    }
}
