//! Restores wanted rectangles from any sharding into any other. Bytes are checked before they are delivered.

use std::sync::Arc;

use hashbrown::HashMap;
use straightway_core::{Choice, Delivery, Error, ErrorKind, Extent, Leg, Portion, Reason, Receipt, Result, Route};
use straightway_io::{Ask, Books, Checked, Executor, Objects, Progress, Region, Settings, Tally, store::Handle};
use straightway_sys::{Slot, Window};

use super::{
    inspector::{BadChunk, Inspector, Target},
    opened::Checkpoint,
    parity,
    scatter::{Scatter, Task, Wanted},
};

/// The result of a restore.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// The receipt of the wanted bytes.
    pub receipt: Receipt,
    /// The number of chunks that were read and checked.
    pub chunks: u64,
    /// The errors of damaged or lost chunks that were rebuilt from parity.
    pub rebuilt: Vec<String>,
}

/// Restores checkpoints, on the lanes of an executor.
#[derive(Debug)]
pub struct Restorer {
    executor: Executor,
    progress: Arc<Progress>,
}

impl Restorer {
    /// A restorer with lanes of its own.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Self::on(&Executor::new(settings)?))
    }

    /// A restorer on the lanes of `executor`.
    pub fn on(executor: &Executor) -> Self {
        Self {
            executor: executor.clone(),
            progress: Arc::default(),
        }
    }

    /// Makes it use `progress`.
    #[must_use]
    pub fn with_progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Arc::clone(progress);
        self
    }

    /// The progress of its restores.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Restores all wanted parts. Damaged chunks are rebuilt from parity; without parity they are an error. After an
    /// error, some parts may be in place; every delivered byte was checked.
    pub fn restore(&self, checkpoint: &Checkpoint, wanted: &[Wanted]) -> Result<Fetched> {
        let mut books = Books::default();
        let scatter = Scatter::new(checkpoint.manifest(), wanted)?;
        let has_parity = !checkpoint.manifest().parity.is_empty();
        let (chunks, bad) = self.read(checkpoint, &scatter, has_parity, &mut books)?;
        let mut rebuilt = Vec::new();
        for (number, error) in bad {
            if !has_parity {
                return Err(error);
            }
            let task = &scatter.tasks[number];
            books.add_read(&mend(checkpoint, task, &scatter.regions)?);
            rebuilt.push(error.to_string());
        }
        Ok(Fetched {
            receipt: books.close(),
            chunks,
            rebuilt,
        })
    }

    /// Reads chunks, checks them, and delivers the wanted bytes of the good ones. Returns the number of good chunks,
    /// and the tasks that failed. With `continue_on_error`, all chunks are tried.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        scatter: &Scatter,
        continue_on_error: bool,
        books: &mut Books,
    ) -> Result<(u64, Vec<BadChunk>)> {
        let mut job = JobBuilder::default();
        for (number, task) in scatter.tasks.iter().enumerate() {
            let place = checkpoint.place(task.shard, task.chunk);
            match job.object(checkpoint, place.step, &place.file) {
                Ok(object) => {
                    let extent = Extent::new(place.offset, place.bytes);
                    let image_bytes = checkpoint.chunk_len(task.shard, task.chunk) as u64;
                    job.add(number, task, (object, extent, image_bytes));
                    job.targets.push(Target {
                        shard: task.shard,
                        chunk: task.chunk,
                        codec: place.codec,
                    });
                }
                Err(error) if continue_on_error => job.missing.push((number, error)),
                Err(error) => return Err(error),
            }
        }
        let inspector = Arc::new(Inspector::new(checkpoint, job.targets, continue_on_error));
        let checked = Checked {
            from: Objects::new(Arc::clone(checkpoint.root()), job.handles),
            portions: job.portions,
            deliveries: job.deliveries,
            to: scatter.regions.clone(),
            inspect: Arc::clone(&inspector) as _,
        };
        let ask = Ask::new(Choice::Auto, &self.progress);
        let ran = self.executor.check(checked, ask)?.enter(books);
        let found = inspector.take_bad().into_iter();
        let mut bad: Vec<BadChunk> = found.map(|(number, error)| (job.numbers[number], error)).collect();
        if let Err(error) = ran {
            // Without `continue_on_error`, the first bad chunk stopped the job.
            let is_stopped = !continue_on_error && !bad.is_empty();
            return Err(if is_stopped { bad.remove(0).1 } else { error });
        }
        bad.extend(job.missing);
        bad.sort_by_key(|(number, _)| *number);
        Ok((inspector.good(), bad))
    }
}

/// Collects the portions and deliveries of a read job, task by task.
#[derive(Debug, Default)]
struct JobBuilder {
    handles: Vec<Arc<dyn Handle>>,
    objects: HashMap<(u64, String), u32>,
    portions: Vec<Portion>,
    deliveries: Vec<Delivery>,
    targets: Vec<Target>,
    /// The task of each portion.
    numbers: Vec<usize>,
    /// Tasks whose file is missing.
    missing: Vec<BadChunk>,
}

impl JobBuilder {
    /// The number of a file, which is opened on first use. An open file stays readable if its step is removed.
    fn object(&mut self, checkpoint: &Checkpoint, step: u64, name: &str) -> Result<u32> {
        let key = (step, name.to_owned());
        if let Some(known) = self.objects.get(&key) {
            return Ok(*known);
        }
        let file = checkpoint.handle(step, name).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let path = checkpoint.path(step, name);
                let message = "it is missing, but its manifest names it";
                Error::new(ErrorKind::Corrupt, "open", path.display(), message).with_hint("restore an earlier step")
            }
            _ => error,
        })?;
        let number = u32::try_from(self.handles.len()).expect("files are fewer than ranks and steps");
        self.handles.push(file);
        self.objects.insert(key, number);
        Ok(number)
    }

    fn add(&mut self, number: usize, task: &Task, (object, extent, image_bytes): (u32, Extent, u64)) {
        let delivery = |copy: &super::scatter::CopyTo| Delivery {
            from: copy.from as u64,
            bytes: copy.bytes as u64,
            region: u32::try_from(copy.region).expect("regions are listed in memory"),
            at: copy.at,
        };
        self.deliveries.extend(task.copies.iter().map(delivery));
        self.portions.push(Portion {
            object,
            extent,
            image_bytes,
            wanted_bytes: task.wanted_bytes(image_bytes),
            deliveries: u32::try_from(task.copies.len()).expect("a chunk has fewer bytes"),
        });
        self.numbers.push(number);
    }
}

/// Rebuilds a chunk from parity and copies its wanted bytes.
fn mend(checkpoint: &Checkpoint, task: &Task, regions: &[Arc<Region>]) -> Result<Tally> {
    let chunk = parity::rebuild(checkpoint, task.shard, task.chunk)?;
    let mut slot = Slot::ring(1, chunk.len())?.remove(0);
    slot.as_mut_slice()[..chunk.len()].copy_from_slice(&chunk);
    for copy in &task.copies {
        let region = &regions[copy.region];
        match region.device_memory() {
            Some(memory) => {
                let at = usize::try_from(copy.at).expect("it lies inside memory");
                memory.write(at, &chunk[copy.from..copy.from + copy.bytes])?;
            }
            None => Window::new(region, copy.at, copy.bytes).fill_from(&slot, copy.from)?,
        }
    }
    let mut tally = Tally::default();
    let bytes = task.wanted_bytes(chunk.len() as u64);
    tally.count(Leg::Read, Route::Buffered, Reason::Rebuilt, bytes);
    Ok(tally)
}
