//! Where each tensor goes in one region.
//!
//! Tensors that follow each other in a file follow each other in memory: two hundred thousand small
//! ones are then one move, and memory is as full as the file. A chain of such neighbours breaks only
//! where a tensor would be out of line for its dtype. What is large begins on 256 bytes, as CUDA's
//! own allocator has it; or, where DMA may go straight into the region, as far into a page as it is
//! in the file, since only then can it.

use straightway_core::{Alignment, Extent, Move};

use super::{Dtype, Model, Name, Selection, Shape};

/// From this size on, a chain of tensors begins on [`LARGE_ALIGN_BYTES`] or in step with the file:
/// the gap that this leaves, at most a page, is 4 in 1000 of it.
pub const LARGE_BYTES: u64 = 1 << 20;

/// What a large tensor is aligned to.
pub const LARGE_ALIGN_BYTES: u64 = 256;

/// What decides where in a page a large tensor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing: it begins on [`LARGE_ALIGN_BYTES`].
    Free,
    /// The file: what DMA brings page by page lands page by page.
    OfFile,
}

/// A tensor, or the part of one that was selected, in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is called.
    pub name: Name,
    /// What its elements are.
    pub dtype: Dtype,
    /// How long it is along each dimension; rows follow each other.
    pub shape: Shape,
    /// Where in the region it begins.
    pub at: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Where each tensor of a selection goes, and the moves that bring it there.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The tensors, in the order of the selection.
    pub tensors: Vec<Placed>,
    /// What goes where: objects are the model's files.
    pub moves: Vec<Move>,
    /// How long the region has to be.
    pub bytes: u64,
}

impl Layout {
    /// Places what is selected of a model.
    pub fn new(model: &Model, selection: &Selection, phase: Phase) -> Self {
        let mut layout = Self {
            tensors: Vec::with_capacity(selection.picks().len()),
            ..Self::default()
        };
        let mut chain = Chain::default();
        for pick in selection.picks() {
            let tensor = pick.of(model);
            let mut extents = pick.extents(tensor);
            let first = extents
                .next()
                .unwrap_or(Extent::new(tensor.extent.offset, 0));
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
                // Counted from the start of its chain until that has its place.
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

    /// Gives a chain its place.
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

    /// Gathers the runs of one tensor.
    fn scatter(
        &mut self,
        file: u32,
        runs: impl Iterator<Item = Extent>,
        align_bytes: u64,
        placed: &mut Placed,
    ) {
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

/// What so many bytes are aligned to, where their dtype asks for `align_bytes`.
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
    /// Whether it is in line for its dtype where it keeps its place in a page.
    fn is_in_step(self) -> bool {
        self.phase == Phase::OfFile && self.extent.offset.is_multiple_of(self.align_bytes)
    }
}

/// Neighbours in a file that stay neighbours in memory.
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// The first of its tensors; none before it has any.
    first: Option<usize>,
    file: u32,
    extent: Extent,
    align_bytes: u64,
    /// Whether it is aligned by keeping its place in a page, rather than by its own start.
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

    /// Adds a tensor where it follows on and would be in line; answers whether it does.
    fn take(&mut self, link: Link) -> bool {
        let follows = self.first.is_some()
            && (self.file, self.extent.end()) == (link.file, link.extent.offset);
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

    /// The first offset from `free` on that suits all its tensors.
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
