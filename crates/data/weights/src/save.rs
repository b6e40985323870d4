//! Saves tensors, from a region or from the caller's memory, to a file that appears once it is complete.

use std::{collections::BTreeMap, ffi::OsStr, sync::Arc};

use straightway_core::{Choice, ErrorKind, Extent, Move, Receipt, Result};
use straightway_io::{
    Ask, Books, Executor, Objects, Progress, Region, Scattered, ScatteredPart, Ticket,
    store::{CommitMode, Draft, Like, Location, Missing, Sweep},
};
use straightway_sys::{LentBytes, cuda::DeviceMemory};

use super::{
    Dtype, Placed, Shape,
    outline::{Outline, TensorEntry},
    tensor::quoted,
};

/// Bytes gathered in memory before each write: large enough that the sync after it costs little, and small compared to
/// any model.
pub(crate) const WINDOW_BYTES: u64 = 64 << 20;

/// Writes tensors to safetensors files.
#[derive(Clone, Debug)]
pub struct FileSaver {
    /// The executor that runs the transfers.
    pub executor: Arc<Executor>,
    /// The route to use.
    pub choice: Choice,
    /// The progress of its writes.
    pub progress: Arc<Progress>,
}

/// A tensor in the caller's memory.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its lengths along each dimension, in row-major order.
    pub shape: Shape,
    /// Its bytes, little-endian.
    pub bytes: Holding<'a>,
}

/// The memory that holds a tensor's bytes.
#[derive(Clone, Debug)]
pub enum Holding<'a> {
    /// Host memory that does not change during the save.
    Host(&'a [u8]),
    /// Host memory that other threads may write to during the save. The saved bytes are then a mixture of old and new.
    Lent(LentBytes),
    /// GPU memory.
    Device(Arc<DeviceMemory>),
}

impl Holding<'_> {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Lent(memory) => memory.bytes(),
            Self::Device(memory) => memory.bytes(),
        }
    }

    /// Copies the bytes from `from` on into `target`.
    fn copy(&self, from: usize, target: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(bytes) => target.copy_from_slice(&bytes[from..from + target.len()]),
            Self::Lent(memory) => memory.copy_to(from, target),
            Self::Device(memory) => memory.read(from, target)?,
        }
        Ok(())
    }
}

impl FileSaver {
    /// A saver that chooses the route by itself.
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
        let is_outside = |t: &&Placed| t.at.checked_add(t.bytes).is_none_or(|end| end > region.bytes());
        if let Some(outside) = tensors.iter().find(is_outside) {
            let message = format!("tensor {} is not inside the region", quoted(&outside.name));
            return Err(target.error(ErrorKind::Invalid, "write", message));
        }
        let entries: Vec<_> = tensors
            .iter()
            .map(|t| TensorEntry::new(&t.name, t.dtype, &t.shape, t.bytes))
            .collect();
        let outline = Outline::new(&target.describe(), &entries, metadata)?;
        let draft = begin(&target, &outline, None)?;
        let at = |number: usize| tensors[number].at;
        let ticket = self.write(region, &target, &*draft, moves(&outline, at))?;
        let receipt = ticket.wait()?;
        target.store.commit(vec![draft], CommitMode::InOrder)?;
        Ok(receipt)
    }

    /// Writes tensors in the caller's memory to a file. GPU lanes write tensors that are all on one GPU; others are
    /// copied through a window of some megabytes.
    pub fn save_held(
        &self,
        at: impl Into<Location>,
        tensors: &[Held<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Receipt> {
        let target = at.into();
        let entries: Vec<_> = tensors
            .iter()
            .map(|t| TensorEntry::new(t.name, t.dtype, &t.shape, t.bytes.bytes() as u64))
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
            let (objects, ask) = self.draft_and_options(&target, &*draft);
            let ticket = self.executor.write_scattered(&whole, objects, vec![all], ask)?;
            let receipt = ticket.wait()?;
            target.store.commit(vec![draft], CommitMode::InOrder)?;
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
        target.store.commit(vec![draft], CommitMode::InOrder)?;
        Ok(receipt)
    }

    /// Writes parts of `region` to a draft.
    pub(crate) fn write(
        &self,
        region: &Arc<Region>,
        target: &Location,
        draft: &dyn Draft,
        moves: Vec<Move>,
    ) -> Result<Ticket> {
        let (objects, ask) = self.draft_and_options(target, draft);
        self.executor.write(region, objects, moves, ask)
    }

    /// A draft as the target of a write, and the write's options.
    fn draft_and_options(&self, target: &Location, draft: &dyn Draft) -> (Objects, Ask) {
        let objects = Objects::new(Arc::clone(&target.store), vec![draft.handle()]);
        (objects, Ask::new(self.choice, &self.progress))
    }
}

/// The memory of tensors that are all on one GPU, in the order of the file; `None` if they are not, or have no bytes.
fn on_one_gpu(outline: &Outline, tensors: &[Held<'_>]) -> Result<Option<Arc<Scattered>>> {
    let data = outline.data();
    let mut parts: Vec<ScatteredPart> = Vec::new();
    for &(number, extent) in outline.places.iter().filter(|(_, e)| !e.is_empty()) {
        let Holding::Device(memory) = &tensors[number].bytes else {
            return Ok(None);
        };
        let region = Region::of_device(Arc::clone(memory));
        if parts.first().is_some_and(|p| p.region.place() != region.place()) {
            return Ok(None);
        }
        parts.push(ScatteredPart {
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

/// Creates a draft with space for the whole object, and writes its header. If it replaces `replaced` under another
/// name, it gets that object's permissions.
pub(crate) fn begin(target: &Location, outline: &Outline, replaced: Option<&OsStr>) -> Result<Box<dyn Draft>> {
    // Best effort: a missing folder is reported by `create` below.
    let folder = target.parent().below(Missing::Refuse);
    let _ = folder.and_then(|folder| folder.sweep(Sweep::Dead));
    let like = replaced.map_or(Like::Replaced, Like::InsteadOf);
    let draft = target.create(outline.bytes, &like)?;
    draft.write_all_at(0, &outline.header)?;
    Ok(draft)
}

/// The windows of a file, written one after the other. There is always at least one, so that a file without data gets
/// its length.
pub(crate) fn windows(data: Extent) -> impl Iterator<Item = Extent> {
    let count = data.bytes.div_ceil(WINDOW_BYTES).max(1);
    (0..count).map(move |number| {
        let start = data.offset + number * WINDOW_BYTES;
        Extent::between(start, data.end().min(start + WINDOW_BYTES))
    })
}

/// The moves of tensors that are at `at` in a region. Tensors that are adjacent in both the region and the file share a
/// move.
pub(crate) fn moves(outline: &Outline, at: impl Fn(usize) -> u64) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for &(number, extent) in &outline.places {
        let at = at(number);
        match moves.last_mut() {
            Some(last) if last.at + last.extent.bytes == at => last.extent.bytes += extent.bytes,
            _ => moves.push(Move { object: 0, extent, at }),
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
