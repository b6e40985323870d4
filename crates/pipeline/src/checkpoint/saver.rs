//! Saving: a snapshot while the job stands still, the rest while it goes on.

use std::{
    sync::{Arc, mpsc::channel},
    thread::{Builder, JoinHandle},
    time::{Duration, SystemTime},
};

use straightway_core::{Error, Extent, Kind, Result};
use straightway_io::{Executor, Progress, Region};

use crate::weights::Holding;

use super::{
    codec::Codec,
    flush::{Committed, Flush, Flushed, Gathering},
    image::Image,
    lock::Lock,
    manifest::{CHUNK_BYTES, Manifest, check_chunk_bytes},
    meeting::{Allegiance, Patience},
    name::{Attempt, check_run, check_step, fresh_nonce, shard_file},
    part::{Part, check_metadata},
    shard::{Rank, ShardWriter, check_rank},
    snapshot::{Preparing, Studio, check_memory, segments},
    source::Source,
    steps::{LEFT_AFTER, Steps},
};

/// How long a coordinator waits for the lock: longer than a prune has it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// What a save does that finds another still under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Busy {
    /// It waits for it.
    #[default]
    Wait,
    /// It is refused.
    Refuse,
}

/// How to save.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long chunks are: what is checked, compared and compressed as one.
    pub chunk_bytes: u64,
    /// Whether chunks that the last step has already are referred to instead of written.
    pub incremental: bool,
    /// How many other steps an incremental save may lie in. One that would lie in more is a full one:
    /// else a chunk that never changes would keep the first step for ever.
    pub references_max: usize,
    /// How chunks are compressed.
    pub codec: Codec,
    /// How many parity files are made: so many shards may be lost.
    pub parity: usize,
    /// The most memory that a snapshot may take.
    pub memory_bytes_max: u64,
    /// How long the coordinator waits for the other ranks once its own shard is durable, and they for it.
    pub timeout: Duration,
    /// What to do when a save is under way.
    pub busy: Busy,
}

impl Default for Options {
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

/// Saves the state of one rank, step by step.
#[derive(Debug)]
pub struct Saver {
    store: Steps,
    rank: Rank,
    run: String,
    /// What no other saver has, not even that of the same rank and run before a crash.
    nonce: String,
    allegiance: Allegiance,
    leftovers: Vec<Attempt>,
    options: Options,
    writer: ShardWriter,
    studio: Studio,
    /// Memory that is being made ready for it.
    preparing: Option<Preparing>,
    /// Counts saves, so that no two work in one folder. All ranks count alike.
    sequence: u64,
    flying: Option<JoinHandle<(Vec<Region>, Result<Flushed>)>>,
    /// What all saves count on, where each has not a progress of its own.
    shared: Option<Arc<Progress>>,
    /// The coordinator's lock on the folder.
    _lock: Option<Lock>,
}

impl Saver {
    /// A saver for one rank of a run, which is a name that all its ranks share: [`fresh_run`] makes one that no other
    /// run has. A name that is used again after a crash does no harm as long as all processes of the earlier start have
    /// ended.
    ///
    /// Rank 0 is the coordinator. It takes the lock on the folder, and removes what runs that crashed left there.
    pub fn new(
        store: Steps,
        rank: Rank,
        run: &str,
        executor: Arc<Executor>,
        options: Options,
    ) -> Result<Self> {
        check_rank(rank)?;
        check_run(run)?;
        check_chunk_bytes(options.chunk_bytes)
            .map_err(|why| Error::new(Kind::Invalid, "save in", "chunks", why))?;
        let lock = match rank.rank {
            0 => Some(Lock::take(store.root(), run, LOCK_PATIENCE)?),
            _ => None,
        };
        let mut leftovers = Vec::new();
        if lock.as_ref().is_some_and(Lock::is_held) {
            store.sweep(Some(run))?;
            leftovers = store.attempts(run)?;
        } else if lock.is_some() && store.root().folder().is_none() {
            store.sweep_aged(SystemTime::now(), LEFT_AFTER)?;
        }
        let writer = ShardWriter {
            executor,
            progress: Arc::default(),
            chunk_bytes: options.chunk_bytes,
            codec: options.codec,
            digests: options.incremental,
        };
        Ok(Self {
            store,
            rank,
            run: run.to_owned(),
            nonce: fresh_nonce(),
            allegiance: Allegiance::default(),
            leftovers,
            options,
            writer,
            studio: Studio::default(),
            preparing: None,
            sequence: 0,
            flying: None,
            shared: None,
            _lock: lock,
        })
    }

    /// Saves a step: takes a snapshot and returns; the rest goes on by itself, and [`wait`](Self::wait) or
    /// the next save says what came of it. All ranks call this, in the same order. The metadata
    /// are JSON, and those of rank 0 count.
    pub fn save(&mut self, step: u64, sources: &[Source<'_>], metadata: &str) -> Result<()> {
        self.start(step, sources, Gathering::Files(metadata.to_owned()))
    }

    /// Writes this rank's shard of a step, without a commit: [`wait_part`](Self::wait_part) gives what
    /// the coordinator's [`Steps::commit`] needs of every rank.
    pub fn write_shard(&mut self, step: u64, sources: &[Source<'_>]) -> Result<()> {
        self.start(step, sources, Gathering::Caller)
    }

    /// Waits for the save under way, if there is one, and says what came of it.
    pub fn wait(&mut self) -> Result<Option<Committed>> {
        Ok(self.finish()?.map(|flushed| flushed.committed))
    }

    /// Waits for the shard under way, and gives its part.
    pub fn wait_part(&mut self) -> Result<Part> {
        let flushed = self.finish()?.ok_or_else(|| {
            let message = "no shard is being written";
            Error::new(Kind::Invalid, "wait for", "a shard", message)
        })?;
        Ok(flushed.part)
    }

    /// Counts a save that this rank could not even begin: all ranks count alike, so that the next one works.
    pub fn skip(&mut self) {
        self.sequence += 1;
    }

    /// Whether a save is under way.
    pub fn is_busy(&self) -> bool {
        self.flying
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// How far the save under way has come, in bytes of this rank; cancelling it makes the save fail.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.writer.progress
    }

    /// Lets all saves from now on count on `progress`: cancelling it makes them fail.
    pub fn share_progress(&mut self, progress: &Arc<Progress>) {
        self.shared = Some(Arc::clone(progress));
    }

    /// Makes memory ready for states like this one, so that the first save need not: on a thread of its own, while the job
    /// goes on. Tensors of a GPU are copied to pinned memory. A saver that has saved, or was prepared, has memory already.
    pub fn prepare(&mut self, sources: &[Source<'_>]) -> Result<()> {
        if self.preparing.is_some() || self.flying.is_some() || self.studio.has_memory() {
            return Ok(());
        }
        let image = Image::new(&self.store.folder(), sources)?;
        check_memory(image.bytes(), self.options.memory_bytes_max)?;
        let on_gpu = |source: &Source<'_>| match &source.memory {
            Holding::Device(memory) => Some(memory.context().clone()),
            Holding::Host(_) | Holding::Lent(_) => None,
        };
        let context = sources.iter().find_map(on_gpu);
        let parts = self.parts(image.bytes(), None);
        let lengths = parts.into_iter().map(|part| part.bytes).collect();
        self.preparing = Some(Studio::prepare(lengths, context)?);
        Ok(())
    }

    /// The segments of an image.
    fn parts(&self, bytes: u64, parent: Option<&Manifest>) -> Vec<Extent> {
        if self.writer.is_plain(parent) {
            segments(bytes, self.options.chunk_bytes).collect()
        } else {
            vec![Extent::new(0, bytes)]
        }
    }

    fn start(&mut self, step: u64, sources: &[Source<'_>], gathering: Gathering) -> Result<()> {
        // Counted first, whatever comes of it: all ranks count alike even where one refuses.
        self.sequence += 1;
        check_step(step)?;
        if let Gathering::Files(metadata) = &gathering {
            check_metadata(step, metadata)?;
        }
        if self.is_busy() && self.options.busy == Busy::Refuse {
            let target = format!("step {step}");
            let message = "the save before it is still under way";
            return Err(Error::new(Kind::Transient, "save", target, message)
                .with_hint("wait for it, or save less often"));
        }
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
        self.store.begin(&attempt)?;
        self.writer.progress = self.shared.clone().unwrap_or_default();
        let flush = Flush {
            store: self.store.clone(),
            rank: self.rank,
            attempt,
            nonce: self.nonce.clone(),
            allegiance: self.allegiance.clone(),
            leftovers: self.leftovers.clone(),
            writer: self.writer.clone(),
            parent,
            gathering,
            parity: self.options.parity,
            patience: Patience {
                timeout: self.options.timeout,
                progress: Arc::clone(&self.writer.progress),
            },
        };
        self.take(flush, image, sources)
    }

    /// Takes the snapshot, each segment of which is flushed while the next is taken.
    fn take(&mut self, flush: Flush, image: Image, sources: &[Source<'_>]) -> Result<()> {
        let chunk_bytes = self.options.chunk_bytes;
        let parts = self.parts(image.bytes(), flush.parent.as_ref());
        if let Some(preparing) = self.preparing.take() {
            self.studio.adopt(preparing);
        }
        let (sender, inbox) = channel();
        let image = Arc::new(image);
        let own = Arc::clone(&image);
        let thread = Builder::new()
            .name("straightway-flush".to_owned())
            .spawn(move || flush.run(&own, inbox.into_iter()))
            .map_err(|e| Error::os("start", "a flush", e))?;
        self.flying = Some(thread);
        for extent in parts {
            match self.studio.take(&image, sources, extent, chunk_bytes) {
                // A flush that failed takes no more, and says so when it is waited for.
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

    /// The checkpoint that an incremental save refers to: the latest before it that has digests. Where that cannot be
    /// read, or some of what it lies in is gone, the save is a full one: it must not end as its parent did.
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

    /// Waits for what is under way and takes its memory back.
    fn finish(&mut self) -> Result<Option<Flushed>> {
        let Some(thread) = self.flying.take() else {
            return Ok(None);
        };
        let Ok((regions, outcome)) = thread.join() else {
            let message = "its thread ended early";
            return Err(Error::new(Kind::Transient, "finish", "a save", message));
        };
        for region in regions {
            self.studio.give_back(region);
        }
        outcome.map(Some)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // A save that was begun is finished: whoever wants less cancels it first.
        let _ = self.finish();
        if let Some(preparing) = self.preparing.take() {
            self.studio.adopt(preparing);
        }
    }
}

/// A name for a run that no other has, as far as 64 random bits can promise it.
pub fn fresh_run() -> String {
    fresh_nonce()
}
