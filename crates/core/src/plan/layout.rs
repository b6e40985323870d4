//! A plan in the making: chunks are appended, the last staged one may still grow.

use super::{Chunk, Piece};
use crate::{
    extent::{Extent, down},
    policy::Policy,
    route::{Reason, Route},
    transfer::Move,
};

/// Chunks and pieces so far, and what is still open.
#[derive(Debug)]
pub(super) struct Layout {
    chunk_bytes: u64,
    /// The same for chunks that need no slot.
    direct_chunk_bytes: u64,
    cached_chunk_bytes: u64,
    gap_bytes: u64,
    /// No chunk reaches from one part of its object into the next.
    part_bytes: Option<u64>,
    chunks: Vec<Chunk>,
    pieces: Vec<Piece>,
    /// The last chunk is staged and may take more pieces.
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

    /// How the next extents are cut: what goes straight into chunks of `direct_chunk_bytes`, and staged neighbours
    /// share one where at most `gap_bytes` lie between them.
    pub(super) fn cut_by(&mut self, direct_chunk_bytes: u64, gap_bytes: u64) {
        self.direct_chunk_bytes = direct_chunk_bytes;
        self.gap_bytes = gap_bytes;
    }

    /// Which parts the next extents are in.
    pub(super) fn keep_to_parts(&mut self, part_bytes: Option<u64>) {
        self.part_bytes = part_bytes;
    }

    /// Where a chunk of at most `chunk_bytes` that begins at `start` ends at the latest.
    fn limit(&self, start: u64, chunk_bytes: u64) -> u64 {
        let limit = start + chunk_bytes;
        match self.part_bytes {
            Some(part_bytes) => limit.min(down(start, part_bytes) + part_bytes),
            None => limit,
        }
    }

    /// Sends an aligned extent straight, cut where it is longer than a chunk.
    pub(super) fn direct(
        &mut self,
        object: u32,
        extent: Extent,
        at: u64,
        reason: Reason,
        block_bytes: u64,
    ) {
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

    /// Stages an extent inside its aligned superset, together with near neighbours.
    ///
    /// A chunk that is full ends on a block, and the next begins there: no block is in two chunks,
    /// which is what lets chunks be written in any order.
    pub(super) fn stage(
        &mut self,
        object: u32,
        extent: Extent,
        at: u64,
        reason: Reason,
        block_bytes: u64,
    ) {
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

    /// Lets nothing more be added to the last chunk: what follows has another reason.
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

    /// As much of `rest` as the last chunk has room for.
    fn fitting(&self, rest: Extent, chunk_bytes: u64) -> Extent {
        let chunk = self.chunks.last().expect("there is a chunk to add to");
        let limit = self.limit(chunk.extent.offset, chunk_bytes);
        Extent::between(rest.offset, rest.end().min(limit))
    }

    /// Adds a piece to the last chunk, which grows to the piece's last block.
    fn append(&mut self, piece: Piece, block_bytes: u64) {
        let chunk = self.chunks.last_mut().expect("there is a chunk to add to");
        let end = piece.extent.superset(block_bytes).end();
        chunk.extent = Extent::between(chunk.extent.offset, end.max(chunk.extent.end()));
        chunk.pieces += u32::from(self.pieces.len() > chunk.first_piece as usize);
        self.pieces.push(piece);
    }

    /// Sends an extent through the page cache; it is cut into chunks at the end.
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

    /// Cuts a move across into chunks of whole blocks, labelled by `label`, which is told whether a chunk is
    /// one piece and all of it payload.
    ///
    /// A chunk is written as a whole, with zeros between its pieces. A piece that begins in the last block of
    /// the chunk before it therefore joins that chunk: apart, each would clear the other's part.
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
                // A chunk begins with its first extent, so that a sparse file's runs are not cut into slivers.
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

    /// The chunks, their pieces, and how many of the chunks go to the drive.
    pub(super) fn finish(mut self) -> (Vec<Chunk>, Vec<Piece>, usize) {
        let drive_chunks = self.chunks.len();
        let mut buffered = std::mem::take(&mut self.buffered);
        let key = |b: &(u32, Reason, Piece)| b.2.at;
        if !buffered.is_sorted_by_key(key) {
            buffered.sort_unstable_by_key(key);
        }
        // How much the last buffered chunk can still take; nothing before the first.
        let mut room = 0;
        for (object, reason, piece) in buffered {
            room = self.append_buffered(object, reason, piece, room);
        }
        (self.chunks, self.pieces, drive_chunks)
    }

    /// Adds a piece to the last buffered chunk where it follows on there, else begins another.
    /// Answers how much room is left.
    fn append_buffered(&mut self, object: u32, reason: Reason, piece: Piece, room: u64) -> u64 {
        let follows = self
            .chunks
            .last()
            .is_some_and(|c| (c.object, c.reason) == (object, reason))
            && self
                .pieces
                .last()
                .is_some_and(|p| p.at + p.extent.bytes == piece.at);
        let mut room = if follows { room } else { 0 };
        let mut rest = piece;
        while !rest.extent.is_empty() {
            if room == 0 {
                self.push(
                    object,
                    (Route::Buffered, reason),
                    Extent::new(rest.extent.offset, 0),
                );
                room = self.cached_chunk_bytes;
            }
            let part = Extent::new(rest.extent.offset, rest.extent.bytes.min(room));
            let chunk = self
                .chunks
                .last_mut()
                .expect("one was pushed where there was no room");
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

    /// Begins a chunk whose first piece is the next to be pushed.
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
