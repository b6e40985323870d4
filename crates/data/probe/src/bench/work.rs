//! The runs of a bench.

use std::{cell::OnceCell, path::PathBuf, sync::Arc};

use straightway_core::{
    Bytes, Choice, Error, ErrorKind, Extent, Move, Receipt, Result, Route, extent::down, random::Seed,
};
use straightway_io::{Ask, Executor, File, FileDraft, Progress, Region, Settings, draft};
use straightway_sys::{Folder, FreeMemory, root::Root};

use super::{BenchSeries, CacheState, Sample, Spec, Workload};

/// The minimum number of bytes of a point.
const POINT_BYTES_MIN: u64 = 16 << 20;

/// The minimum number of blocks of a point, unless the file is shorter.
const POINT_BLOCKS_MIN: u64 = 1024;

/// The region of a read is as long as the file, up to this, and freshly populated. The pages populated last are still
/// in the processor's cache, and O_DIRECT into those was twice as fast on a virtual drive as into other memory.
pub(super) const REGION_BYTES_MAX: u64 = 1 << 30;

/// The maximum number of bytes of a gather: 200,000 blocks of 4 KiB fit. A gather of larger blocks takes fewer of
/// them.
const GATHER_BYTES_MAX: u64 = 1 << 30;

/// The state that all runs share.
///
/// Reads fill unused memory, as those of `copy` do. With memory that was read into before, O_DIRECT on a virtual
/// drive was 1.5 times as fast, and the ring seemed useless.
pub(super) struct Bench<'a> {
    pub(super) spec: &'a Spec,
    pub(super) progress: &'a Arc<Progress>,
    pub(super) path: PathBuf,
    /// The file that the bench created, removed at the end.
    _made: Option<FileDraft>,
    pub(super) file: Arc<File>,
    /// The source of writes: the file's bytes, read on first use.
    source: OnceCell<Arc<Region>>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(spec: &'a Spec, progress: &'a Arc<Progress>) -> Result<Self> {
        check(spec)?;
        let (path, made) = if spec.path.is_dir() {
            let made = make_file(spec, progress)?;
            (made.path(), Some(made))
        } else {
            (spec.path.clone(), None)
        };
        let file = Arc::new(File::open(&path)?);
        if file.bytes() == 0 {
            let message = "the file is empty";
            return Err(Error::new(ErrorKind::Invalid, "measure", path.display(), message));
        }
        Ok(Self {
            spec,
            progress,
            path,
            _made: made,
            file,
            source: OnceCell::new(),
        })
    }

    /// All points, in order. Buffered routes have no queue depth: they are measured once, with a lane per core.
    pub(super) fn points(&self) -> Vec<(BenchSeries, u64, u32)> {
        let cores = Settings::default().cached_lanes;
        let mut points = Vec::new();
        for &series in &self.spec.series {
            let depths = if series.route == Route::Buffered {
                &[cores][..]
            } else {
                &self.spec.depths
            };
            for &depth in depths {
                points.extend(self.spec.blocks.iter().map(|&block| (series, block, depth)));
            }
        }
        points
    }

    /// The settings of a transfer of one series.
    pub(super) fn settings(&self, series: BenchSeries, block_bytes: u64, depth: u32) -> Settings {
        let default = Settings::default();
        let depths = if series.route == Route::Buffered {
            (default.depth, default.write_depth)
        } else {
            (depth, depth)
        };
        Settings {
            // The blocks of a gather are its extents; one read may take several of them.
            chunk_bytes: match series.work {
                Workload::Gather => block_bytes.max(default.chunk_bytes),
                Workload::Read | Workload::Write => block_bytes,
            },
            cached_chunk_bytes: block_bytes,
            depth: depths.0,
            write_depth: depths.1,
            drive_lanes: self.spec.drive_lanes.unwrap_or(default.drive_lanes),
            ring_lanes: self.spec.drive_lanes.unwrap_or(default.ring_lanes),
            staging_bytes: ring_bytes(block_bytes, depth),
            gpu_chunk_bytes: block_bytes,
            // The drive's ring is part of the pinned memory; see `Settings::ring`.
            pinned_bytes: (block_bytes * u64::from(depth) * 8).max(default.pinned_bytes),
            ..default
        }
    }

    /// Runs one point `runs` times and keeps the median.
    pub(super) fn point(&self, series: BenchSeries, block_bytes: u64, depth: u32) -> Result<Sample> {
        let executor = Executor::new(self.settings(series, block_bytes, depth))?;
        let mut receipts = Vec::new();
        for run in 0..self.spec.runs.max(1) {
            let moves = match series.work {
                Workload::Read | Workload::Write => {
                    vec![Extent::new(0, self.point_bytes(block_bytes)).into()]
                }
                Workload::Gather => self.scattered(block_bytes, run),
            };
            receipts.push(self.once(&executor, series, moves)?);
        }
        let rates_bytes_per_s = receipts.iter().map(|r| r.rate_bytes_per_s).collect();
        receipts.sort_by(|a, b| a.rate_bytes_per_s.total_cmp(&b.rate_bytes_per_s));
        let receipt = receipts.swap_remove(receipts.len() / 2);
        Ok(Sample {
            series,
            block_bytes,
            depth,
            rates_bytes_per_s,
            receipt,
        })
    }

    /// Runs one transfer.
    pub(super) fn once(&self, executor: &Executor, series: BenchSeries, moves: Vec<Move>) -> Result<Receipt> {
        let choice = Choice::Only(series.route);
        if series.work == Workload::Write {
            let target = self.path.with_extension("straightway-bench");
            let draft = FileDraft::new(&target, moves[0].extent.bytes)?;
            let files = vec![Arc::clone(draft.file())];
            // The draft is never committed, so it is removed on drop.
            let (source, ask) = (self.source(executor)?, Ask::new(choice, self.progress));
            return executor.write(source, files, moves, ask)?.wait();
        }
        match series.cache {
            CacheState::Cold => self.file.evict()?,
            CacheState::Warm => self.warm(executor, &moves)?,
        }
        self.read(executor, moves, choice).map(|(_, receipt)| receipt)
    }

    /// Copies the first bytes of the file to a new one on the same drive.
    pub(super) fn copy_once(&self, executor: &Executor, series: BenchSeries, bytes: u64) -> Result<Receipt> {
        self.file.evict()?;
        let draft = FileDraft::new(&self.path.with_extension("straightway-bench"), bytes)?;
        let (from, to) = (vec![Arc::clone(&self.file)], vec![Arc::clone(draft.file())]);
        let ask = Ask::new(Choice::Only(series.route), self.progress);
        executor.relay(from, to, vec![(0, Extent::new(0, bytes))], ask)?.wait()
    }

    /// Reads the bytes to be measured into the page cache.
    fn warm(&self, executor: &Executor, moves: &[Move]) -> Result<()> {
        let choice = Choice::Only(Route::Buffered);
        self.read(executor, moves.to_vec(), choice).map(drop)
    }

    /// Reads parts of the file into fresh memory.
    fn read(&self, executor: &Executor, moves: Vec<Move>, choice: Choice) -> Result<(Arc<Region>, Receipt)> {
        let ends = moves.iter().map(|m| m.at + m.extent.bytes);
        let least = self.file.bytes().min(REGION_BYTES_MAX);
        let region = Arc::new(Region::at(self.spec.memory, ends.fold(least, u64::max))?);
        region.populate();
        let files = vec![Arc::clone(&self.file)];
        let ask = Ask::new(choice, self.progress);
        let receipt = executor.read(files, moves, &region, ask)?.wait()?;
        Ok((region, receipt))
    }

    /// The source of writes.
    fn source(&self, executor: &Executor) -> Result<&Arc<Region>> {
        if let Some(source) = self.source.get() {
            return Ok(source);
        }
        let all = vec![Extent::new(0, self.file.bytes()).into()];
        let (region, _) = self.read(executor, all, Choice::Auto)?;
        Ok(self.source.get_or_init(|| region))
    }

    /// The number of bytes that a point moves.
    fn point_bytes(&self, block: u64) -> u64 {
        let enough = (block * POINT_BLOCKS_MIN).max(POINT_BYTES_MIN);
        if self.spec.whole {
            self.file.bytes()
        } else {
            self.file.bytes().min(enough)
        }
    }

    /// Blocks at random offsets of the file, adjacent in the region. Each run has its own offsets.
    fn scattered(&self, block: u64, run: u32) -> Vec<Move> {
        let blocks = (self.file.bytes() / block).max(1);
        let mut rng = Seed(self.spec.seed).part(u64::from(run)).rng();
        let place = |i: u64| {
            let bytes = block.min(self.file.bytes());
            Move {
                object: 0,
                extent: Extent::new(rng.below(blocks) * block, bytes),
                at: i * block,
            }
        };
        (0..gather_extents(self.spec, block)).map(place).collect()
    }
}

/// The number of blocks of a gather: as many as requested, within [`GATHER_BYTES_MAX`].
fn gather_extents(spec: &Spec, block: u64) -> u64 {
    spec.gather_extents.min((GATHER_BYTES_MAX / block.max(1)).max(1))
}

/// The memory of the ring, which must hold the requested depth.
fn ring_bytes(block_bytes: u64, depth: u32) -> u64 {
    let default = Settings::default();
    let all = block_bytes.saturating_mul(u64::from(depth.max(default.depth)) * 2);
    all.max(default.staging_bytes)
}

/// Rejects an empty gather, and a ring that needs too much memory, before any file is created.
fn check(spec: &Spec) -> Result<()> {
    let refuse = |what: String, message: String| Err(Error::new(ErrorKind::Invalid, "measure with", what, message));
    let gathers = spec.series.iter().any(|t| t.work == Workload::Gather);
    if gathers && spec.gather_extents == 0 {
        let message = "a gather takes one block at least";
        return refuse("no extents".to_owned(), message.to_owned());
    }
    let block = spec.blocks.iter().copied().max().unwrap_or(0);
    let depth = spec.depths.iter().copied().max().unwrap_or(0);
    let bytes = ring_bytes(block, depth);
    match FreeMemory::of(&Root::machine()).map(|free| free.bytes) {
        Some(available) if bytes > available / 2 => {
            let what = format!("blocks of {}, {depth} in flight", Bytes(block));
            let message = format!(
                "the ring would take {}, more than half of the {} that are available",
                Bytes(bytes),
                Bytes(available)
            );
            refuse(what, message)
        }
        _ => Ok(()),
    }
}

/// Creates a file of the requested length with bytes that no drive can compress or deduplicate.
///
/// It stays a draft: it is removed on drop or, if the process is killed, by the next sweep.
fn make_file(spec: &Spec, progress: &Arc<Progress>) -> Result<FileDraft> {
    draft::sweep(&Folder::open(&spec.path)?);
    let bytes = down(spec.bytes.max(4096), 4096);
    let window = bytes.min(64 << 20);
    let mut region = Region::host(window)?;
    Seed(spec.seed).rng().fill(region.as_mut_slice());
    let region = Arc::new(region);
    let executor = Executor::new(Settings::default())?;
    let draft = FileDraft::new(&spec.path.join("straightway-bench"), bytes)?;
    let mut at = 0;
    while at < bytes {
        let extent = Extent::new(at, window.min(bytes - at));
        let files = vec![Arc::clone(draft.file())];
        let ask = Ask::new(Choice::Auto, progress);
        let ticket = executor.write(&region, files, vec![extent.into()], ask)?;
        ticket.wait()?;
        at = extent.end();
    }
    Ok(draft)
}
