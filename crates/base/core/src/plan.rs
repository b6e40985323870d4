//! A plan: a transfer that is cut into chunks for the lanes.
//!
//! Three rules shape a plan:
//!
//! - A drive's cost is per I/O. Staged extents are therefore grouped by their offset in the *object*:
//!   neighbours with a small gap share one aligned read, and each piece is copied out of it.
//! - The page cache's cost is per byte. Resident extents are therefore grouped by their offset in the
//!   *region*: one chunk fills one contiguous run of memory.
//! - Aligned bytes take the direct route. A tensor can start at any offset, so nearly every extent has an
//!   unaligned head and tail: these are staged inside their aligned superset, the interior is not.
//!
//! Planning is pure, and linear except for sorting a request that is not in order.

use std::{borrow::Cow, collections::BTreeMap};

use crate::{
    error::{Error, ErrorKind, Result},
    extent::{Extent, up},
    place::Place,
    policy::Policy,
    route::{Choice, Reason, Route},
    survey::{Alignment, Survey},
    transfer::{Direction, Move, Transfer},
};

mod demand;
mod layout;
mod portion;

use layout::Layout;
use portion::Portions;
pub use portion::{Delivery, Portion};

/// Part of a chunk: bytes of the object, and their offset on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bytes of the object.
    pub extent: Extent,
    /// The offset on the other side.
    pub at: u64,
}

/// A part of a transfer that a lane moves as a unit.
///
/// A direct chunk has one piece, which is its whole extent. A staged chunk reads (or writes) its whole
/// extent; its pieces are copied out of it. A buffered chunk has pieces that are contiguous on the other
/// side; its extent spans them and is not itself read. For `Across`, a buffered leg moves the pieces, and
/// any other leg moves the extent.
///
/// Chunks that write to a drive write whole blocks, with zeros between their pieces. No two of them
/// share a block of an object, so they can be written in any order. For `Out` to a file they write only to
/// pages with bytes of the transfer: the other pages may belong to another transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The index of the object in the transfer.
    pub object: u32,
    /// Its route.
    pub route: Route,
    /// The reason for the route.
    pub reason: Reason,
    /// For `Across`: the route of the write leg, and the reason.
    pub onward: Option<(Route, Reason)>,
    /// The range of the I/O.
    pub extent: Extent,
    first_piece: u32,
    pieces: u32,
}

/// A transfer cut into chunks. Every byte is in exactly one of them.
#[derive(Clone, Debug)]
pub struct Plan {
    chunks: Vec<Chunk>,
    pieces: Vec<Piece>,
    drive_chunks: usize,
    portions: Portions,
    bytes: u64,
}

impl Plan {
    /// Plans `transfer`, with one survey for each of its objects.
    ///
    /// For `Across`, `onward` has one survey for each target object; otherwise it is empty.
    pub fn new(transfer: &Transfer, surveys: &[Survey], onward: &[Survey], policy: &Policy) -> Result<Self> {
        assert_eq!(surveys.len(), transfer.objects().len(), "one survey for each object");
        policy.check()?;
        let mut planner = Planner {
            transfer,
            surveys,
            onward,
            policy,
            run: Extent::default(),
            layout: Layout::new(policy),
        };
        planner.check_demand()?;
        let key = |m: &Move| (m.object, m.extent.offset);
        let mut moves = Cow::Borrowed(transfer.moves());
        if !moves.is_sorted_by_key(key) {
            moves.to_mut().sort_unstable_by_key(key);
        }
        let follows = |a: &Move, b: &Move| a.object == b.object && a.extent.end() == b.extent.offset;
        for run in moves.chunk_by(follows) {
            let end = run.last().map_or(0, |last| last.extent.end());
            planner.run = Extent::between(run[0].extent.offset, end);
            run.iter().try_for_each(|m| planner.lay(*m))?;
        }
        let (chunks, pieces, drive_chunks) = planner.layout.finish();
        if transfer.direction() != Direction::In {
            let apart = |a: &Chunk, b: &Chunk| {
                a.object < b.object || (a.object == b.object && a.extent.end() <= b.extent.offset)
            };
            assert!(
                chunks[..drive_chunks].is_sorted_by(apart),
                "no block is written by two chunks"
            );
        }
        Ok(Self {
            chunks,
            pieces,
            drive_chunks,
            portions: Portions::default(),
            bytes: transfer.bytes(),
        })
    }

    /// The chunks that are read from or written to the drive, in the order of their offsets.
    pub fn drive(&self) -> &[Chunk] {
        &self.chunks[..self.drive_chunks]
    }

    /// The chunks that go through the page cache, in the order of the other side.
    pub fn cached(&self) -> &[Chunk] {
        &self.chunks[self.checked().len().max(self.drive_chunks)..]
    }

    /// All chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The pieces of a chunk.
    pub fn pieces(&self, chunk: &Chunk) -> &[Piece] {
        let first = chunk.first_piece as usize;
        &self.pieces[first..first + chunk.pieces as usize]
    }

    /// The number of bytes that the I/Os of a chunk move. A buffered chunk has an I/O for each piece: what is between
    /// them is not moved.
    pub fn io_bytes(&self, chunk: &Chunk) -> u64 {
        match chunk.route {
            Route::Buffered if chunk.pieces > 0 => self.pieces(chunk).iter().map(|p| p.extent.bytes).sum(),
            _ => chunk.extent.bytes,
        }
    }

    /// Whether most of the drive's chunks are staged.
    pub fn is_staged(&self) -> bool {
        let staged = |c: &&Chunk| c.route == Route::Staged;
        self.drive().iter().filter(staged).count() > self.drive_chunks / 2
    }

    /// Whether most of the checked chunks come from the drive.
    pub fn is_checked_from_drive(&self) -> bool {
        let from_drive = |c: &&Chunk| c.route != Route::Buffered;
        let checked = self.checked();
        checked.iter().filter(from_drive).count() > checked.len() / 2
    }

    /// The number of bytes for each route and reason; for `Across`, on the read leg.
    pub fn bytes_by_route(&self) -> BTreeMap<(Route, Reason), u64> {
        let mut sums = BTreeMap::new();
        for chunk in &self.chunks {
            let bytes: u64 = self.pieces(chunk).iter().map(|p| p.extent.bytes).sum();
            let route = chunk.route.reported(chunk.reason);
            *sums.entry((route, chunk.reason)).or_default() += bytes;
        }
        sums
    }

    /// The number of bytes that the transfer moves.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory that the plan itself takes, which is linear in the number of extents.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.pieces.capacity() * size_of::<Piece>()
    }
}

/// The sector size of a drive.
const SECTOR_BYTES: u64 = 512;

/// Neighbours that are received from a socket share a request if the gap between them is at most this. A request costs
/// a round trip, in which a connection receives about as much (90 MB/s for 10 ms).
const SOCKET_GAP_BYTES: u64 = 1 << 20;

/// The usual length of a request that is received from a socket directly into the region: the part size that S3's guide
/// recommends for uploads. A transfer has at least `REQUESTS_MIN` requests before they become that long, so that all
/// connections have work.
const REQUEST_BYTES: u64 = 8 << 20;
const REQUESTS_MIN: u64 = 32;

/// The minimum number of requests before they become longer than `REQUEST_BYTES`.
const LONG_REQUESTS_MIN: u64 = 64;

/// The state of planning one transfer.
struct Planner<'a> {
    transfer: &'a Transfer,
    surveys: &'a [Survey],
    onward: &'a [Survey],
    policy: &'a Policy,
    /// The bytes of the object that the current move and its adjacent moves cover without a gap.
    run: Extent,
    layout: Layout,
}

impl Planner<'_> {
    /// The alignment that O_DIRECT requires, if it is usable and a block fits into a chunk.
    fn direct(&self, survey: &Survey) -> Result<Alignment, Reason> {
        match survey.usable()? {
            alignment if alignment.block_bytes() <= self.policy.chunk_bytes => Ok(alignment),
            _ => Err(Reason::NoDirectIo),
        }
    }

    /// The block size of an object's chunks. For `Across`, the target's blocks count too.
    fn block_bytes(&self, object: u32) -> u64 {
        [self.surveys, self.onward]
            .into_iter()
            .filter_map(|surveys| self.direct(surveys.get(object as usize)?).ok())
            .map(Alignment::block_bytes)
            .fold(Alignment::PAGE_BYTES, u64::max)
    }

    /// Splits a move at changes of residency and lays out each run.
    fn lay(&mut self, m: Move) -> Result<()> {
        let survey = &self.surveys[m.object as usize];
        let block_bytes = self.block_bytes(m.object);
        let mut rest = m;
        while !rest.extent.is_empty() {
            let (run, resident) = match self.policy.choice {
                Choice::Auto if self.transfer.direction() != Direction::Out => {
                    survey.first_run(rest.extent, block_bytes)
                }
                _ => (rest.extent, false),
            };
            let (run, is_hole) = match self.transfer.direction() {
                Direction::In if survey.device_direct => survey.first_hole(run, block_bytes),
                _ => (run, false),
            };
            let part = Move { extent: run, ..rest };
            let route = match (self.policy.choice, self.direct(survey)) {
                (Choice::Only(Route::Buffered), _) => Err(Reason::Demanded),
                (Choice::Auto, Ok(_)) if resident && !survey.device_direct => Err(Reason::Resident),
                (_, direct) => direct,
            };
            match (self.transfer.direction(), route) {
                (Direction::Across, route) => self.lay_across(part, route),
                (_, Ok(_)) if is_hole => self.lay_hole(part, block_bytes),
                (Direction::Out, Ok(alignment)) => self.lay_written(part, alignment)?,
                (Direction::In, Ok(alignment)) => self.lay_direct(part, alignment)?,
                (_, Err(reason)) => self.layout.buffer(part, reason),
            }
            rest.extent = Extent::between(run.end(), rest.extent.end());
            rest.at += run.bytes;
        }
        Ok(())
    }

    /// Stages a hole in separate chunks, whatever the route: the CPU writes its zeros.
    fn lay_hole(&mut self, m: Move, block_bytes: u64) {
        self.layout.close();
        self.layout.stage(m.object, m.extent, m.at, Reason::Hole, block_bytes);
        self.layout.close();
    }

    /// Lays out a write. If blocks are longer than a page, only blocks that a run of adjacent moves fills go to the
    /// drive, and the edges of the run go through the page cache. To write the whole block of an edge would zero the
    /// rest of it, which another transfer may have written: the header of a file ends on a page, not on such a block.
    ///
    /// A write that keeps its edges does the same with pages. Blocks shorter than a page do not suffice: a page must not
    /// be written through the page cache and around it at the same time.
    fn lay_written(&mut self, m: Move, alignment: Alignment) -> Result<()> {
        let block_bytes = alignment.block_bytes().max(Alignment::PAGE_BYTES);
        let has_page_cache = self.surveys[m.object as usize].socket.is_none();
        let fills_pages = block_bytes <= Alignment::PAGE_BYTES && !self.policy.keeps_edges;
        if fills_pages || !has_page_cache {
            return self.lay_direct(m, alignment);
        }
        let whole = self.run.interior(block_bytes).intersection(m.extent);
        if whole.is_empty() {
            self.layout.buffer(m, Reason::RaggedEdge);
            return Ok(());
        }
        let part = |extent: Extent| Move {
            extent,
            at: m.at + (extent.offset - m.extent.offset),
            ..m
        };
        let head = Extent::between(m.extent.offset, whole.offset);
        let tail = Extent::between(whole.end(), m.extent.end());
        for edge in [head, tail].into_iter().filter(|edge| !edge.is_empty()) {
            self.layout.buffer(part(edge), Reason::RaggedEdge);
        }
        self.lay_direct(part(whole), alignment)
    }

    /// Lays out the aligned interior as direct chunks and stages the edges.
    fn lay_direct(&mut self, m: Move, alignment: Alignment) -> Result<()> {
        let socket = self.surveys[m.object as usize].socket;
        self.choose_cuts(m.object);
        let block_bytes = alignment.block_bytes();
        let interior = m.extent.interior(block_bytes);
        // Small neighbours share a read through the ring, unless the user demands DMA or the region is
        // device memory, to which the ring is a detour.
        let on_device = self.policy.place != Place::Host;
        let demanded = on_device || self.policy.choice == Choice::Only(Route::Direct);
        let worthwhile = !interior.is_empty()
            && (interior.bytes >= self.policy.direct_bytes_min || (demanded && interior == m.extent));
        let at = m.at + (interior.offset.wrapping_sub(m.extent.offset));
        let why_not = match self.policy.place {
            _ if self.policy.choice == Choice::Only(Route::Staged) => Some(Reason::Demanded),
            Place::Gpu(_) | Place::P2p(_) if !self.surveys[m.object as usize].device_direct => Some(Reason::NotProven),
            Place::Host if self.policy.ring_first && self.policy.choice == Choice::Auto => Some(Reason::RingFaster),
            _ if !worthwhile => Some(Reason::Small),
            _ if !self.is_memory_aligned(at, alignment) => Some(Reason::MemoryMisaligned),
            _ => None,
        };
        if why_not == Some(Reason::MemoryMisaligned) && self.policy.choice == Choice::Only(Route::Direct) {
            let name = &self.transfer.objects()[m.object as usize].name;
            let message = format!(
                "its byte {} would be at a memory address that is not a multiple of {}",
                interior.offset,
                self.memory_bytes(alignment)
            );
            return Err(Error::new(ErrorKind::Unsupported, "go direct with", name, message)
                .with_hint("align the region to 4 KiB, or use ⟦route=auto⟧"));
        }
        if let Some(reason) = why_not {
            let reason = socket.unwrap_or(reason);
            self.layout.stage(m.object, m.extent, m.at, reason, block_bytes);
            return Ok(());
        }
        let head = Extent::between(m.extent.offset, interior.offset);
        let tail = Extent::between(interior.end(), m.extent.end());
        let edge = socket.unwrap_or(Reason::RaggedEdge);
        self.layout.stage(m.object, head, m.at, edge, block_bytes);
        let reason = socket.unwrap_or(Reason::Aligned);
        self.layout.direct(m.object, interior, at, reason, block_bytes);
        self.layout
            .stage(m.object, tail, at + interior.bytes, edge, block_bytes);
        Ok(())
    }

    /// Sets how the next moves of an object are cut into chunks.
    fn choose_cuts(&mut self, object: u32) {
        let Survey { socket, part_bytes, .. } = self.surveys[object as usize];
        let (chunk_bytes, gap_bytes) = (self.policy.chunk_bytes, self.policy.gap_bytes);
        self.layout.keep_to_parts(part_bytes);
        // A network block device is read like a drive: many small commands cost less than unneeded bytes.
        let is_block = self.surveys[object as usize].is_block();
        match (socket, self.transfer.direction()) {
            // A write over a gap would zero what another transfer may have written there.
            (_, Direction::Out) if is_block || socket.is_none() => {
                self.layout.cut_by(chunk_bytes, 0);
            }
            (Some(_), _) if is_block => self.layout.cut_by(chunk_bytes, gap_bytes),
            (Some(_), Direction::Out) => {
                let most = part_bytes.map_or(chunk_bytes, |part| part.max(chunk_bytes));
                self.layout.cut_by(most.min(Policy::CHUNK_BYTES_MAX), gap_bytes);
            }
            (Some(_), _) => {
                let most = self.request_bytes();
                // A request that does not begin on a part of the upload makes the server read one more part: a fifth of
                // SeaweedFS's CPU time (bench/results/s3-requests.txt).
                let is_multiple = most.is_multiple_of(REQUEST_BYTES);
                self.layout.keep_to_parts(is_multiple.then_some(most));
                self.layout.cut_by(most, gap_bytes.max(SOCKET_GAP_BYTES));
            }
            (None, _) => self.layout.cut_by(chunk_bytes, gap_bytes),
        }
    }

    /// The longest request that is received from a socket directly into the region. It needs no slot.
    fn request_bytes(&self) -> u64 {
        let bytes = self.transfer.bytes();
        let share = up(bytes / REQUESTS_MIN, SOCKET_GAP_BYTES).min(REQUEST_BYTES);
        let mut most = share.max(self.policy.chunk_bytes);
        while most * 2 <= self.policy.request_bytes_max && most * 2 <= bytes / LONG_REQUESTS_MIN {
            most *= 2;
        }
        most
    }

    /// Whether the memory address at region offset `at` is aligned for DMA.
    fn is_memory_aligned(&self, at: u64, alignment: Alignment) -> bool {
        (self.policy.region_address + at).is_multiple_of(self.memory_bytes(alignment))
    }

    /// The alignment of memory addresses for DMA.
    fn memory_bytes(&self, alignment: Alignment) -> u64 {
        match self.policy.place {
            Place::Host => alignment.memory_bytes,
            // cuFile silently stages transfers that are not aligned to 4 KiB through its own cache.
            Place::Gpu(_) => alignment.memory_bytes.max(Alignment::PAGE_BYTES),
            // Drives accept less, but QEMU's lose bytes if the part in the first page is not whole sectors.
            Place::P2p(_) => alignment.memory_bytes.max(SECTOR_BYTES),
        }
    }

    /// Lays out a copy between objects, through slots of the ring.
    fn lay_across(&mut self, m: Move, route: Result<Alignment, Reason>) {
        let demanded = self.policy.choice == Choice::Only(Route::Staged);
        let socket = self.surveys[m.object as usize].socket;
        let in_bar = matches!(self.policy.place, Place::P2p(_));
        let by_drive = |whole: bool| match whole {
            _ if demanded => (Route::Staged, Reason::Demanded),
            // With a ring in a BAR the drives move whole blocks, and no payload byte is copied.
            _ if in_bar => (Route::Direct, Reason::Aligned),
            true => (Route::Direct, Reason::Aligned),
            false => (Route::Staged, Reason::RaggedEdge),
        };
        let no_direct = match self.policy.choice {
            Choice::Only(Route::Buffered) => Some(Reason::Demanded),
            _ => self.direct(&self.onward[m.object as usize]).err(),
        };
        let block_bytes = self.block_bytes(m.object);
        let target = &self.onward[m.object as usize];
        self.layout.keep_to_parts(target.part_bytes);
        self.layout.relay(m, block_bytes, |whole| {
            let buffered = |reason| (Route::Buffered, reason);
            (
                match (route, socket) {
                    (Ok(_), Some(reason)) => (Route::Staged, reason),
                    (Ok(_), None) => by_drive(whole),
                    (Err(reason), _) => buffered(reason),
                },
                match (no_direct, target.socket) {
                    (None, Some(reason)) => (Route::Staged, reason),
                    (None, None) => by_drive(whole),
                    (Some(reason), _) => buffered(reason),
                },
            )
        });
    }
}

#[cfg(test)]
mod tests;
