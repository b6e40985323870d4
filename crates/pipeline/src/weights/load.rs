//! Loading: what is selected of a model, in one region, by one transfer with one receipt.

use std::sync::Arc;

use straightway_core::{Choice, Move, Place, Receipt, Result};
use straightway_io::{Ask, Books, Executor, Progress, Region, Scattered};
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
    pub(super) jobs: Jobs,
    region: Arc<Region>,
    tensors: Arc<Vec<Placed>>,
}

/// The jobs of a load, one after the other.
#[derive(Debug)]
pub(super) struct Jobs {
    loader: Loader,
    batches: Vec<Batch>,
    /// Bytes beside those that it moves: the pages of files.
    pub(super) mapped_bytes: u64,
    /// Why a file could not be mapped.
    pub(super) warnings: Vec<String>,
}

/// Where the bytes of a load go.
#[derive(Debug)]
pub(super) enum Target {
    One(Arc<Region>),
    Scattered(Arc<Scattered>),
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

    /// Whether GPUDirect Storage may bring what is selected straight to memory of that place. It takes one region.
    pub fn may_go_direct(&self, selection: &Selection, place: Place) -> bool {
        let gds = &self.executor.settings().gds;
        gds.may_serve(place, selection.bytes(), self.choice)
    }

    /// Where what is selected of a model goes in a region of that place.
    pub fn layout(&self, model: &Model, selection: &Selection, place: Place) -> Layout {
        let phase = match place {
            Place::Host | Place::P2p(_) => Phase::OfFile,
            Place::Gpu(_) if self.may_go_direct(selection, place) => Phase::OfFile,
            Place::Gpu(_) => Phase::Free,
        };
        Layout::new(model, selection, phase)
    }

    /// Makes a load ready that goes into a region of the caller's, at least as long as the layout.
    pub fn prepare_in(&self, model: &Model, layout: Layout, region: Arc<Region>) -> Prepared {
        Prepared {
            jobs: Jobs::new(self, model, layout.moves),
            region,
            tensors: Arc::new(layout.tensors),
        }
    }
}

impl Jobs {
    /// The jobs that make these moves out of the files of a model.
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
        Self {
            loader: loader.clone(),
            batches,
            mapped_bytes: 0,
            warnings: Vec::new(),
        }
    }

    /// Runs them. Without a target there is nothing to move.
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
                Target::Scattered(whole) => {
                    executor.read_scattered(objects, batch.moves, whole, ask)
                }
            }?;
            ticket.enter(&mut books)?;
        }
        Ok(books.close())
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
            jobs,
            region,
            tensors,
        } = self;
        let receipt = jobs.run(Some(&Target::One(Arc::clone(&region))))?;
        Ok(Loaded {
            region,
            tensors,
            receipt,
        })
    }
}
