//! A trial of checkpoints on a real folder: so many ranks, so large a state, saved and restored round by
//! round, as the MLPerf Storage benchmark does it. Ranks are threads; what counts is the slowest.

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
use straightway_core::{Bytes, Error, Kind, Place, Result};
use straightway_io::{Executor, File, Progress, Region, Settings};
use straightway_pipeline::{
    checkpoint::{Options, RANKS_MAX, Rank, Restorer, Saver, Source, Steps, Wanted, fresh_run},
    weights::{Dtype, Holding, Rectangle, Shape},
};
use straightway_sys::{cuda::DeviceMemory, limit::available_memory, root::Root};

use super::yard::Yard;

/// How long the tensors of the state are: some hundred layers' worth in a model of usual size.
const TENSOR_BYTES: u64 = 16 << 20;

/// How often the state is in memory.
const COPIES: u64 = 3;

/// What is tried.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// How many ranks.
    pub(super) ranks: u32,
    /// How large the state of all ranks together is.
    pub(super) bytes: u64,
    /// How often it is saved and restored.
    pub(super) rounds: u32,
    /// Where the state is.
    pub(super) place: Place,
    /// How it is saved.
    pub(super) options: Options,
    /// How lanes are set up.
    pub(super) settings: Settings,
    /// How far it has come, in bytes saved and restored, and the switch that stops it.
    pub(super) progress: Arc<Progress>,
}

/// Where ranks meet.
#[derive(Debug)]
struct Meeting {
    barrier: Barrier,
    /// Whether the round was the last, whatever was asked for.
    is_over: AtomicBool,
}

/// What a round took, in seconds, each that of the slowest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit comes last in a name")]
pub(super) struct Round {
    /// How long the job stood still for the save.
    pub(super) stop_s: f64,
    /// From the start of the save until it was committed and durable.
    pub(super) durable_s: f64,
    /// How long the restore took, from files that the page cache had let go of.
    pub(super) restore_cold_s: f64,
    /// How long it took when the page cache had them.
    pub(super) restore_warm_s: f64,
}

impl Trial {
    /// How many bytes are saved and restored in all.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.bytes.saturating_mul(3 * u64::from(self.rounds))
    }

    /// Refuses a state that is not there to be had: it is in memory as it is, as it was saved, and as it is restored.
    fn check_memory(&self) -> Result<()> {
        let needed = self.bytes.saturating_mul(COPIES);
        match available_memory(&Root::machine()) {
            Some(available) if self.place == Place::Host && needed > available => {
                let target = format!("a state of {}", Bytes(self.bytes));
                let (needed, available) = (Bytes(needed), Bytes(available));
                let message = format!("it takes {needed} of memory, and {available} are available");
                Err(Error::new(Kind::Invalid, "try", target, message).with_hint("--size 1GiB"))
            }
            _ => Ok(()),
        }
    }

    /// Runs it in a folder of its own inside `folder`, which is removed again.
    pub(super) fn run(&self, folder: &Path) -> Result<Vec<Round>> {
        let ranks = u64::from(self.ranks);
        if !(1..=u64::from(RANKS_MAX)).contains(&ranks) || self.bytes < ranks {
            let target = format!("{} bytes on {ranks} ranks", self.bytes);
            let message = "each rank needs a byte at least, and there is one rank at least";
            return Err(Error::new(Kind::Invalid, "try", target, message));
        }
        self.check_memory()?;
        let yard = Yard::new(folder)?;
        let meeting = Meeting {
            barrier: Barrier::new(self.ranks as usize),
            is_over: AtomicBool::new(false),
        };
        let run = fresh_run();
        let one = |rank: u32| self.serve(yard.store(), rank, &run, &meeting);
        let rounds = std::thread::scope(|scope| {
            let start = |rank| scope.spawn(move || one(rank));
            let threads: Vec<_> = (0..self.ranks).map(start).collect();
            let threads = threads.into_iter();
            let no_panic = "what goes wrong is an error, not a panic";
            let rounds = threads.map(|thread| thread.join().expect(no_panic));
            rounds.collect::<Result<Vec<_>>>()
        });
        // Of what ranks say then, each in its own words, this is the reason.
        self.check_wanted()?;
        Ok(slowest(&rounds?))
    }

    /// Refuses to go on where it was asked to stop.
    fn check_wanted(&self) -> Result<()> {
        if !self.progress.is_cancelled() {
            return Ok(());
        }
        let message = "it was interrupted";
        Err(Error::new(Kind::Cancelled, "try", "checkpoints", message))
    }

    /// One rank's rounds.
    fn serve(&self, store: &Steps, rank: u32, run: &str, meeting: &Meeting) -> Result<Vec<Round>> {
        let barrier = &meeting.barrier;
        // Whatever one rank meets, all come to the same barriers, or the others would wait for ever.
        let mut bench = Bench::new(self, store, rank, run);
        let mut rounds = Vec::new();
        let mut outcome = Ok(());
        for number in 1..=self.rounds {
            let mut round = Round::default();
            for work in [Bench::save, Bench::restore_cold, Bench::restore_warm] {
                barrier.wait();
                if let Ok(bench) = &mut bench {
                    // The first error is kept; one that made the bench itself impossible is told in the end.
                    outcome = outcome.and(work(bench, number.into(), &mut round));
                }
            }
            if rank == 0 {
                // Decided by one and before the barrier, so that all end after the same round.
                let is_over = self.progress.is_cancelled();
                meeting.is_over.store(is_over, Ordering::Relaxed);
            }
            barrier.wait();
            if rank == 0 {
                // Only one round's files are there at a time.
                let _ = store.remove(number.into());
            }
            rounds.push(round);
            if meeting.is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        bench?;
        outcome.map(|()| rounds)
    }
}

/// The slowest rank's figures of each round.
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

/// One rank: its state, its saver, and where it restores to.
#[derive(Debug)]
struct Bench {
    rank: u32,
    store: Steps,
    saver: Saver,
    restorer: Restorer,
    tensors: Vec<Tensor>,
    target: Arc<Region>,
}

/// A tensor of the state.
#[derive(Debug)]
struct Tensor {
    name: String,
    shape: Shape,
    /// Where it goes in the region that it is restored to.
    at: u64,
    memory: Memory,
}

/// Where the bytes of a tensor are.
#[derive(Debug)]
enum Memory {
    Host(Vec<u8>),
    Device(Arc<DeviceMemory>),
}

impl Tensor {
    fn new(rank: u32, number: u64, bytes: u64, place: Place) -> Result<Self> {
        let noise = noise(u64::from(rank) << 32 | (number + 1), bytes);
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
                return Err(Error::new(
                    Kind::Invalid,
                    "run a trial with",
                    place,
                    message,
                ));
            }
        };
        Ok(Self {
            name: format!("rank{rank}.layer{number}"),
            shape: Shape::from(&[bytes][..]),
            at: number * TENSOR_BYTES,
            memory,
        })
    }

    fn source(&self) -> Source<'_> {
        Source {
            name: &self.name,
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

impl Bench {
    fn new(trial: &Trial, store: &Steps, rank: u32, run: &str) -> Result<Self> {
        let bytes = trial.bytes / u64::from(trial.ranks);
        let executor = Arc::new(Executor::new(trial.settings.clone())?);
        let who = Rank {
            rank,
            world: trial.ranks,
        };
        let mut saver = Saver::new(store.clone(), who, run, executor, trial.options.clone())?;
        saver.share_progress(&trial.progress);
        let tensor = |number: u64| {
            trial.check_wanted()?;
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
            restorer: Restorer::new(trial.settings.clone())?.with_progress(&trial.progress),
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

    /// Restores this rank's state, and answers how long that took.
    fn restore(&mut self, step: u64) -> Result<f64> {
        let want = |t: &Tensor| Wanted::whole(&t.name, &t.shape, &self.target, t.at);
        let wanted: Vec<_> = self.tensors.iter().map(want).collect();
        let start = Instant::now();
        let checkpoint = self.store.checkpoint(step)?;
        self.restorer.restore(&checkpoint, &wanted)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Bytes that no drive makes smaller.
fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut noise = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    for word in noise.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    noise
}
