//! Restoring: wanted rectangles, from any sharding into any other, checked before they arrive.

use std::sync::Arc;

use hashbrown::HashMap;
use straightway_core::{
    Choice, Delivery, Error, Extent, Kind, Leg, Portion, Reason, Receipt, Result, Route,
};
use straightway_io::{
    Ask, Books, Checked, Executor, Objects, Progress, Region, Settings, Tally, store::Handle,
};
use straightway_sys::{Slot, Window};

use super::{
    inspector::{Bad, Inspector, Target},
    opened::Checkpoint,
    parity,
    scatter::{Scatter, Task, Wanted},
};

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Which way the bytes went that were wanted, and are where they go.
    pub receipt: Receipt,
    /// Chunks that were read and checked.
    pub chunks: u64,
    /// Chunks that were damaged or lost and made anew from parity, in words.
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

    /// Shares how far it has come with `progress`.
    #[must_use]
    pub fn with_progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Arc::clone(progress);
        self
    }

    /// How far it has come.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Puts all that is wanted where it goes. What is damaged is mended where there is parity, and
    /// refused otherwise; after an error some of what is wanted may be in place, and all that is was
    /// checked.
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

    /// Reads chunks, checks them, and brings what is wanted of the good ones to where it goes. Answers how many are good,
    /// and which tasks could not be had. Who is patient gets all that can be had.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        scatter: &Scatter,
        is_patient: bool,
        books: &mut Books,
    ) -> Result<(u64, Vec<Bad>)> {
        let mut order = Order::default();
        for (number, task) in scatter.tasks.iter().enumerate() {
            let place = checkpoint.place(task.shard, task.chunk);
            match order.object(checkpoint, place.step, &place.file) {
                Ok(object) => {
                    let extent = Extent::new(place.offset, place.bytes);
                    let image_bytes = checkpoint.chunk_len(task.shard, task.chunk) as u64;
                    order.add(number, task, (object, extent, image_bytes));
                    order.targets.push(Target {
                        shard: task.shard,
                        chunk: task.chunk,
                        codec: place.codec,
                    });
                }
                Err(error) if is_patient => order.missing.push((number, error)),
                Err(error) => return Err(error),
            }
        }
        let inspector = Arc::new(Inspector::new(checkpoint, order.targets, is_patient));
        let checked = Checked {
            from: Objects::new(Arc::clone(checkpoint.root()), order.handles),
            portions: order.portions,
            deliveries: order.deliveries,
            to: scatter.regions.clone(),
            inspect: Arc::clone(&inspector) as _,
        };
        let ask = Ask::new(Choice::Auto, &self.progress);
        let ran = self.executor.check(checked, ask)?.enter(books);
        let found = inspector.take_bad().into_iter();
        let mut bad: Vec<Bad> = found
            .map(|(number, error)| (order.numbers[number], error))
            .collect();
        if let Err(error) = ran {
            // Who is not patient stopped the job because of the first of them.
            let is_stopped = !is_patient && !bad.is_empty();
            return Err(if is_stopped { bad.remove(0).1 } else { error });
        }
        bad.extend(order.missing);
        bad.sort_by_key(|(number, _)| *number);
        Ok((inspector.good(), bad))
    }
}

/// What a job is made of, task by task.
#[derive(Debug, Default)]
struct Order {
    handles: Vec<Arc<dyn Handle>>,
    objects: HashMap<(u64, String), u32>,
    portions: Vec<Portion>,
    deliveries: Vec<Delivery>,
    targets: Vec<Target>,
    /// The task of each portion.
    numbers: Vec<usize>,
    /// Tasks whose file is not there.
    missing: Vec<Bad>,
}

impl Order {
    /// The number of a file, which is opened if it was not yet. It then stays readable when its step is removed.
    fn object(&mut self, checkpoint: &Checkpoint, step: u64, name: &str) -> Result<u32> {
        let key = (step, name.to_owned());
        if let Some(known) = self.objects.get(&key) {
            return Ok(*known);
        }
        let file = checkpoint
            .handle(step, name)
            .map_err(|error| match error.kind() {
                Kind::NotFound => {
                    let path = checkpoint.path(step, name);
                    let message = "it is missing, and its manifest names it";
                    Error::new(Kind::Corrupt, "open", path.display(), message)
                        .with_hint("restore an earlier step")
                }
                _ => error,
            })?;
        let number =
            u32::try_from(self.handles.len()).expect("files are fewer than ranks and steps");
        self.handles.push(file);
        self.objects.insert(key, number);
        Ok(number)
    }

    fn add(
        &mut self,
        number: usize,
        task: &Task,
        (object, extent, image_bytes): (u32, Extent, u64),
    ) {
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

/// Makes a chunk from parity and puts it where it goes.
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
            None => Window::new(region, copy.at, copy.bytes).fill_from(&slot, copy.from),
        }
    }
    let mut tally = Tally::default();
    let bytes = task.wanted_bytes(chunk.len() as u64);
    tally.count(Leg::Read, Route::Buffered, Reason::Rebuilt, bytes);
    Ok(tally)
}
