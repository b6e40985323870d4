//! A planned transfer with everything that it needs to run: the files, the regions, and how far it
//! has come.

pub(crate) mod planning;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use straightway_core::{
    Choice, Chunk, Direction, Error, Kind, Leg, PciAddress, Place, Plan, Reason, Result, Route,
};
use straightway_sys::Region;

use crate::{
    ask::Ask,
    books::Opening,
    gds::Proof,
    inspect::Inspect,
    learning::{Way, Work},
    objects::Objects,
    pass::Pass,
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
    /// The whole that its regions stand for, where they are several.
    scattered: Option<Arc<Scattered>>,
    /// What looks at its portions, where it has any.
    inspect: Option<Arc<dyn Inspect>>,
    /// Bytes that were wanted of portions that were refused.
    refused_bytes: AtomicU64,
    pub(crate) ask: Ask,
    /// What it has of a mechanism by which some of its bytes reach a device without the CPU.
    pub(crate) pass: Option<Pass>,
    /// How its bytes are written, where that is to a file system in memory.
    in_memory: Option<Way>,
    /// The device in whose BAR a copy across has its ring, if that is not in host memory.
    through: Option<PciAddress>,
    /// What its planning found to be another way than it should.
    pub(crate) warnings: Vec<String>,
    /// When its planning began.
    pub(crate) opening: Opening,
    /// How many chunks of each track were taken.
    taken: [AtomicUsize; 3],
    failed: AtomicBool,
    cancelled: AtomicBool,
    error: Mutex<Option<Error>>,
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
            pass: None,
            in_memory: None,
            through: None,
            warnings: Vec::new(),
            taken: Default::default(),
            failed: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// How far it has come.
    pub(crate) fn progress(&self) -> &Progress {
        &self.ask.progress
    }

    /// Its plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Which way its bytes go.
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

    /// The region of a transfer with one; a copy across has none.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.regions.first()
    }

    /// All regions.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The whole that its regions stand for, where they are several.
    pub(crate) fn whole(&self) -> Option<&Scattered> {
        self.scattered.as_deref()
    }

    /// The region whose place its lanes serve: one on a GPU where there is one.
    pub(crate) fn lead_region(&self) -> Option<&Arc<Region>> {
        let on_gpu = |region: &&Arc<Region>| matches!(region.place(), Place::Gpu(_));
        self.regions.iter().find(on_gpu).or(self.regions.first())
    }

    fn place(&self) -> Place {
        self.lead_region().map_or(Place::Host, |r| r.place())
    }

    /// Where its lanes work: at a GPU, or with a ring in a BAR. The CPU reaches a region in a BAR as it does host memory.
    pub(crate) fn lanes_place(&self) -> Place {
        match (self.through, self.place()) {
            (Some(provider), _) => Place::P2p(provider),
            (None, place @ Place::Gpu(_)) => place,
            (None, Place::Host | Place::P2p(_)) => Place::Host,
        }
    }

    /// The legs of its way.
    pub(crate) fn legs(&self) -> &'static [Leg] {
        match self.direction {
            Direction::In => &[Leg::Read],
            Direction::Out => &[Leg::Write],
            Direction::Across => &[Leg::Read, Leg::Write],
        }
    }

    /// What looks at its portions, where it has any.
    pub(crate) fn inspect(&self) -> Option<&dyn Inspect> {
        self.inspect.as_deref()
    }

    /// Takes note that a portion cannot be had. An error stops the job; whoever inspects has the reason.
    pub(crate) fn refuse(&self, chunk: &Chunk, error: Error) -> Result<()> {
        let inspect = self.inspect().expect("only portions are refused");
        let (number, portion) = self.plan.portion(chunk);
        self.refused_bytes
            .fetch_add(portion.wanted_bytes, Ordering::Relaxed);
        if inspect.refuse(number, error) {
            return Ok(());
        }
        let name = self.objects.handles()[portion.object as usize]
            .object()
            .name;
        Err(Error::new(
            Kind::Corrupt,
            "read",
            name,
            "a part of it was refused",
        ))
    }

    /// How many bytes it brings to where they go, once it has ended well.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.plan.bytes() - self.refused_bytes.load(Ordering::Relaxed)
    }

    /// An error if the user insists on the direct route and it was another.
    pub(crate) fn check_route(&self, proof: Proof) -> Result<()> {
        if self.ask.choice != Choice::Only(Route::Direct) || proof.is_direct() {
            return Ok(());
        }
        let name = self.objects.name();
        let (_, reason) = proof.route_and_reason();
        Err(Error::new(
            Kind::Unsupported,
            "go direct with",
            name,
            format!("the bytes are there, but not by a direct way: {reason}"),
        )
        .with_hint("`straightway doctor` says what is missing; --route auto stages instead"))
    }

    /// Chooses between the two ways of what it does.
    pub(crate) fn set_way(&mut self, way: Way) {
        self.in_memory = self.in_memory.map(|_| way);
    }

    /// Whether it is work of which one of two ways may be faster.
    pub(crate) fn suits(&self, work: Work) -> bool {
        match work {
            Work::Read => {
                let by_route = self.plan.bytes_by_route();
                let direct = by_route.get(&(Route::Direct, Reason::Aligned));
                let most = self.plan.bytes() / 10 * 9;
                self.place() == Place::Host && direct.is_some_and(|bytes| *bytes >= most)
            }
            Work::Write | Work::Copy => self.in_memory.is_some(),
        }
    }

    /// Whether each chunk goes from file to file without a buffer of ours.
    pub(crate) fn is_between_files(&self) -> bool {
        self.direction == Direction::Across && self.in_memory.is_some()
    }

    /// Whether it writes through mappings of the files.
    pub(crate) fn maps_writes(&self) -> bool {
        self.in_memory == Some(Way::Mapping)
    }

    /// How many lanes can work for it at once. The kernel lets one writer at a time into a file in memory.
    pub(crate) fn lanes_max(&self) -> usize {
        match (self.in_memory, self.written()) {
            (Some(Way::Calls), Some(written)) => written.handles().len().max(1),
            _ => usize::MAX,
        }
    }

    /// Whether a chunk goes by way of the ring: the CPU and O_DIRECT do not reach into memory of a GPU.
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

    /// Whether its next chunk of a track goes to memory that is not there yet.
    pub(crate) fn waits_for_memory(&self, track: Track) -> bool {
        if self.has_all_memory() {
            return false;
        }
        let next = self.taken[track as usize].load(Ordering::Relaxed);
        let next = self.chunks(track).get(next);
        next.is_some_and(|chunk| !self.has_memory(chunk))
    }

    fn has_all_memory(&self) -> bool {
        self.whole()
            .is_none_or(|whole| whole.is_ready(whole.bytes()))
    }

    fn has_memory(&self, chunk: &Chunk) -> bool {
        let ends = self
            .plan
            .pieces(chunk)
            .iter()
            .map(|p| p.at + p.extent.bytes);
        let end = ends.max().unwrap_or(0);
        self.whole().is_none_or(|whole| whole.is_ready(end))
    }

    /// Whether lanes have nothing more to take from a track.
    pub(crate) fn is_over(&self, track: Track) -> bool {
        let taken = self.taken[track as usize].load(Ordering::Relaxed);
        taken >= self.chunks(track).len() || self.is_stopped()
    }

    /// Its chunks of a track.
    pub(crate) fn chunks(&self, track: Track) -> &[Chunk] {
        match track {
            // No drive has a part in it.
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

    /// Asks it to stop.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Stops the job with an error. The first one counts.
    pub(crate) fn fail(&self, error: Error) {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// What stopped it, if anything did.
    pub(crate) fn outcome(&self) -> Result<()> {
        if let Some(error) = self
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            return Err(error);
        }
        if self.is_cancelled() {
            let name = self.objects.name();
            return Err(Error::new(
                Kind::Cancelled,
                "finish with",
                name,
                "it was interrupted",
            ));
        }
        Ok(())
    }
}
