//! Loading: what is selected of a model, in one region, by one transfer with one receipt.

use std::sync::Arc;

use straightway_core::{Choice, Move, Place, Receipt, Result};
use straightway_io::{Ask, Books, Executor, Progress, Region};
use straightway_sys::limit;

use super::{
    Layout, Model, Selection, Shard,
    layout::{Phase, Placed},
};

/// Files read by one job, where that many may be open.
const FILES_PER_JOB: usize = 256;

/// Descriptors of an open file.
const DESCRIPTORS_EACH: u64 = 2;

/// Loads weights.
#[derive(Clone, Debug)]
pub struct Loader {
    /// What runs the jobs.
    pub executor: Arc<Executor>,
    /// Which route the bytes are to take.
    pub choice: Choice,
    /// How far it has come.
    pub progress: Arc<Progress>,
}

/// Weights in memory.
#[derive(Debug)]
pub struct Loaded {
    /// The memory that they are in.
    pub region: Arc<Region>,
    /// Where in it each tensor is, in the order in which they lie in their files.
    pub tensors: Arc<Vec<Placed>>,
    /// Which way their bytes went.
    pub receipt: Receipt,
}

/// A load that is ready to run: its region is there, and where each tensor will be is known.
///
/// It may run on another thread, while its maker wraps the tensors in objects of its own. Their
/// bytes are there when [`run`](Self::run) has given a receipt, and not before.
#[derive(Debug)]
pub struct Prepared {
    loader: Loader,
    region: Arc<Region>,
    tensors: Arc<Vec<Placed>>,
    batches: Vec<Batch>,
}

/// Files that are open together, and what goes where from them.
#[derive(Debug, Default)]
struct Batch {
    shards: Vec<Arc<Shard>>,
    moves: Vec<Move>,
}

impl Loader {
    /// A loader that takes the straightest route.
    pub fn new(executor: Arc<Executor>) -> Self {
        Self {
            executor,
            choice: Choice::Auto,
            progress: Arc::default(),
        }
    }

    /// Loads what is selected of a model into new memory of a place.
    pub fn load(&self, model: &Model, selection: &Selection, place: Place) -> Result<Loaded> {
        self.prepare(model, selection, place)?.load()
    }

    /// Makes a load ready: lays it out and takes the memory for it.
    pub fn prepare(&self, model: &Model, selection: &Selection, place: Place) -> Result<Prepared> {
        let layout = self.layout(model, selection, place);
        let region = Arc::new(Region::at(place, layout.bytes)?);
        Ok(self.prepare_in(model, layout, region))
    }

    /// Where what is selected of a model goes in a region of that place.
    pub fn layout(&self, model: &Model, selection: &Selection, place: Place) -> Layout {
        let gds = &self.executor.settings().gds;
        let phase = match place {
            Place::Host | Place::P2p(_) => Phase::OfFile,
            Place::Gpu(_) if gds.may_serve(place, selection.bytes(), self.choice) => Phase::OfFile,
            Place::Gpu(_) => Phase::Free,
        };
        Layout::new(model, selection, phase)
    }

    /// Makes a load ready that goes into a region of the caller's, at least as long as the layout.
    pub fn prepare_in(&self, model: &Model, layout: Layout, region: Arc<Region>) -> Prepared {
        let files = model.shards.len().min(layout.moves.len());
        let files_max = limit::files_at_once(DESCRIPTORS_EACH, files.min(FILES_PER_JOB));
        let mut batches: Vec<Batch> = Vec::new();
        let mut open = None;
        for m in layout.moves {
            let is_new = open != Some(m.object);
            let is_full = |batch: &Batch| is_new && batch.shards.len() == files_max;
            if batches.last().is_none_or(is_full) {
                batches.push(Batch::default());
            }
            let batch = batches
                .last_mut()
                .expect("one was pushed where there was none");
            if is_new {
                batch
                    .shards
                    .push(Arc::clone(&model.shards[m.object as usize]));
                open = Some(m.object);
            }
            let object = u32::try_from(batch.shards.len() - 1).expect("a batch is small");
            batch.moves.push(Move { object, ..m });
        }
        Prepared {
            loader: self.clone(),
            region,
            tensors: Arc::new(layout.tensors),
            batches,
        }
    }
}

impl Prepared {
    /// The memory that the tensors will be in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where in it each tensor will be.
    pub fn tensors(&self) -> &Arc<Vec<Placed>> {
        &self.tensors
    }

    /// How many bytes it moves.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }

    /// Runs it and waits for the last byte.
    pub fn run(self) -> Result<Receipt> {
        self.load().map(|loaded| loaded.receipt)
    }

    /// As `run`, with the tensors.
    pub fn load(self) -> Result<Loaded> {
        let Self {
            loader,
            region,
            tensors,
            batches,
        } = self;
        let ask = Ask::new(loader.choice, &loader.progress);
        let mut books = Books::default();
        for batch in batches {
            let objects = Shard::open_all(&batch.shards)?;
            let ticket = loader
                .executor
                .read(objects, batch.moves, &region, ask.clone())?;
            ticket.enter(&mut books)?;
        }
        Ok(Loaded {
            region,
            tensors,
            receipt: books.close(),
        })
    }
}
