//! Saves checkpoints: takes a snapshot while the job is paused, and writes it while the job runs.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::channel},
    thread,
    time::Duration,
};

use straightway_core::{Error, ErrorKind, Extent, Result};
use straightway_io::{Completion, Executor, Progress, Region, ThreadLimits, Threads};
use straightway_sys::Event;

use straightway_weights::Holding;

use super::{
    codec::Codec,
    coordination::{LEFT_AFTER, Lock},
    flush::{Committed, Flush, Flushed, Gathering},
    image::Image,
    manifest::{CHUNK_BYTES, Manifest, check_chunk_bytes},
    name::{Attempt, check_run, check_step, fresh_nonce, shard_file},
    rendezvous::{TrustedCoordinator, WaitLimit},
    shard::{Rank, ShardWriter, check_rank},
    shard_report::{ShardReport, check_metadata},
    snapshot::{Preparing, Segments, SnapshotPool, check_memory, segments},
    source::SaveSource,
    steps::Steps,
};

/// The time that a coordinator waits for the lock: longer than a prune holds it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread of a saver that writes its snapshots. Not one that finishes jobs: a flush waits for jobs and other ranks.
const FLUSHER: ThreadLimits = ThreadLimits {
    threads: 1,
    per_key: 1,
    name: "straightway-flush",
};

/// What a save does if the previous one is still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Busy {
    /// It waits for the previous save.
    #[default]
    Wait,
    /// It fails.
    Refuse,
}

/// The options of a [`CheckpointSaver`].
#[derive(Clone, Debug)]
pub struct SaverOptions {
    /// The chunk size. A chunk is the unit of checksums, comparison and compression.
    pub chunk_bytes: u64,
    /// Whether chunks that the last step already has are referenced instead of written.
    pub incremental: bool,
    /// The maximum number of other steps that an incremental save references. A save that would reference more is a
    /// full one: otherwise a chunk that never changes would keep the first step forever.
    pub references_max: usize,
    /// The compression of chunks.
    pub codec: Codec,
    /// The number of parity files, which is the number of shards that may be lost.
    pub parity: usize,
    /// The maximum memory of a snapshot.
    pub memory_bytes_max: u64,
    /// The time that the coordinator waits for the other ranks once its own shard is durable, and that they wait for
    /// it.
    pub timeout: Duration,
    /// What a save does if the previous one is still under way.
    pub busy: Busy,
}

impl Default for SaverOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: CHUNK_BYTES,
            incremental: false,
            references_max: 8,
            codec: Codec::Raw,
            parity: 0,
            memory_bytes_max: u64::MAX,
            timeout: Duration::from_mins(10),
            busy: Busy::Wait,
        }
    }
}

/// The end of a flush: the memory of the snapshot and the result, or a panic.
type FlushEnd = Completion<thread::Result<(Vec<Region>, Result<Flushed>)>>;

/// Saves the state of one rank, one step after the other.
#[derive(Debug)]
pub struct CheckpointSaver {
    store: Steps,
    rank: Rank,
    run: String,
    /// Unique to this saver: a saver of the same rank and run before a crash had another one.
    nonce: String,
    trusted: TrustedCoordinator,
    leftovers: Vec<Attempt>,
    options: SaverOptions,
    executor: Arc<Executor>,
    pool: SnapshotPool,
    /// Memory that is being prepared for the pool.
    preparing: Option<Preparing>,
    /// Counts saves, so that no two use the same folder. All ranks count alike.
    sequence: u64,
    in_flight: Option<Arc<FlushEnd>>,
    flusher: Threads<()>,
    /// The progress of the save under way.
    progress: Arc<Progress>,
    /// Whether all saves share their progress.
    is_shared: bool,
    /// The coordinator's lock on the folder.
    _lock: Option<Lock>,
}

impl CheckpointSaver {
    /// A saver for one rank of a run. `run` is a name that all its ranks share; [`fresh_run`] makes a unique one. A
    /// name may be used again after a crash once all processes of the earlier start have ended.
    ///
    /// Rank 0 is the coordinator. It takes the lock on the folder, and removes the leftovers of crashed runs.
    pub fn new(store: Steps, rank: Rank, run: &str, executor: Arc<Executor>, options: SaverOptions) -> Result<Self> {
        check_rank(rank)?;
        check_run(run)?;
        check_chunk_bytes(options.chunk_bytes)
            .map_err(|why| Error::new(ErrorKind::Invalid, "save in", "chunks", why))?;
        let lock = match rank.rank {
            0 => Some(store.coordination().lock(run, LOCK_TIMEOUT)?),
            _ => None,
        };
        let mut leftovers = Vec::new();
        if let Some(lock) = &lock {
            let swept = if lock.is_held() {
                store.sweep(lock, Some(run), LEFT_AFTER)
            } else {
                // Without a lock, a removal may be at work, and each save settles those of its own step.
                store.coordination().clear_left(lock, Some(run), LEFT_AFTER)
            };
            match swept {
                // Nothing tells what is left over.
                Err(error) if error.kind() == ErrorKind::Unsupported && !lock.is_held() => {}
                swept => {
                    swept?;
                    // Best effort: credentials that may write need not be allowed to list uploads.
                    let _ = store.coordination().sweep_drafts(LEFT_AFTER);
                }
            }
            if lock.is_held() {
                leftovers = store.attempts(run)?;
            }
        }
        Ok(Self {
            store,
            rank,
            run: run.to_owned(),
            nonce: fresh_nonce(),
            trusted: TrustedCoordinator::default(),
            leftovers,
            options,
            executor,
            pool: SnapshotPool::default(),
            preparing: None,
            sequence: 0,
            in_flight: None,
            flusher: Threads::new(FLUSHER),
            progress: Arc::default(),
            is_shared: false,
            _lock: lock,
        })
    }

    /// Saves a step: takes a snapshot and returns. The write goes on in the background; [`wait`](Self::wait) or the
    /// next save returns its result. All ranks call this, in the same order. The metadata is JSON; that of rank 0 is
    /// stored.
    pub fn save(&mut self, step: u64, sources: &[SaveSource<'_>], metadata: &str) -> Result<()> {
        self.start(step, sources, Gathering::Files(metadata.to_owned()))
    }

    /// Writes this rank's shard of a step without a commit. [`wait_part`](Self::wait_part) returns the report that the
    /// coordinator's [`Steps::commit`] needs from every rank.
    pub fn write_shard(&mut self, step: u64, sources: &[SaveSource<'_>]) -> Result<()> {
        self.start(step, sources, Gathering::Caller)
    }

    /// Waits for the save under way, if there is one, and returns its result.
    pub fn wait(&mut self) -> Result<Option<Committed>> {
        Ok(self.finish()?.map(|flushed| flushed.committed))
    }

    /// Waits for the shard under way, and returns its report.
    pub fn wait_part(&mut self) -> Result<ShardReport> {
        let flushed = self.finish()?.ok_or_else(|| {
            let message = "no shard is being written";
            Error::new(ErrorKind::Invalid, "wait for", "a shard", message)
        })?;
        Ok(flushed.report)
    }

    /// Counts a save that this rank could not begin. All ranks must count alike for the next save to work.
    pub fn skip(&mut self) {
        self.sequence += 1;
    }

    /// Whether a save is under way.
    pub fn is_busy(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|end| !end.is_ended())
    }

    /// An event that is raised when the save under way is over: [`wait`](Self::wait) then returns at once. `None` if
    /// there is none.
    pub fn ended(&self) -> Result<Option<Arc<Event>>> {
        self.in_flight.as_ref().map(|end| end.event()).transpose()
    }

    /// Returns an error if a save is under way and this saver does not wait for it.
    pub fn check_idle(&self, step: u64) -> Result<()> {
        if self.options.busy == Busy::Wait || !self.is_busy() {
            return Ok(());
        }
        let target = format!("step {step}");
        let message = "the save before it is still under way";
        Err(Error::new(ErrorKind::Busy, "save", target, message).with_hint("wait for it, or save less often"))
    }

    /// The progress of the save under way, in bytes of this rank. Cancelling it makes the save fail.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Makes all later saves use `progress`. Cancelling it makes them fail.
    pub fn share_progress(&mut self, progress: &Arc<Progress>) {
        self.progress = Arc::clone(progress);
        self.is_shared = true;
    }

    /// Allocates memory for states like this one on a background thread, so that the first save need not. For tensors
    /// of a GPU the memory is pinned. Does nothing if the saver has saved or was prepared before.
    pub fn prepare(&mut self, sources: &[SaveSource<'_>]) -> Result<()> {
        if self.preparing.is_some() || self.in_flight.is_some() || self.pool.has_memory() {
            return Ok(());
        }
        let image = Image::new(&self.store.folder(), sources)?;
        check_memory(image.bytes(), self.options.memory_bytes_max)?;
        let on_gpu = |source: &SaveSource<'_>| match &source.memory {
            Holding::Device(memory) => Some(memory.context().clone()),
            Holding::Host(_) | Holding::Lent(_) => None,
        };
        let context = sources.iter().find_map(on_gpu);
        let segments = self.segment_extents(image.bytes(), &self.writer(None));
        let lengths = segments.into_iter().map(|segment| segment.bytes).collect();
        self.preparing = Some(SnapshotPool::prepare(lengths, context)?);
        Ok(())
    }

    /// The extents of an image's segments.
    fn segment_extents(&self, bytes: u64, writer: &ShardWriter) -> Vec<Extent> {
        if writer.is_plain() {
            segments(bytes, self.options.chunk_bytes).collect()
        } else {
            vec![Extent::new(0, bytes)]
        }
    }

    fn start(&mut self, step: u64, sources: &[SaveSource<'_>], gathering: Gathering) -> Result<()> {
        // Counted first, even if the save fails: all ranks must count alike.
        self.sequence += 1;
        check_step(step)?;
        if let Gathering::Files(metadata) = &gathering {
            check_metadata(step, metadata)?;
        }
        self.check_idle(step)?;
        self.wait()?;
        let attempt = Attempt {
            step,
            run: self.run.clone(),
            sequence: self.sequence,
        };
        self.store.check_new(step)?;
        let parent = self.parent(step)?;
        let shard = shard_file(self.rank.rank, self.rank.world, true, None);
        let path = self.store.folder().join(attempt.folder()).join(shard);
        let image = Image::new(&path, sources)?;
        check_memory(image.bytes(), self.options.memory_bytes_max)?;
        self.store.coordination().begin(&attempt)?;
        if !self.is_shared {
            self.progress = Arc::default();
        }
        let flush = Flush {
            store: self.store.clone(),
            attempt,
            nonce: self.nonce.clone(),
            trusted: self.trusted.clone(),
            leftovers: self.leftovers.clone(),
            writer: self.writer(parent),
            gathering,
            parity: self.options.parity,
            wait: WaitLimit {
                timeout: self.options.timeout,
                progress: Arc::clone(&self.progress),
            },
        };
        self.take(flush, image, sources)
    }

    /// The writer of the next shard.
    fn writer(&self, parent: Option<Manifest>) -> ShardWriter {
        ShardWriter {
            executor: Arc::clone(&self.executor),
            progress: Arc::clone(&self.progress),
            rank: self.rank,
            parent,
            chunk_bytes: self.options.chunk_bytes,
            codec: self.options.codec,
            digests: self.options.incremental,
        }
    }

    /// Takes the snapshot. Each segment is flushed while the next is taken.
    fn take(&mut self, flush: Flush, image: Image, sources: &[SaveSource<'_>]) -> Result<()> {
        let chunk_bytes = self.options.chunk_bytes;
        let segments = self.segment_extents(image.bytes(), &flush.writer);
        if let Some(preparing) = self.preparing.take() {
            self.pool.adopt(preparing);
        }
        let (sender, inbox) = channel();
        let image = Arc::new(image);
        let own = Arc::clone(&image);
        let end = Arc::<FlushEnd>::default();
        let publishes = Arc::clone(&end);
        let run = move || {
            let ran = catch_unwind(AssertUnwindSafe(|| flush.run(&own, Segments::new(inbox))));
            // Nothing of the save is held when it is over.
            drop((flush, own));
            publishes.publish(ran);
        };
        self.flusher.run((), run).map_err(|(error, _)| error)?;
        self.in_flight = Some(end);
        for extent in segments {
            match self.pool.take(&image, sources, extent, chunk_bytes) {
                // A flush that panicked no longer receives; `finish` returns its error.
                Ok(segment) => drop(sender.send(segment)),
                Err(error) => {
                    drop(sender);
                    let _ = self.finish();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The checkpoint that an incremental save references: the step before it, if it fits and has digests. If that is
    /// unreadable, or a step that it references is gone, the save is a full one, so that it does not depend on missing
    /// data.
    fn parent(&self, step: u64) -> Result<Option<Manifest>> {
        if !self.options.incremental {
            return Ok(None);
        }
        let steps = self.store.steps()?;
        let Some(parent) = steps.iter().rfind(|known| **known < step) else {
            return Ok(None);
        };
        let Ok(manifest) = self.store.manifest(*parent) else {
            return Ok(None);
        };
        let referenced = manifest.referenced();
        let fits = manifest.chunk_bytes == self.options.chunk_bytes
            && referenced.len() < self.options.references_max
            && referenced.iter().all(|step| steps.contains(step))
            && manifest.shards.iter().all(|s| !s.digests.is_empty());
        Ok(fits.then_some(manifest))
    }

    /// Waits for the save under way and takes its memory back.
    fn finish(&mut self) -> Result<Option<Flushed>> {
        let Some(end) = self.in_flight.take() else {
            return Ok(None);
        };
        let Some(Ok((regions, outcome))) = end.take() else {
            let message = "its thread panicked: the message is on stderr, please report it";
            return Err(Error::new(ErrorKind::Transient, "finish", "a save", message));
        };
        for region in regions {
            self.pool.give_back(region);
        }
        outcome.map(Some)
    }
}

impl Drop for CheckpointSaver {
    fn drop(&mut self) {
        // A save that was begun is finished. A caller that does not want this cancels it first.
        let _ = self.finish();
        if let Some(preparing) = self.preparing.take() {
            self.pool.adopt(preparing);
        }
    }
}

/// A unique name for a run, made of 64 random bits.
pub fn fresh_run() -> String {
    fresh_nonce()
}

#[cfg(test)]
mod tests {
    use straightway_io::Settings;
    use straightway_weights::{Dtype, Shape};

    use super::*;

    #[test]
    fn the_memory_of_a_snapshot_is_used_again_after_a_save_that_failed() {
        for codec in [Codec::Raw, Codec::Zstd] {
            let folder = tempfile::tempdir().unwrap();
            let store = Steps::create(folder.path()).unwrap();
            let executor = Arc::new(Executor::new(Settings::default()).unwrap());
            let (alone, options) = (Rank { rank: 0, world: 1 }, SaverOptions::default());
            let options = SaverOptions { codec, ..options };
            let mut saver = CheckpointSaver::new(store, alone, "run", executor, options).unwrap();
            let content = vec![7; 3 << 20];
            let shape = Shape::from(&[content.len() as u64][..]);
            let sources = [SaveSource::whole("w", Dtype::U8, shape, &content)];
            saver.share_progress(&Arc::default());
            saver.progress().cancel();
            // The first fails in its write, the second before it: something else has the name of its file.
            let file = format!(".step-1.run-2/.shard-00000-{}", saver.nonce);
            std::fs::create_dir_all(folder.path().join(file)).unwrap();
            for step in 0..2 {
                saver.save(step, &sources, "null").unwrap();
                saver.wait().unwrap_err();
                assert!(saver.pool.has_memory(), "{codec:?}, step {step}");
            }
        }
    }
}
