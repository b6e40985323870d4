//! Loads the selected tensors of a model into one region, with one receipt.

use std::sync::Arc;

use straightway_core::{Choice, Move, Place, Receipt, Result};
use straightway_io::{Ask, Books, Executor, Progress, Region, Scattered};
use straightway_sys::{cuda::Context, limit};

use super::{
    Layout, Model, Pick, Selection, Shard,
    layout::{Phase, Placed},
};

/// The maximum number of files per job, if the descriptor limit allows it.
const FILES_PER_JOB: usize = 256;

/// File descriptors per open file.
const DESCRIPTORS_EACH: u64 = 2;

/// Loads model weights.
#[derive(Clone, Debug)]
pub struct Loader {
    /// The executor that runs the transfers.
    pub executor: Arc<Executor>,
    /// The route to use.
    pub choice: Choice,
    /// The progress of its loads.
    pub progress: Arc<Progress>,
}

/// Loaded weights.
#[derive(Debug)]
pub struct Loaded {
    /// Their memory.
    pub region: Arc<Region>,
    /// The place of each tensor in the region, in file order.
    pub tensors: Arc<Vec<Placed>>,
    /// The receipt of the load.
    pub receipt: Receipt,
}

/// A load that is ready to run: its region is allocated, and the place of each tensor is known.
///
/// It may run on another thread while the caller wraps the tensors in its own objects. Their bytes are valid only after
/// [`run`](Self::run) has returned.
#[derive(Debug)]
pub struct Prepared {
    pub(super) jobs: Jobs,
    region: Arc<Region>,
    tensors: Arc<Vec<Placed>>,
}

/// The jobs of a load, which run one after the other.
#[derive(Debug)]
pub(super) struct Jobs {
    loader: Loader,
    batches: Vec<Batch>,
    /// Bytes that are mapped, in addition to those that are moved.
    pub(super) mapped_bytes: u64,
    /// The notes of the model, and the reasons why files could not be mapped.
    pub(super) warnings: Vec<String>,
}

/// The target memory of a load.
#[derive(Debug)]
pub(super) enum Target {
    One(Arc<Region>),
    Scattered(Arc<Scattered>),
}

/// The files of one job, and the moves from them.
#[derive(Debug, Default)]
struct Batch {
    shards: Vec<Arc<Shard>>,
    moves: Vec<Move>,
}

impl Loader {
    /// A loader that chooses the route by itself.
    pub fn new(executor: Arc<Executor>) -> Self {
        Self {
            executor,
            choice: Choice::Auto,
            progress: Arc::default(),
        }
    }

    /// Loads the selected tensors into a new region at `place`.
    pub fn load(&self, model: &Model, selection: &Selection, place: Place) -> Result<Loaded> {
        self.prepare(model, selection, place)?.run()
    }

    /// Prepares a load: computes its layout and allocates its region.
    pub fn prepare(&self, model: &Model, selection: &Selection, place: Place) -> Result<Prepared> {
        let layout = self.layout(model, selection, place);
        let region = Arc::new(Region::at(place, layout.bytes)?);
        Ok(self.prepare_in(model, layout, region))
    }

    /// Whether GPUDirect Storage will read the selection straight into memory of a GPU, which has to be one region: it
    /// is demanded, or a test transfer proves it.
    pub fn will_go_direct(&self, model: &Model, selection: &Selection, context: &Context) -> bool {
        if selection.bytes() == 0 || !model.is_local() {
            return false;
        }
        // The file of the largest tensor: a file shorter than a page proves nothing.
        let file = || {
            let bytes = |pick: &&Pick| pick.bytes(pick.of(model));
            let largest = selection.picks().iter().max_by_key(bytes);
            let largest = largest.expect("a selection with bytes has a tensor");
            model.shards[largest.of(model).file as usize].file()
        };
        let gds = self.executor.gds();
        gds.will_serve(context, selection.bytes(), self.choice, file)
    }

    /// Whether GPUDirect Storage may read the selection straight into a region at `place`, before any file is proven.
    fn may_go_direct(&self, selection: &Selection, place: Place) -> bool {
        let gds = self.executor.gds();
        gds.may_serve(place, selection.bytes(), self.choice)
    }

    /// The layout of the selected tensors in a region at `place`.
    pub fn layout(&self, model: &Model, selection: &Selection, place: Place) -> Layout {
        let phase = match place {
            Place::Host | Place::P2p(_) => Phase::OfFile,
            Place::Gpu(_) if self.may_go_direct(selection, place) => Phase::OfFile,
            Place::Gpu(_) => Phase::Free,
        };
        Layout::new(model, selection, phase)
    }

    /// Prepares a load into a region of the caller, which is at least as long as the layout.
    pub fn prepare_in(&self, model: &Model, layout: Layout, region: Arc<Region>) -> Prepared {
        Prepared {
            jobs: Jobs::new(self, model, layout.moves),
            region,
            tensors: Arc::new(layout.tensors),
        }
    }
}

impl Jobs {
    /// Groups these moves from the files of a model into jobs.
    pub(super) fn new(loader: &Loader, model: &Model, moves: Vec<Move>) -> Self {
        let files = model.shards.len().min(moves.len());
        let files_max = limit::files_at_once(DESCRIPTORS_EACH, files.min(FILES_PER_JOB));
        let mut batches: Vec<Batch> = Vec::new();
        let mut open = None;
        for m in moves {
            let is_new = open != Some(m.object);
            let is_full = |batch: &Batch| is_new && batch.shards.len() == files_max;
            if batches.last().is_none_or(is_full) {
                batches.push(Batch::default());
            }
            let batch = batches.last_mut().expect("one was pushed where there was none");
            if is_new {
                batch.shards.push(Arc::clone(&model.shards[m.object as usize]));
                open = Some(m.object);
            }
            let object = u32::try_from(batch.shards.len() - 1).expect("a batch is small");
            batch.moves.push(Move { object, ..m });
        }
        Self {
            loader: loader.clone(),
            batches,
            mapped_bytes: 0,
            warnings: model.notes.clone(),
        }
    }

    /// Runs the jobs. Without a target, nothing is moved.
    pub(super) fn run(self, target: Option<&Target>) -> Result<Receipt> {
        let Self {
            loader,
            batches,
            mapped_bytes,
            warnings,
        } = self;
        let ask = Ask::new(loader.choice, &loader.progress);
        let mut books = Books::default();
        if mapped_bytes > 0 {
            books.map(mapped_bytes);
        }
        for warning in &warnings {
            books.warn(warning);
        }
        let Some(target) = target else {
            return Ok(books.close());
        };
        for batch in batches {
            let objects = Shard::open_all(&batch.shards)?;
            let (executor, ask) = (&loader.executor, ask.clone());
            let ticket = match target {
                Target::One(region) => executor.read(objects, batch.moves, region, ask),
                Target::Scattered(whole) => executor.read_scattered(objects, batch.moves, whole, ask),
            }?;
            ticket.enter(&mut books)?;
        }
        Ok(books.close())
    }
}

impl Prepared {
    /// The region that the tensors are loaded into.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The place of each tensor in the region.
    pub fn tensors(&self) -> &Arc<Vec<Placed>> {
        &self.tensors
    }

    /// The size of its tensors in bytes.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Runs the load and waits for its last byte.
    pub fn run(self) -> Result<Loaded> {
        let Self { jobs, region, tensors } = self;
        let receipt = jobs.run(Some(&Target::One(Arc::clone(&region))))?;
        Ok(Loaded {
            region,
            tensors,
            receipt,
        })
    }
}
