//! A planned transfer with everything that it needs to run: the files, the region, and how far it
//! has come.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use std::time::{Duration, Instant};

use straightway_core::{
    Bytes, Choice, Chunk, Delivery, Direction, Error, Extent, Kind, Move, Object, Place, Plan,
    Policy, Portion, Result, Route, Survey, Transfer,
};
use straightway_sys::{File, Region, residency};

use crate::{
    gds::{Pass, Proof},
    inspect::Inspect,
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
    files: Vec<Arc<File>>,
    twins: Vec<Arc<File>>,
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
    error: Mutex<Option<Error>>,
}

impl Job {
    /// Reads extents of `files` into `region`.
    pub fn read(
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        Self::with_region(Direction::In, files, moves, region, choice, settings)
    }

    /// The plan of a read into a region that is not there yet: its place, which begins on a page, and
    /// its length. What GPUDirect Storage could do is not asked.
    pub fn foresee(
        files: &[Arc<File>],
        moves: Vec<Move>,
        (place, region_bytes): (Place, u64),
        choice: Choice,
        settings: &Settings,
    ) -> Result<Plan> {
        let transfer = Transfer::new(Direction::In, objects(files), moves, region_bytes)?;
        let surveys = survey(files, &transfer, choice);
        Plan::new(
            &transfer,
            &surveys,
            &[],
            &policy(Direction::In, choice, (place, 0), settings),
        )
    }

    /// Writes parts of `region` to extents of `files`, which are new: what no move names is zero.
    pub fn write(
        region: &Arc<Region>,
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        Self::with_region(Direction::Out, files, moves, region, choice, settings)
    }

    /// Copies extents of each file to the same place in its twin, which is new.
    pub fn relay(
        files: Vec<Arc<File>>,
        twins: Vec<Arc<File>>,
        extents: Vec<(u32, Extent)>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        assert_eq!(files.len(), twins.len(), "each file has one twin");
        let start = Instant::now();
        let in_place = |(object, extent): (u32, Extent)| Move {
            object,
            extent,
            at: extent.offset,
        };
        let moves = extents.into_iter().map(in_place).collect();
        let transfer = Transfer::new(Direction::Across, objects(&files), moves, 0)?;
        let surveys = survey(&files, &transfer, choice);
        let onward: Vec<_> = twins.iter().map(|f| f.survey()).collect();
        let policy = Policy::new(choice, settings.chunk_bytes);
        let plan = Plan::new(&transfer, &surveys, &onward, &policy)?;
        Ok(Self {
            twins,
            ..Self::new((Direction::Across, choice), plan, &policy, files, start)
        })
    }

    /// Reads portions of `files` and has each of them inspected before anything of it goes to `regions`.
    /// `deliveries` says what goes where: those of the first portion, then those of the second, and so on.
    pub fn check(
        files: Vec<Arc<File>>,
        portions: Vec<Portion>,
        deliveries: Vec<Delivery>,
        regions: Vec<Arc<Region>>,
        inspect: Arc<dyn Inspect>,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let mut hulls = vec![None; files.len()];
        for portion in &portions {
            if let Some(hull) = hulls.get_mut(portion.object as usize) {
                widen(hull, portion.extent);
            }
        }
        let surveys = surveys(&files, hulls, residency::resident_by_sample);
        let region_bytes: Vec<_> = regions.iter().map(|r| r.bytes()).collect();
        let plan = Plan::of_portions(
            &objects(&files),
            &surveys,
            portions,
            deliveries,
            &region_bytes,
        )?;
        let policy = Policy::new(Choice::Auto, settings.chunk_bytes);
        let new = Self::new((Direction::In, Choice::Auto), plan, &policy, files, start);
        Ok(Self {
            regions: regions.into(),
            inspect: Some(inspect),
            ..new
        })
    }

    fn with_region(
        direction: Direction,
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let transfer = Transfer::new(direction, objects(&files), moves, region.bytes())?;
        let mut surveys: Vec<_> = match direction {
            Direction::Out => files.iter().map(|f| f.survey()).collect(),
            Direction::In | Direction::Across => survey(&files, &transfer, choice),
        };
        let mut warnings = Vec::new();
        let wanted = (direction.leg(), choice);
        let gds = &settings.gds;
        let pass = gds.survey(&files, &mut surveys, region, wanted, &mut warnings)?;
        let span = (region.place(), region.address());
        let policy = policy(direction, choice, span, settings);
        let plan = Plan::new(&transfer, &surveys, &[], &policy)?;
        Ok(Self {
            regions: [Arc::clone(region)].into(),
            pass,
            warnings,
            ..Self::new((direction, choice), plan, &policy, files, start)
        })
    }

    fn new(
        (direction, choice): (Direction, Choice),
        plan: Plan,
        policy: &Policy,
        files: Vec<Arc<File>>,
        start: Instant,
    ) -> Self {
        Self {
            planned: (start, start.elapsed()),
            direction,
            choice,
            plan,
            files,
            twins: Vec::new(),
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

    /// The files that are read or, from a region, written.
    pub(crate) fn files(&self) -> &[Arc<File>] {
        &self.files
    }

    /// The files that a copy across writes.
    pub(crate) fn twins(&self) -> &[Arc<File>] {
        &self.twins
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
        let name = self.files[portion.object as usize].object().name;
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
        let name = self
            .files
            .first()
            .map_or_else(String::new, |f| f.object().name);
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

    /// Whether any chunk of a track goes by way of the ring.
    pub(crate) fn needs_ring(&self, track: Track) -> bool {
        let chunks = match track {
            Track::Drive => self.plan.drive(),
            // All alike.
            Track::Cached => &self.plan.cached()[..1],
            Track::Checked => &self.plan.checked()[..1],
        };
        chunks.iter().any(|chunk| self.needs_slot(chunk))
    }

    /// The next chunk of a track that no lane has taken yet.
    pub(crate) fn take(&self, track: Track) -> Option<Chunk> {
        if self.is_stopped() {
            return None;
        }
        let (next, chunks) = match track {
            Track::Drive => (&self.next_drive, self.plan.drive()),
            Track::Cached => (&self.next_cached, self.plan.cached()),
            Track::Checked => (&self.next_checked, self.plan.checked()),
        };
        chunks.get(next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    /// Whether it failed or was asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.progress.is_cancelled()
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
        if self.progress.is_cancelled() {
            let name = self
                .files
                .first()
                .map_or_else(String::new, |f| f.object().name);
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

/// How a transfer with a region is cut.
fn policy(
    direction: Direction,
    choice: Choice,
    (place, region_address): (Place, u64),
    settings: &Settings,
) -> Policy {
    Policy {
        place,
        region_address,
        // A write takes its bytes from memory that is there already: where reads were a quarter faster by the ring,
        // writes were a sixth slower.
        ring_first: settings.ring_first && direction == Direction::In,
        cached_chunk_bytes: settings.cached_chunk_bytes(place),
        ..Policy::new(choice, settings.chunk_bytes)
    }
}

fn objects(files: &[Arc<File>]) -> Vec<Object> {
    files.iter().map(|f| f.object()).collect()
}

/// Finds out which bytes are in the page cache, where that can matter.
fn survey(files: &[Arc<File>], transfer: &Transfer, choice: Choice) -> Vec<Survey> {
    let mut hulls: Vec<Option<Extent>> = vec![None; files.len()];
    if choice == Choice::Auto {
        for m in transfer.moves() {
            widen(&mut hulls[m.object as usize], m.extent);
        }
    }
    // A read says itself what was not there after all; across, the kernel reads for us.
    surveys(
        files,
        hulls,
        match transfer.direction() {
            Direction::In => residency::resident_by_sample,
            Direction::Out | Direction::Across => residency::resident,
        },
    )
}

/// Makes a hull take in an extent.
fn widen(hull: &mut Option<Extent>, extent: Extent) {
    let known = hull.unwrap_or(extent);
    let start = known.offset.min(extent.offset);
    *hull = Some(Extent::between(start, known.end().max(extent.end())));
}

/// What is known of each file, and what of its hull is resident where O_DIRECT is the other way.
fn surveys(
    files: &[Arc<File>],
    hulls: Vec<Option<Extent>>,
    resident: impl Fn(&File, Extent) -> Vec<Extent>,
) -> Vec<Survey> {
    let one = |(file, hull): (&Arc<File>, Option<Extent>)| {
        let mut survey = file.survey();
        if let (Ok(_), Some(hull)) = (survey.usable(), hull) {
            survey.resident = resident(file, hull);
        }
        survey
    };
    files.iter().zip(hulls).map(one).collect()
}
