//! A trial of checkpoints on a real folder: a state of a given size on a number of ranks, saved and restored round by
//! round, as in the MLPerf Storage benchmark. Ranks are threads; the times are those of the slowest rank.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use serde::Serialize;
use straightway_checkpoint::{
    CheckpointSaver, RANKS_MAX, Rank, Restorer, SaveSource, SaverOptions, Steps, Wanted, fresh_run,
};
use straightway_core::{Bytes, Error, ErrorKind, Place, Result, random::Seed};
use straightway_io::{Executor, File, Progress, Region, Settings};
use straightway_sys::{FreeMemory, cuda::DeviceMemory, root::Root};
use straightway_weights::{Dtype, Holding, Rectangle, Shape};

use super::trial_dir::TrialDir;

/// The size of the tensors of the state.
const TENSOR_BYTES: u64 = 16 << 20;

/// The number of copies of the state in memory.
const COPIES: u64 = 3;

/// The parameters of a trial.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// The number of ranks.
    pub(super) ranks: u32,
    /// The size of the state of all ranks together.
    pub(super) bytes: u64,
    /// The number of rounds.
    pub(super) rounds: u32,
    /// The memory of the state.
    pub(super) place: Place,
    /// The options of the saver.
    pub(super) options: SaverOptions,
    /// The settings of the executor.
    pub(super) settings: Settings,
    /// The progress in bytes saved and restored, which can also cancel the trial.
    pub(super) progress: Arc<Progress>,
}

/// Synchronizes the ranks between the steps of a round.
#[derive(Debug)]
struct RoundBarrier {
    barrier: Barrier,
    /// Whether the trial ends after this round because it was cancelled.
    is_over: AtomicBool,
}

/// The times of a round in seconds, each that of the slowest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit comes last in a name")]
pub(super) struct Round {
    /// The time that the job was stopped for the save.
    pub(super) stop_s: f64,
    /// From the start of the save until it was committed and durable.
    pub(super) durable_s: f64,
    /// The time of a restore from files that were evicted from the page cache.
    pub(super) restore_cold_s: f64,
    /// The time of a restore from files in the page cache.
    pub(super) restore_warm_s: f64,
}

impl Trial {
    /// The total number of bytes saved and restored.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.bytes.saturating_mul(3 * u64::from(self.rounds))
    }

    /// Checks that memory suffices for three copies: the state, its snapshot, and the restored state.
    fn check_memory(&self) -> Result<()> {
        let needed = self.bytes.saturating_mul(COPIES);
        match FreeMemory::of(&Root::machine()).map(|free| free.bytes) {
            Some(available) if self.place == Place::Host && needed > available => {
                let target = format!("a state of {}", Bytes(self.bytes));
                let (needed, available) = (Bytes(needed), Bytes(available));
                let message = format!("it needs {needed} of memory, and {available} is available");
                Err(Error::new(ErrorKind::Invalid, "try", target, message).with_hint("--size 1GiB"))
            }
            _ => Ok(()),
        }
    }

    /// Runs the trial in a temporary folder inside `folder`.
    pub(super) fn run(&self, folder: &Path) -> Result<Vec<Round>> {
        let ranks = u64::from(self.ranks);
        if !(1..=u64::from(RANKS_MAX)).contains(&ranks) || self.bytes < ranks {
            let target = format!("{} bytes on {ranks} ranks", self.bytes);
            let message = "at least one rank and one byte per rank are needed";
            return Err(Error::new(ErrorKind::Invalid, "try", target, message));
        }
        self.check_memory()?;
        let dir = TrialDir::new(folder)?;
        let sync = RoundBarrier {
            barrier: Barrier::new(self.ranks as usize),
            is_over: AtomicBool::new(false),
        };
        let run = fresh_run();
        let one = |rank: u32| self.serve(dir.store(), rank, &run, &sync);
        let rounds = std::thread::scope(|scope| {
            let start = |rank| scope.spawn(move || one(rank));
            let threads: Vec<_> = (0..self.ranks).map(start).collect();
            let threads = threads.into_iter();
            let no_panic = "ranks return errors and do not panic";
            let rounds = threads.map(|thread| thread.join().expect(no_panic));
            rounds.collect::<Result<Vec<_>>>()
        });
        // After a cancellation every rank has an error of its own; this is the cause.
        self.check_cancelled()?;
        Ok(slowest(&rounds?))
    }

    /// Returns an error if the trial was cancelled.
    fn check_cancelled(&self) -> Result<()> {
        if !self.progress.is_cancelled() {
            return Ok(());
        }
        let message = "it was interrupted";
        Err(Error::new(ErrorKind::Cancelled, "try", "checkpoints", message))
    }

    /// Runs the rounds of one rank.
    fn serve(&self, store: &Steps, rank: u32, run: &str, sync: &RoundBarrier) -> Result<Vec<Round>> {
        let barrier = &sync.barrier;
        // After an error a rank still waits at every barrier: otherwise the others would wait forever.
        let mut bench = RankBench::new(self, store, rank, run);
        let mut rounds = Vec::new();
        let mut outcome = Ok(());
        for number in 1..=self.rounds {
            let mut round = Round::default();
            for work in [RankBench::save, RankBench::restore_cold, RankBench::restore_warm] {
                barrier.wait();
                if let Ok(bench) = &mut bench {
                    // The first error is kept. An error of `RankBench::new` is returned at the end.
                    outcome = outcome.and(work(bench, number.into(), &mut round));
                }
            }
            if rank == 0 {
                // Rank 0 decides before the barrier, so that all ranks end after the same round.
                let is_over = self.progress.is_cancelled();
                sync.is_over.store(is_over, Ordering::Relaxed);
            }
            barrier.wait();
            if rank == 0 {
                // Only the files of one round exist at a time.
                let _ = store.remove(number.into());
            }
            rounds.push(round);
            if sync.is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        bench?;
        outcome.map(|()| rounds)
    }
}

/// The times of the slowest rank in each round.
fn slowest(ranks: &[Vec<Round>]) -> Vec<Round> {
    let rounds = ranks.first().map_or(0, Vec::len);
    let slowest = |number: usize| {
        let most = |figure: fn(&Round) -> f64| {
            let figures = ranks.iter().map(|rounds| figure(&rounds[number]));
            figures.fold(0.0, f64::max)
        };
        Round {
            stop_s: most(|r| r.stop_s),
            durable_s: most(|r| r.durable_s),
            restore_cold_s: most(|r| r.restore_cold_s),
            restore_warm_s: most(|r| r.restore_warm_s),
        }
    };
    (0..rounds).map(slowest).collect()
}

/// One rank: its state, its saver, and the target of its restores.
#[derive(Debug)]
struct RankBench {
    rank: u32,
    store: Steps,
    saver: CheckpointSaver,
    restorer: Restorer,
    tensors: Vec<Tensor>,
    target: Arc<Region>,
}

/// A tensor of the state.
#[derive(Debug)]
struct Tensor {
    name: String,
    shape: Shape,
    /// Its offset in the region that it is restored to.
    at: u64,
    memory: Memory,
}

/// The memory of a tensor.
#[derive(Debug)]
enum Memory {
    Host(Vec<u8>),
    Device(Arc<DeviceMemory>),
}

impl Tensor {
    fn new(rank: u32, number: u64, bytes: u64, place: Place) -> Result<Self> {
        // Bytes that a drive cannot compress.
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let noise = Seed(u64::from(rank)).part(number).bytes(len);
        let memory = match place {
            Place::Host => Memory::Host(noise),
            Place::Gpu(_) => {
                let mut region = Region::at(place, bytes)?;
                region.write_at(0, &noise)?;
                let memory = region.device_memory().expect("it is on a GPU");
                Memory::Device(Arc::clone(memory))
            }
            Place::P2p(_) => {
                let message = "a trial has its tensors in host memory or on a GPU";
                return Err(Error::new(ErrorKind::Invalid, "run a trial with", place, message));
            }
        };
        Ok(Self {
            name: format!("rank{rank}.layer{number}"),
            shape: Shape::from(&[bytes][..]),
            at: number * TENSOR_BYTES,
            memory,
        })
    }

    fn source(&self) -> SaveSource<'_> {
        SaveSource {
            name: &self.name,
            identity: None,
            dtype: Dtype::U8,
            shape: self.shape.clone(),
            rectangle: Rectangle::whole(&self.shape),
            opaque: false,
            memory: match &self.memory {
                Memory::Host(bytes) => Holding::Host(bytes),
                Memory::Device(memory) => Holding::Device(Arc::clone(memory)),
            },
        }
    }
}

impl RankBench {
    fn new(trial: &Trial, store: &Steps, rank: u32, run: &str) -> Result<Self> {
        let bytes = trial.bytes / u64::from(trial.ranks);
        let executor = Arc::new(Executor::new(trial.settings)?);
        let who = Rank {
            rank,
            world: trial.ranks,
        };
        let mut saver = CheckpointSaver::new(store.clone(), who, run, executor, trial.options.clone())?;
        saver.share_progress(&trial.progress);
        let tensor = |number: u64| {
            trial.check_cancelled()?;
            let left = bytes - number * TENSOR_BYTES;
            Tensor::new(rank, number, left.min(TENSOR_BYTES), trial.place)
        };
        let tensors = (0..bytes.div_ceil(TENSOR_BYTES)).map(tensor);
        let target = Region::at(trial.place, bytes)?;
        target.populate();
        Ok(Self {
            rank,
            store: store.clone(),
            saver,
            restorer: Restorer::new(trial.settings)?.with_progress(&trial.progress),
            tensors: tensors.collect::<Result<_>>()?,
            target: Arc::new(target),
        })
    }

    fn save(&mut self, step: u64, round: &mut Round) -> Result<()> {
        let sources: Vec<_> = self.tensors.iter().map(Tensor::source).collect();
        let start = Instant::now();
        self.saver.save(step, &sources, "null")?;
        round.stop_s = start.elapsed().as_secs_f64();
        self.saver.wait()?;
        round.durable_s = start.elapsed().as_secs_f64();
        Ok(())
    }

    fn restore_cold(&mut self, step: u64, round: &mut Round) -> Result<()> {
        let checkpoint = self.store.checkpoint(step)?;
        for shard in &checkpoint.manifest().shards {
            File::open(&self.store.step_path(step).join(&shard.file))?.evict()?;
        }
        round.restore_cold_s = self.restore(step)?;
        Ok(())
    }

    fn restore_warm(&mut self, step: u64, round: &mut Round) -> Result<()> {
        let checkpoint = self.store.checkpoint(step)?;
        let own = &checkpoint.manifest().shards[self.rank as usize];
        let path = self.store.step_path(step).join(&own.file);
        let failed = |e| Error::os("read", path.display(), e);
        let mut file = fs::File::open(&path).map_err(failed)?;
        io::copy(&mut file, &mut io::sink()).map_err(failed)?;
        round.restore_warm_s = self.restore(step)?;
        Ok(())
    }

    /// Restores this rank's state, and returns the time in seconds.
    fn restore(&mut self, step: u64) -> Result<f64> {
        let want = |t: &Tensor| Wanted::whole(&t.name, &t.shape, &self.target, t.at);
        let wanted: Vec<_> = self.tensors.iter().map(want).collect();
        let start = Instant::now();
        let checkpoint = self.store.checkpoint(step)?;
        self.restorer.restore(&checkpoint, &wanted)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
