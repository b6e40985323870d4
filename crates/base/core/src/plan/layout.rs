//! A plan under construction: chunks are appended, and the last staged chunk may still grow.

use super::{Chunk, Piece};
use crate::{
    extent::{Extent, down},
    policy::Policy,
    route::{Reason, Route},
    transfer::Move,
};

/// The chunks and pieces so far.
#[derive(Debug)]
pub(super) struct Layout {
    chunk_bytes: u64,
    /// The longest chunk that needs no slot.
    direct_chunk_bytes: u64,
    cached_chunk_bytes: u64,
    gap_bytes: u64,
    /// The part size, if chunks must not cross part boundaries.
    part_bytes: Option<u64>,
    chunks: Vec<Chunk>,
    pieces: Vec<Piece>,
    /// Whether the last chunk is staged and can take more pieces.
    open: bool,
    buffered: Vec<(u32, Reason, Piece)>,
}

impl Layout {
    pub(super) fn new(policy: &Policy) -> Self {
        Self {
            chunk_bytes: policy.chunk_bytes,
            direct_chunk_bytes: policy.chunk_bytes,
            cached_chunk_bytes: policy.cached_chunk_bytes,
            gap_bytes: policy.gap_bytes,
            part_bytes: None,
            chunks: Vec::new(),
            pieces: Vec::new(),
            open: false,
            buffered: Vec::new(),
        }
    }

    /// Sets how the next extents are cut. Direct ones are cut into chunks of at most `direct_chunk_bytes`. Staged
    /// neighbours share a chunk if the gap between them is at most `gap_bytes`.
    pub(super) fn cut_by(&mut self, direct_chunk_bytes: u64, gap_bytes: u64) {
        self.direct_chunk_bytes = direct_chunk_bytes;
        self.gap_bytes = gap_bytes;
    }

    /// Sets the part size of the next extents.
    pub(super) fn keep_to_parts(&mut self, part_bytes: Option<u64>) {
        self.part_bytes = part_bytes;
    }

    /// The largest end of a chunk of at most `chunk_bytes` that begins at `start`.
    fn limit(&self, start: u64, chunk_bytes: u64) -> u64 {
        let limit = start + chunk_bytes;
        match self.part_bytes {
            Some(part_bytes) => limit.min(down(start, part_bytes) + part_bytes),
            None => limit,
        }
    }

    /// Adds an aligned extent as direct chunks, split if it is longer than a chunk.
    pub(super) fn direct(&mut self, object: u32, extent: Extent, at: u64, reason: Reason, block_bytes: u64) {
        self.open = false;
        let chunk_bytes = down(self.direct_chunk_bytes, block_bytes);
        let (mut rest, mut at) = (extent, at);
        let last = self.chunks.last().map_or(0, |chunk| chunk.extent.offset);
        let limit = self.limit(last, chunk_bytes);
        if let (Some(chunk), Some(piece)) = (self.chunks.last_mut(), self.pieces.last_mut()) {
            let follows = chunk.route == Route::Direct
                && chunk.object == object
                && chunk.extent.end() == rest.offset
                && piece.at + piece.extent.bytes == at;
            if follows {
                let take = rest.bytes.min(limit - chunk.extent.end());
                chunk.extent.bytes += take;
                piece.extent.bytes += take;
                at += take;
                rest = Extent::between(rest.offset + take, rest.end());
            }
        }
        while !rest.is_empty() {
            let limit = self.limit(rest.offset, chunk_bytes);
            let part = Extent::between(rest.offset, rest.end().min(limit));
            self.push(object, (Route::Direct, reason), part);
            self.pieces.push(Piece { extent: part, at });
            at += part.bytes;
            rest = Extent::between(part.end(), rest.end());
        }
    }

    /// Stages an extent inside its aligned superset, together with close neighbours.
    ///
    /// A full chunk ends on a block boundary, where the next begins. No block is in two chunks, so they
    /// can be written in any order.
    pub(super) fn stage(&mut self, object: u32, extent: Extent, at: u64, reason: Reason, block_bytes: u64) {
        let chunk_bytes = down(self.chunk_bytes, block_bytes);
        let (mut rest, mut at) = (extent, at);
        while !rest.is_empty() {
            let block = down(rest.offset, block_bytes);
            if !self.reaches(object, block, chunk_bytes) {
                self.push(object, (Route::Staged, reason), Extent::new(block, 0));
                self.open = true;
            }
            let part = self.fitting(rest, chunk_bytes);
            self.append(Piece { extent: part, at }, block_bytes);
            at += part.bytes;
            rest = Extent::between(part.end(), rest.end());
        }
    }

    /// Closes the last chunk, so that extents with another reason are not added to it.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// Whether the open chunk can take a piece that begins in `block`.
    fn reaches(&self, object: u32, block: u64, chunk_bytes: u64) -> bool {
        self.open
            && self.chunks.last().is_some_and(|chunk| {
                chunk.object == object
                    && block >= chunk.extent.offset
                    && block <= chunk.extent.end() + self.gap_bytes
                    && block < self.limit(chunk.extent.offset, chunk_bytes)
            })
    }

    /// The part of `rest` that fits into the last chunk.
    fn fitting(&self, rest: Extent, chunk_bytes: u64) -> Extent {
        let chunk = self.chunks.last().expect("there is a chunk to add to");
        let limit = self.limit(chunk.extent.offset, chunk_bytes);
        Extent::between(rest.offset, rest.end().min(limit))
    }

    /// Adds a piece to the last chunk and extends the chunk to the piece's last block.
    fn append(&mut self, piece: Piece, block_bytes: u64) {
        let chunk = self.chunks.last_mut().expect("there is a chunk to add to");
        let end = piece.extent.superset(block_bytes).end();
        chunk.extent = Extent::between(chunk.extent.offset, end.max(chunk.extent.end()));
        chunk.pieces += u32::from(self.pieces.len() > chunk.first_piece as usize);
        self.pieces.push(piece);
    }

    /// Adds an extent that goes through the page cache. `finish` cuts these into chunks.
    pub(super) fn buffer(&mut self, m: Move, reason: Reason) {
        self.buffered.push((
            m.object,
            reason,
            Piece {
                extent: m.extent,
                at: m.at,
            },
        ));
    }

    /// Cuts a move between objects into chunks of whole blocks. `label` returns the routes of both legs; its argument
    /// says whether the chunk is one piece without padding.
    ///
    /// A chunk is written as a whole, with zeros between its pieces. A piece that begins in the last block of the
    /// previous chunk therefore joins that chunk. Otherwise each write would overwrite the other's bytes with zeros.
    pub(super) fn relay(
        &mut self,
        m: Move,
        block_bytes: u64,
        label: impl Fn(bool) -> ((Route, Reason), (Route, Reason)),
    ) {
        let chunk_bytes = down(self.chunk_bytes, block_bytes);
        let mut rest = m.extent;
        while !rest.is_empty() {
            let block = down(rest.offset, block_bytes);
            let shares = |chunk: &Chunk| chunk.object == m.object && block < chunk.extent.end();
            if !self.chunks.last().is_some_and(shares) {
                // A chunk begins at its first extent, so that a sparse file's runs are not split into small pieces.
                let (read, write) = label(false);
                self.push(m.object, read, Extent::new(block, 0));
                self.chunks.last_mut().expect("just pushed").onward = Some(write);
            }
            let part = self.fitting(rest, chunk_bytes);
            let at = part.offset;
            self.append(Piece { extent: part, at }, block_bytes);
            let chunk = self.chunks.last_mut().expect("it has just grown");
            if part == chunk.extent {
                let (read, write) = label(true);
                (chunk.route, chunk.reason) = read;
                chunk.onward = Some(write);
            }
            rest = Extent::between(part.end(), rest.end());
        }
    }

    /// Returns the chunks, their pieces, and the number of chunks for the drive.
    pub(super) fn finish(mut self) -> (Vec<Chunk>, Vec<Piece>, usize) {
        let drive_chunks = self.chunks.len();
        let mut buffered = std::mem::take(&mut self.buffered);
        let key = |b: &(u32, Reason, Piece)| b.2.at;
        if !buffered.is_sorted_by_key(key) {
            buffered.sort_unstable_by_key(key);
        }
        // The room left in the last buffered chunk; 0 before the first.
        let mut room = 0;
        for (object, reason, piece) in buffered {
            room = self.append_buffered(object, reason, piece, room);
        }
        (self.chunks, self.pieces, drive_chunks)
    }

    /// Adds a piece to the last buffered chunk if it is contiguous there, else begins a new chunk.
    /// Returns the room left in the last chunk.
    fn append_buffered(&mut self, object: u32, reason: Reason, piece: Piece, room: u64) -> u64 {
        let follows = self
            .chunks
            .last()
            .is_some_and(|c| (c.object, c.reason) == (object, reason))
            && self.pieces.last().is_some_and(|p| p.at + p.extent.bytes == piece.at);
        let mut room = if follows { room } else { 0 };
        let mut rest = piece;
        while !rest.extent.is_empty() {
            if room == 0 {
                self.push(object, (Route::Buffered, reason), Extent::new(rest.extent.offset, 0));
                room = self.cached_chunk_bytes;
            }
            let part = Extent::new(rest.extent.offset, rest.extent.bytes.min(room));
            let chunk = self.chunks.last_mut().expect("one was pushed where there was no room");
            chunk.pieces += u32::from(self.pieces.len() > chunk.first_piece as usize);
            let start = chunk.extent.offset.min(part.offset);
            chunk.extent = Extent::between(start, chunk.extent.end().max(part.end()));
            self.pieces.push(Piece {
                extent: part,
                at: rest.at,
            });
            room -= part.bytes;
            rest.at += part.bytes;
            rest.extent = Extent::between(part.end(), rest.extent.end());
        }
        room
    }

    /// Begins a chunk. The next piece that is pushed is its first.
    fn push(&mut self, object: u32, (route, reason): (Route, Reason), extent: Extent) {
        let first_piece = u32::try_from(self.pieces.len()).expect("a plan has under 2^32 pieces");
        self.chunks.push(Chunk {
            object,
            route,
            reason,
            onward: None,
            extent,
            first_piece,
            pieces: 1,
        });
    }
}
