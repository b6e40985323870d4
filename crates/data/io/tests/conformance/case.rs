//! One case of the suite: a value for each dimension.

use std::fmt;

use straightway_core::{Choice, Place, Result, Route, random::Seed};
use straightway_io::{Executor, ExecutorParts, GdsUse, Settings, settings::DriveEngine, wrapper::faulty::Faults};

use crate::{extents::Shape, mounts::System};

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Read,
    Write,
    Relay,
    Check,
}

/// Whether files have holes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Density {
    Dense,
    /// Holes and data in multiples of this.
    Sparse(u64),
}

/// The state of the page cache when a job begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Residency {
    /// All pages are cached and not yet on the drive.
    Dirty,
    /// All pages are cached, and on the drive too.
    Resident,
    /// Nothing is cached.
    Evicted,
    /// Some pages of some files are cached.
    Mixed,
}

/// A case. Everything else follows from its seed and number.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) system: System,
    pub(crate) engine: DriveEngine,
    pub(crate) verb: Verb,
    pub(crate) choice: Choice,
    pub(crate) objects: u32,
    pub(crate) depth: u32,
    pub(crate) lanes: u32,
    pub(crate) chunk_bytes: u64,
    pub(crate) shape: Shape,
    pub(crate) density: Density,
    pub(crate) residency: Residency,
    /// Consecutive jobs on one executor.
    pub(crate) jobs: u32,
    /// Whether the ring has more than one slot per lane.
    pub(crate) is_ample: bool,
    /// Whether I/Os complete short, late and out of order.
    pub(crate) is_faulty: bool,
    /// Whether bytes have the same offset within a page in the object and in the region.
    pub(crate) keeps_page_offset: bool,
    pub(crate) place: Place,
    pub(crate) gds: GdsUse,
}

const ENGINES: [DriveEngine; 2] = [DriveEngine::Ring, DriveEngine::Pool];
const VERBS: [Verb; 4] = [Verb::Read, Verb::Write, Verb::Relay, Verb::Check];
const CHOICES: [Choice; 4] = [
    Choice::Auto,
    Choice::Only(Route::Direct),
    Choice::Only(Route::Staged),
    Choice::Only(Route::Buffered),
];
const OBJECTS: [u32; 7] = [1, 2, 16, 100, 300, 600, 2000];
const DEPTHS: [u32; 6] = [1, 2, 7, 64, 300, 1024];
const LANES: [u32; 4] = [1, 2, 3, 8];
const CHUNKS: [u64; 5] = [4 << 10, 8 << 10, 12 << 10, 64 << 10, 1 << 20];
const DENSITIES: [Density; 4] = [
    Density::Dense,
    Density::Sparse(1024),
    Density::Sparse(4096),
    Density::Sparse(64 << 10),
];
const RESIDENCIES: [Residency; 4] = [
    Residency::Dirty,
    Residency::Resident,
    Residency::Evicted,
    Residency::Mixed,
];
const JOBS: [u32; 3] = [1, 2, 4];

impl Case {
    /// The number of values of each dimension.
    pub(crate) const SIZES: [usize; 14] = [
        System::ALL.len(),
        ENGINES.len(),
        VERBS.len(),
        CHOICES.len(),
        OBJECTS.len(),
        DEPTHS.len(),
        LANES.len(),
        CHUNKS.len(),
        Shape::ALL.len(),
        DENSITIES.len(),
        RESIDENCIES.len(),
        JOBS.len(),
        // `is_ample` and `is_faulty` together, and `keeps_page_offset`.
        4,
        2,
    ];

    /// The case of one row of a cover.
    pub(crate) fn new(seed: u64, number: u64, row: &[usize]) -> Self {
        let &[
            system,
            engine,
            verb,
            choice,
            objects,
            depth,
            lanes,
            chunk,
            shape,
            density,
            residency,
            jobs,
            trouble,
            step,
        ] = row
        else {
            panic!("a row has a value for each dimension")
        };
        Self {
            seed,
            number,
            system: System::ALL[system],
            engine: ENGINES[engine],
            verb: VERBS[verb],
            choice: CHOICES[choice],
            objects: OBJECTS[objects],
            depth: DEPTHS[depth],
            lanes: LANES[lanes],
            chunk_bytes: CHUNKS[chunk],
            shape: Shape::ALL[shape],
            density: DENSITIES[density],
            residency: RESIDENCIES[residency],
            jobs: JOBS[jobs],
            is_ample: trouble % 2 == 0,
            is_faulty: trouble == 3,
            keeps_page_offset: step == 0,
            place: Place::Host,
            gds: GdsUse::Off,
        }
    }

    /// The verb of one of its jobs. They rotate, so that each kind follows each.
    pub(crate) fn verb_of(&self, job: u32) -> Verb {
        let first = VERBS.iter().position(|verb| *verb == self.verb);
        VERBS[(first.expect("it is one of them") + job as usize) % VERBS.len()]
    }

    /// Its executor.
    pub(crate) fn executor(&self) -> Result<Executor> {
        let mut rng = Seed(self.seed).part(self.number).rng();
        let least = self.chunk_bytes * u64::from(self.lanes);
        let room = if self.is_ample { least.max(16 << 20) } else { least };
        let faults = Faults {
            seed: rng.bits(),
            short_per_mille: 150,
            late_per_mille: 150,
            ..Faults::default()
        };
        let settings = Settings {
            drive_lanes: self.lanes,
            ring_lanes: self.lanes,
            cached_lanes: self.lanes,
            gpu_lanes: self.lanes,
            depth: self.depth,
            write_depth: self.depth,
            chunk_bytes: self.chunk_bytes,
            cached_chunk_bytes: self.chunk_bytes * *rng.pick(&[1, 4]),
            gpu_chunk_bytes: self.chunk_bytes,
            staging_bytes: room,
            pinned_bytes: room * 4,
            ring_first: rng.below(3) == 0,
            engine: self.engine,
            gds: self.gds,
            ..Settings::default()
        };
        let parts = ExecutorParts {
            faults: self.is_faulty.then_some(faults),
            ..ExecutorParts::default()
        };
        Executor::with_parts(settings, parts)
    }

    /// Whether a demanded route may be refused: the file system or the region's address may not support it.
    pub(crate) fn may_be_refused(&self) -> bool {
        if self.system.is_remote() && self.choice != Choice::Auto {
            return true;
        }
        let demands_drive = matches!(self.choice, Choice::Only(Route::Direct | Route::Staged));
        let no_gds = self.place != Place::Host && self.choice == Choice::Only(Route::Direct);
        demands_drive && (!self.system.has_direct() || !self.keeps_page_offset || no_gds)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            number,
            system,
            engine,
            verb,
            choice,
            objects,
            depth,
            lanes,
            chunk_bytes,
            shape,
            density,
            residency,
            jobs,
            is_ample,
            is_faulty,
            keeps_page_offset,
            place,
            gds,
        } = self;
        write!(
            f,
            "seed={seed} only={number}: {system} {engine:?} {verb:?} {choice:?} objects {objects} depth {depth} \
             lanes {lanes} chunk {chunk_bytes} {shape:?} {density:?} {residency:?} jobs {jobs} ample {is_ample} \
             faulty {is_faulty} in step {keeps_page_offset} {place} {gds:?}"
        )
    }
}
