//! The place of each tensor in one region.
//!
//! Tensors that are adjacent in a file are adjacent in memory: 200,000 small ones are then one move, and there are no
//! gaps. A chain of neighbours breaks only where a tensor would not be aligned for its dtype. A large chain begins on
//! 256 bytes, as with CUDA's own allocator. If DMA may go straight into the region, it begins at the same offset in a
//! page as in the file, because DMA needs that.

use straightway_core::{Alignment, Extent, Move};

use super::{Dtype, Model, Selection, Shape, TensorName};

/// From this size on, a chain of tensors begins on [`LARGE_ALIGN_BYTES`] or at the file's offset in a page. The gap
/// before it, at most a page, is 0.4 % of its size.
pub const LARGE_BYTES: u64 = 1 << 20;

/// The alignment of a large tensor.
pub const LARGE_ALIGN_BYTES: u64 = 256;

/// The rule for the offset in a page at which a large tensor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It begins on [`LARGE_ALIGN_BYTES`].
    Free,
    /// It has the same offset in a page as in the file, so that DMA can transfer whole pages.
    OfFile,
}

/// A tensor, or the selected part of one, in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub name: TensorName,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its lengths along each dimension, in row-major order.
    pub shape: Shape,
    /// Its offset in the region.
    pub at: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The place of each tensor of a selection, and the moves that fill it.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The tensors, in the order of the selection.
    pub tensors: Vec<Placed>,
    /// The moves. Their objects are the model's files.
    pub moves: Vec<Move>,
    /// The required length of the region.
    pub bytes: u64,
}

impl Layout {
    /// Places the selected tensors of a model.
    pub fn new(model: &Model, selection: &Selection, phase: Phase) -> Self {
        let mut layout = Self {
            tensors: Vec::with_capacity(selection.picks().len()),
            ..Self::default()
        };
        let mut chain = Chain::default();
        for pick in selection.picks() {
            let tensor = pick.of(model);
            let mut extents = pick.extents(tensor);
            let first = extents.next().unwrap_or(Extent::new(tensor.extent.offset, 0));
            let second = extents.next();
            let align_bytes = tensor.dtype.align_bytes();
            let mut placed = Placed {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: pick.shape(tensor).clone(),
                at: 0,
                bytes: first.bytes,
            };
            let Some(second) = second else {
                let link = Link {
                    file: tensor.file,
                    extent: first,
                    align_bytes,
                    phase,
                };
                if !chain.take(link) {
                    layout.close(&chain);
                    chain = Chain::new(link, layout.tensors.len());
                }
                // Relative to the start of its chain, until the chain is placed.
                placed.at = first.offset - chain.extent.offset;
                layout.tensors.push(placed);
                continue;
            };
            layout.close(&chain);
            let runs = [first, second].into_iter().chain(extents);
            layout.scatter(tensor.file, runs, align_bytes, &mut placed);
            layout.tensors.push(placed);
            chain = Chain::default();
        }
        layout.close(&chain);
        layout
    }

    /// Places a chain at the end of the region.
    fn close(&mut self, chain: &Chain) {
        let Some(first) = chain.first else { return };
        let at = chain.place(self.bytes);
        for tensor in &mut self.tensors[first..] {
            tensor.at += at;
        }
        self.moves.push(Move {
            object: chain.file,
            extent: chain.extent,
            at,
        });
        self.bytes = at + chain.extent.bytes;
    }

    /// Places a tensor that has several runs in its file.
    fn scatter(&mut self, file: u32, runs: impl Iterator<Item = Extent>, align_bytes: u64, placed: &mut Placed) {
        let first = self.moves.len();
        let mut bytes = 0;
        for extent in runs {
            self.moves.push(Move {
                object: file,
                extent,
                at: bytes,
            });
            bytes += extent.bytes;
        }
        placed.at = self.bytes.next_multiple_of(aligned(bytes, align_bytes));
        placed.bytes = bytes;
        for m in &mut self.moves[first..] {
            m.at += placed.at;
        }
        self.bytes = placed.at + bytes;
    }
}

/// The alignment of `bytes` bytes of a dtype that is aligned to `align_bytes`.
fn aligned(bytes: u64, align_bytes: u64) -> u64 {
    match bytes {
        LARGE_BYTES.. => LARGE_ALIGN_BYTES,
        _ => align_bytes,
    }
}

/// A tensor that is one run of bytes in its file.
#[derive(Clone, Copy, Debug)]
struct Link {
    file: u32,
    extent: Extent,
    align_bytes: u64,
    phase: Phase,
}

impl Link {
    /// Whether it is aligned for its dtype at its offset in the file.
    fn is_in_step(self) -> bool {
        self.phase == Phase::OfFile && self.extent.offset.is_multiple_of(self.align_bytes)
    }
}

/// Tensors that are adjacent in a file and in memory.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// The number of its first tensor; `None` while it is empty.
    first: Option<usize>,
    file: u32,
    extent: Extent,
    align_bytes: u64,
    /// Whether it keeps its offset in a page, instead of being aligned by its own start.
    is_in_step: bool,
}

impl Chain {
    fn new(link: Link, first: usize) -> Self {
        Self {
            first: Some(first),
            file: link.file,
            extent: link.extent,
            align_bytes: link.align_bytes,
            is_in_step: link.is_in_step(),
        }
    }

    /// Adds a tensor if it is adjacent and stays aligned. Returns whether it was added.
    fn take(&mut self, link: Link) -> bool {
        let follows = self.first.is_some() && (self.file, self.extent.end()) == (link.file, link.extent.offset);
        if !follows || self.is_in_step != link.is_in_step() {
            return false;
        }
        let from_start = link.extent.offset - self.extent.offset;
        let wanted = aligned(link.extent.bytes, link.align_bytes);
        if !self.is_in_step && !from_start.is_multiple_of(wanted) {
            return false;
        }
        self.extent.bytes += link.extent.bytes;
        self.align_bytes = self.align_bytes.max(link.align_bytes);
        true
    }

    /// The first offset from `free` on at which all its tensors are aligned.
    fn place(&self, free: u64) -> u64 {
        if !self.is_in_step {
            return free.next_multiple_of(aligned(self.extent.bytes, self.align_bytes));
        }
        let step = match self.extent.bytes {
            LARGE_BYTES.. => Alignment::PAGE_BYTES,
            _ => self.align_bytes,
        };
        let phase = self.extent.offset % step;
        let at = free - free % step + phase;
        if at < free { at + step } else { at }
    }
}
