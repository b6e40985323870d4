//! A planned transfer with everything that it needs to run: the files, the regions, and how far it
//! has come.

mod planning;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use std::time::{Duration, Instant};

use straightway_core::{
    Bytes, Choice, Chunk, Direction, Error, Kind, Place, Plan, Policy, Result, Route,
};
use straightway_sys::Region;

use crate::{
    gds::{Pass, Proof},
    inspect::Inspect,
    objects::Objects,
    progress::Progress,
    settings::Settings,
    stage::Regions,
    track::Track,
};

/// A planned transfer, ready to run.
#[derive(Debug)]
pub struct Job {
    direction: Direction,
    plan: Plan,
    objects: Objects,
    twins: Option<Objects>,
    regions: Regions,
    /// What looks at its portions, where it has any.
    inspect: Option<Arc<dyn Inspect>>,
    /// Bytes that were wanted of portions that were refused.
    refused_bytes: AtomicU64,
    choice: Choice,
    /// What it has of cuFile, where some of its bytes go that way.
    pass: Option<Pass>,
    /// What its planning found to be another way than it should.
    warnings: Vec<String>,
    /// The largest chunks that it was planned with: to the drive, and through the page cache.
    chunk_bytes_max: (u64, u64),
    /// When its planning began, and how long that took.
    planned: (Instant, Duration),
    /// Whether what it writes is made durable when it ends.
    syncs: bool,
    progress: Arc<Progress>,
    next_drive: AtomicUsize,
    next_cached: AtomicUsize,
    next_checked: AtomicUsize,
    failed: AtomicBool,
    cancelled: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Job {
    fn new(
        (direction, choice): (Direction, Choice),
        plan: Plan,
        policy: &Policy,
        objects: Objects,
        start: Instant,
    ) -> Self {
        Self {
            planned: (start, start.elapsed()),
            direction,
            choice,
            plan,
            objects,
            twins: None,
            regions: Arc::new([]),
            inspect: None,
            refused_bytes: AtomicU64::new(0),
            pass: None,
            warnings: Vec::new(),
            chunk_bytes_max: (policy.chunk_bytes, policy.cached_chunk_bytes),
            syncs: true,
            progress: Arc::default(),
            next_drive: AtomicUsize::new(0),
            next_cached: AtomicUsize::new(0),
            next_checked: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Shares how far it has come with `progress`, which may serve several jobs in turn.
    #[must_use]
    pub fn with_progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Arc::clone(progress);
        self
    }

    /// Leaves it to a later job that writes to the same files to make them durable: a sync of the
    /// whole covers what came before.
    #[must_use]
    pub fn unsynced(mut self) -> Self {
        self.syncs = false;
        self
    }

    /// Whether what it writes is made durable when it ends.
    pub(crate) fn syncs(&self) -> bool {
        self.syncs
    }

    /// How far it has come.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// How long its planning took, unless that was after `since` and so counted already.
    pub(crate) fn planning_before(&self, since: Instant) -> Duration {
        let (start, took) = self.planned;
        if start < since { took } else { Duration::ZERO }
    }

    /// Its plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Which way its bytes go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The objects that are read or, from a region, written.
    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
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

    /// The region whose place its lanes serve: one on a GPU where there is one.
    pub(crate) fn lead_region(&self) -> Option<&Arc<Region>> {
        let on_gpu = |region: &&Arc<Region>| region.place() != Place::Host;
        self.regions.iter().find(on_gpu).or(self.regions.first())
    }

    fn place(&self) -> Place {
        self.lead_region().map_or(Place::Host, |r| r.place())
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

    /// What its planning found to be another way than it should.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What it has of cuFile.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        self.pass.as_ref()
    }

    /// An error unless lanes with these settings can run it: their slots hold its chunks, and they reach its
    /// GPU by the same cuFile.
    pub(crate) fn check_runs_with(&self, settings: &Settings) -> Result<()> {
        let (drive, cached) = self.chunk_bytes_max;
        let message = match self.place() {
            _ if drive > settings.chunk_bytes => format!(
                "it was planned with chunks of {}, and the executor has {}",
                Bytes(drive),
                Bytes(settings.chunk_bytes)
            ),
            Place::Gpu(_) if cached > settings.gpu_chunk_bytes => format!(
                "it was planned with GPU chunks of {}, and the executor has {}",
                Bytes(cached),
                Bytes(settings.gpu_chunk_bytes)
            ),
            _ if !self.pass.iter().all(|pass| settings.gds.has(pass)) => {
                "it was planned with another handle to cuFile".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Error::new(Kind::Invalid, "run", "a job", message)
            .with_hint("plan it with the settings of the executor that runs it"))
    }

    /// An error if the user insists on the direct route and it was another.
    pub(crate) fn check_route(&self, proof: Proof) -> Result<()> {
        if self.choice != Choice::Only(Route::Direct) || proof.is_direct() {
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

    /// Whether a chunk goes by way of the ring: the CPU and the drive reach into host memory only.
    pub(crate) fn needs_slot(&self, chunk: &Chunk) -> bool {
        match (self.place(), chunk.route) {
            _ if self.direction == Direction::Across || self.inspect.is_some() => true,
            (Place::Host, route) => route == Route::Staged,
            (Place::Gpu(_), route) => route != Route::Direct,
        }
    }

    /// The next chunk of a track that no lane has taken yet.
    pub(crate) fn take(&self, track: Track) -> Option<Chunk> {
        if self.is_stopped() {
            return None;
        }
        let (next, chunks) = self.track(track);
        chunks.get(next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    /// Whether lanes have nothing more to take from a track.
    pub(crate) fn is_over(&self, track: Track) -> bool {
        let (next, chunks) = self.track(track);
        next.load(Ordering::Relaxed) >= chunks.len() || self.is_stopped()
    }

    /// Its chunks of a track, and how many of them were taken.
    fn track(&self, track: Track) -> (&AtomicUsize, &[Chunk]) {
        match track {
            Track::Drive => (&self.next_drive, self.plan.drive()),
            Track::Cached => (&self.next_cached, self.plan.cached()),
            Track::Checked => (&self.next_checked, self.plan.checked()),
        }
    }

    /// Whether it failed or was asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.progress.is_cancelled()
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
