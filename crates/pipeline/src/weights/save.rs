//! Saving: tensors from a region, or from slices of the program's own memory, into a file that
//! appears when it is whole.

use std::{collections::BTreeMap, ffi::OsStr, sync::Arc};

use straightway_core::{Choice, Extent, Kind, Move, Receipt, Result};
use straightway_io::{
    Ask, Books, Executor, Objects, Part, Progress, Region, Scattered, Ticket,
    store::{Draft, Like, Location, Missing},
};
use straightway_sys::{LentBytes, cuda::DeviceMemory};

use super::{
    Dtype, Placed, Shape,
    outline::{Entry, Outline},
    tensor::quoted,
};

/// What is gathered in memory before it is written: large enough for the sync after each to be
/// nothing, small beside any model.
pub(crate) const WINDOW_BYTES: u64 = 64 << 20;

/// Saves weights.
#[derive(Clone, Debug)]
pub struct Saver {
    /// What runs the jobs.
    pub executor: Arc<Executor>,
    /// Which route the bytes are to take.
    pub choice: Choice,
    /// How far it has come.
    pub progress: Arc<Progress>,
}

/// A tensor in the program's own memory.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What its elements are.
    pub dtype: Dtype,
    /// How long it is along each dimension; rows follow each other.
    pub shape: Shape,
    /// Its bytes, little-endian.
    pub bytes: Holding<'a>,
}

/// Where a program holds the bytes of a tensor.
#[derive(Clone, Debug)]
pub enum Holding<'a> {
    /// In host memory of the program's own, which does not change meanwhile.
    Host(&'a [u8]),
    /// In host memory that others may write to meanwhile. Who does saves a mixture.
    Lent(LentBytes),
    /// In a GPU's.
    Device(Arc<DeviceMemory>),
}

impl Holding<'_> {
    /// How many there are.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Lent(memory) => memory.bytes(),
            Self::Device(memory) => memory.bytes(),
        }
    }

    /// Copies those from `from` on into `target`.
    fn copy(&self, from: usize, target: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(bytes) => target.copy_from_slice(&bytes[from..from + target.len()]),
            Self::Lent(memory) => memory.copy_to(from, target),
            Self::Device(memory) => memory.read(from, target)?,
        }
        Ok(())
    }
}

impl Saver {
    /// A saver that takes the straightest route.
    pub fn new(executor: Arc<Executor>) -> Self {
        Self {
            executor,
            choice: Choice::Auto,
            progress: Arc::default(),
        }
    }

    /// Writes tensors of a region to a file.
    pub fn save(
        &self,
        at: impl Into<Location>,
        region: &Arc<Region>,
        tensors: &[Placed],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Receipt> {
        let target = at.into();
        let is_outside = |t: &&Placed| {
            t.at.checked_add(t.bytes)
                .is_none_or(|end| end > region.bytes())
        };
        if let Some(outside) = tensors.iter().find(is_outside) {
            let message = format!("tensor {} is not inside the region", quoted(&outside.name));
            return Err(target.error(Kind::Invalid, "write", message));
        }
        let entries: Vec<_> = tensors
            .iter()
            .map(|t| Entry::new(&t.name, t.dtype, &t.shape, t.bytes))
            .collect();
        let outline = Outline::new(&target.describe(), &entries, metadata)?;
        let draft = begin(&target, &outline, None)?;
        let at = |number: usize| tensors[number].at;
        let ticket = self.write(region, &target, &*draft, moves(&outline, at))?;
        let receipt = ticket.wait()?;
        target.store.commit(vec![draft])?;
        Ok(receipt)
    }

    /// Writes tensors in the program's own memory to a file: those of a GPU by its lanes, others through a window of some
    /// megabytes.
    pub fn save_held(
        &self,
        at: impl Into<Location>,
        tensors: &[Held<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Receipt> {
        let target = at.into();
        let entries: Vec<_> = tensors
            .iter()
            .map(|t| Entry::new(t.name, t.dtype, &t.shape, t.bytes.bytes() as u64))
            .collect();
        let outline = Outline::new(&target.describe(), &entries, metadata)?;
        let draft = begin(&target, &outline, None)?;
        if let Some(whole) = on_one_gpu(&outline, tensors)? {
            let data = outline.data();
            let all = Move {
                object: 0,
                extent: data,
                at: 0,
            };
            let (objects, ask) = self.asked(&target, &*draft);
            let ticket = self
                .executor
                .write_scattered(&whole, objects, vec![all], ask)?;
            let receipt = ticket.wait()?;
            target.store.commit(vec![draft])?;
            return Ok(receipt);
        }
        let mut region = Arc::new(Region::host(WINDOW_BYTES.min(outline.data().bytes))?);
        let mut books = Books::default();
        for window in windows(outline.data()) {
            let memory = Arc::get_mut(&mut region).expect("the transfer before it is over");
            fill(memory.as_mut_slice(), &outline, window, tensors)?;
            let ticket = self.write(&region, &target, &*draft, vec![window.into()])?;
            ticket.enter(&mut books)?;
        }
        let receipt = books.close();
        target.store.commit(vec![draft])?;
        Ok(receipt)
    }

    /// Writes parts of `region` to an object in the making.
    pub(crate) fn write(
        &self,
        region: &Arc<Region>,
        target: &Location,
        draft: &dyn Draft,
        moves: Vec<Move>,
    ) -> Result<Ticket> {
        let (objects, ask) = self.asked(target, draft);
        self.executor.write(region, objects, moves, ask)
    }

    /// An object in the making, and how it is to be written.
    fn asked(&self, target: &Location, draft: &dyn Draft) -> (Objects, Ask) {
        let objects = Objects::new(Arc::clone(&target.store), vec![draft.handle()]);
        (objects, Ask::new(self.choice, &self.progress))
    }
}

/// The memory of tensors that are all on one GPU, in the order of the file; `None` where they are not, or have no bytes.
fn on_one_gpu(outline: &Outline, tensors: &[Held<'_>]) -> Result<Option<Arc<Scattered>>> {
    let data = outline.data();
    let mut parts: Vec<Part> = Vec::new();
    for &(number, extent) in outline.places.iter().filter(|(_, e)| !e.is_empty()) {
        let Holding::Device(memory) = &tensors[number].bytes else {
            return Ok(None);
        };
        let region = Region::of_device(Arc::clone(memory));
        if parts
            .first()
            .is_some_and(|p| p.region.place() != region.place())
        {
            return Ok(None);
        }
        parts.push(Part {
            from: extent.offset - data.offset,
            at: 0,
            region: Arc::new(region),
        });
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let count = parts.len();
    let whole = Scattered::new(parts, data.bytes)?;
    whole.open(count);
    Ok(Some(Arc::new(whole)))
}

/// Begins an object: room for all of it, and its header. With the permissions of `replaced` where it takes the place of
/// that under another name.
pub(crate) fn begin(
    target: &Location,
    outline: &Outline,
    replaced: Option<&OsStr>,
) -> Result<Box<dyn Draft>> {
    // Best effort: a folder that is not there is told of below.
    let _ = target
        .parent()
        .below(Missing::Refuse)
        .map(|folder| folder.sweep());
    let like = replaced.map_or(Like::Replaced, Like::InsteadOf);
    let draft = target.create(outline.bytes, &like)?;
    draft.write_all_at(0, &outline.header)?;
    Ok(draft)
}

/// Parts of a file that are written one after the other. There is always one, if only to give a file
/// without data its length.
pub(crate) fn windows(data: Extent) -> impl Iterator<Item = Extent> {
    let count = data.bytes.div_ceil(WINDOW_BYTES).max(1);
    (0..count).map(move |number| {
        let start = data.offset + number * WINDOW_BYTES;
        Extent::between(start, data.end().min(start + WINDOW_BYTES))
    })
}

/// Moves of tensors that are at `at` in a region; neighbours on both sides are one.
fn moves(outline: &Outline, at: impl Fn(usize) -> u64) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for &(number, extent) in &outline.places {
        let at = at(number);
        match moves.last_mut() {
            Some(last) if last.at + last.extent.bytes == at => last.extent.bytes += extent.bytes,
            _ => moves.push(Move {
                object: 0,
                extent,
                at,
            }),
        }
    }
    moves
}

/// Copies the bytes of a window of the file to the start of `memory`.
fn fill(memory: &mut [u8], outline: &Outline, window: Extent, tensors: &[Held<'_>]) -> Result<()> {
    let index = |bytes: u64| usize::try_from(bytes).expect("a window fits into memory");
    for (number, extent) in outline.within(window) {
        let part = extent.intersection(window);
        let from = index(part.offset - extent.offset);
        let to = index(part.offset - window.offset);
        let bytes = index(part.bytes);
        let target = &mut memory[to..to + bytes];
        tensors[number].bytes.copy(from, target)?;
    }
    Ok(())
}
