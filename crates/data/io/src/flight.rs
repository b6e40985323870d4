//! A chunk in progress on a lane.

use std::{sync::Arc, time::Instant};

use straightway_core::{Chunk, Direction, Error, ErrorKind, Leg, Object, Piece, Reason, Result, Route, extent::down};
use straightway_sys::{
    Buf, File, IoPath, Op, Slot, Window,
    cuda::{RegionSpan, Span},
};

use crate::{
    handle::{Handle, file},
    job::Job,
    request::{Done, Io, block_bytes, usize_of},
    tally::Tally,
};

/// The most completions of an I/O without progress before it counts as failed.
const STALLS_MAX: u8 = 16;

/// A chunk in progress: its running I/O, and when that started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) chunk: Chunk,
    /// The lane's number for its job.
    pub(crate) job: u32,
    /// The index of the running piece of a buffered chunk.
    piece: u32,
    /// The running leg. A copy across reads and then writes, or does both at once between files.
    pub(crate) leg: Leg,
    /// Whether it goes from file to file without a buffer in this process.
    is_between_files: bool,
    /// Offset in its slot of the portion's image, set by the inspection.
    pub(crate) image_start: usize,
    /// Whether the running I/O found none of its bytes in the page cache, where they were expected.
    missed: bool,
    /// Bytes of the running I/O that were expected in the page cache and were not there.
    missed_bytes: u64,
    /// Whether bytes of the running I/O were copied between files through a buffer.
    is_buffered_copy: bool,
    /// Bytes of the running I/O that came from a local cache.
    cached_bytes: u64,
    /// How often the running I/O completed without progress.
    stalls: u8,
    /// When its running I/O was created.
    pub(crate) taken: Instant,
    /// When its running I/O was submitted, or its copy started.
    pub(crate) submitted: Instant,
}

/// What to do with a completed I/O.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// All needed bytes have moved.
    Whole(Io),
    /// The rest has still to be moved.
    Again(Io),
    /// It failed.
    Failed(Io, Error),
}

impl Flight {
    pub(crate) fn new(chunk: Chunk, number: u32, job: &Job, now: Instant) -> Self {
        let is_between_files = job.is_between_files();
        let leg = if is_between_files {
            Leg::Write
        } else {
            job.direction().leg()
        };
        Self {
            chunk,
            job: number,
            piece: 0,
            leg,
            is_between_files,
            image_start: 0,
            missed: false,
            missed_bytes: 0,
            is_buffered_copy: false,
            cached_bytes: 0,
            stalls: 0,
            taken: now,
            submitted: now,
        }
    }

    /// The piece of the running buffered I/O; for other chunks, the first.
    pub(crate) fn piece(&self, job: &Job) -> Piece {
        job.plan().pieces(&self.chunk)[self.piece as usize]
    }

    /// The route of the running leg.
    pub(crate) fn route(&self) -> Route {
        self.route_and_reason().0
    }

    /// The route of the running leg, and the reason for it.
    pub(crate) fn route_and_reason(&self) -> (Route, Reason) {
        match (self.leg, self.chunk.onward) {
            (Leg::Write, Some(onward)) => onward,
            _ => (self.chunk.route, self.chunk.reason),
        }
    }

    /// Records how `moved` bytes of the running I/O were moved.
    pub(crate) fn note(&mut self, done: &Done, moved: u64) {
        self.missed |= done.missed;
        let is_expected = self.leg == Leg::Read && self.chunk.reason == Reason::Resident;
        let is_missed = done.missed || done.io.by != IoPath::Resident;
        self.missed_bytes += if is_expected && is_missed { moved } else { 0 };
        self.is_buffered_copy |= done.is_buffered_copy;
        self.cached_bytes += if done.is_from_cache { moved } else { 0 };
    }

    /// Counts payload of the running I/O by route and reason.
    pub(crate) fn count(&self, job: &Job, tally: &mut Tally, payload_bytes: u64) {
        if self.is_between_files {
            let reason = if self.is_buffered_copy || job.maps_writes() {
                self.chunk.reason
            } else {
                Reason::KernelCopy
            };
            for leg in [Leg::Read, Leg::Write] {
                tally.count(leg, Route::Buffered, reason, payload_bytes);
            }
            return;
        }
        let (route, reason) = self.route_and_reason();
        // A request may cover gaps between its pieces, so it can move more than its payload.
        let cached_bytes = self.cached_bytes.min(payload_bytes);
        let missed_bytes = self.missed_bytes.min(payload_bytes - cached_bytes);
        for (route, reason, bytes) in [
            (Route::Buffered, Reason::LocalCache, cached_bytes),
            (route, Reason::Evicted, missed_bytes),
            (
                route.reported(reason),
                reason,
                payload_bytes - cached_bytes - missed_bytes,
            ),
        ] {
            if bytes > 0 {
                tally.count(self.leg, route, reason, bytes);
            }
        }
    }

    /// Whether the chunk has a piece after the running one.
    pub(crate) fn has_next_piece(&self, job: &Job) -> bool {
        (self.piece as usize) + 1 < job.plan().pieces(&self.chunk).len()
    }

    /// Moves on to the chunk's next piece.
    pub(crate) fn next_piece(&mut self, now: Instant) {
        self.piece += 1;
        self.restart(now);
    }

    /// Switches a copy across from reading to writing.
    pub(crate) fn switch_to_write(&mut self, now: Instant) {
        self.leg = Leg::Write;
        self.piece = 0;
        self.restart(now);
    }

    /// Reserves the space that the running write needs, where that was not done before.
    pub(crate) fn reserve(&self, job: &Job) -> Result<()> {
        self.object(job).reserve_up_to(self.chunk.extent.end())
    }

    fn restart(&mut self, now: Instant) {
        self.missed = false;
        self.missed_bytes = 0;
        self.is_buffered_copy = false;
        self.cached_bytes = 0;
        self.stalls = 0;
        self.taken = now;
    }

    /// The I/O of the running leg with a slot: through the page cache one piece at a time, else the
    /// whole extent.
    pub(crate) fn slot_io(&self, job: &Job, slot: Slot, tag: u32) -> Io {
        let (extent, start) = match self.route() {
            Route::Buffered if job.inspect().is_none() => {
                let piece = self.piece(job);
                (piece.extent, self.slot_offset(job, piece))
            }
            Route::Buffered | Route::Direct | Route::Staged | Route::Socket | Route::Mapped | Route::Service => {
                (self.chunk.extent, 0)
            }
        };
        let room_bytes = match self.leg {
            Leg::Read => u64::MAX,
            Leg::Write => self.object(job).room_bytes(),
        };
        let end = extent.end().min(room_bytes.max(extent.offset));
        let bytes = usize_of(end - extent.offset);
        Io {
            start,
            ..self.io(job, extent.offset, Buf::Slot(slot), bytes, tag)
        }
    }

    /// The offset of a piece in the slot. A slot holds the chunk's extent from its start on. Only pieces that are read
    /// one by one from the page cache are laid out as in the region, so that one copy takes them all.
    fn slot_offset(&self, job: &Job, piece: Piece) -> usize {
        if self.is_gathered(job) {
            usize_of(piece.at - job.plan().pieces(&self.chunk)[0].at)
        } else {
            usize_of(piece.extent.offset - self.chunk.extent.offset)
        }
    }

    fn is_gathered(&self, job: &Job) -> bool {
        self.chunk.route == Route::Buffered && job.direction() != Direction::Across
    }

    /// The number of payload bytes of its chunk.
    pub(crate) fn payload_bytes(&self, job: &Job) -> u64 {
        if job.inspect().is_some() {
            return job.plan().portion(&self.chunk).1.wanted_bytes;
        }
        let pieces = job.plan().pieces(&self.chunk);
        pieces.iter().map(|p| p.extent.bytes).sum()
    }

    /// Writes the copies between its slot and the regions to `region_spans`.
    pub(crate) fn region_spans(&self, job: &Job, region_spans: &mut Vec<RegionSpan>) {
        region_spans.clear();
        let region_span = |region: u32, slot_offset: usize, at: u64, bytes: u64| RegionSpan {
            region,
            span: Span {
                slot_offset,
                memory_offset: usize_of(at),
                bytes: usize_of(bytes),
            },
        };
        if job.inspect().is_some() {
            region_spans.extend(
                job.plan()
                    .deliveries(&self.chunk)
                    .iter()
                    .map(|d| region_span(d.region, self.image_start + usize_of(d.from), d.at, d.bytes)),
            );
            return;
        }
        let pieces = job.plan().pieces(&self.chunk);
        let mut add_spans = |piece: &Piece, bytes: u64| {
            let mut from = self.slot_offset(job, *piece);
            let Some(whole) = job.whole() else {
                region_spans.push(region_span(0, from, piece.at, bytes));
                return;
            };
            for (region, at, own) in whole.cut(piece.at, bytes) {
                region_spans.push(region_span(region, from, at, own));
                from += usize_of(own);
            }
        };
        if self.is_gathered(job) {
            add_spans(&pieces[0], self.payload_bytes(job));
        } else {
            for piece in pieces {
                add_spans(piece, piece.extent.bytes);
            }
        }
    }

    /// Zeroes the bytes of its extent outside its pieces: the gaps are zero in the new file.
    pub(crate) fn clear_gaps(&self, job: &Job, slot: &mut Slot) {
        if self.is_gathered(job) {
            return;
        }
        let extent = self.chunk.extent;
        let bytes = &mut slot.as_mut_slice()[..usize_of(extent.bytes)];
        let mut end = 0;
        for piece in job.plan().pieces(&self.chunk) {
            let start = usize_of(piece.extent.offset - extent.offset);
            bytes[end..start].fill(0);
            end = start + usize_of(piece.extent.bytes);
        }
        bytes[end..].fill(0);
    }

    /// The I/O of the running piece without a slot: with the region itself, or from file to file.
    pub(crate) fn window_io(&self, job: &Job, tag: u32) -> Io {
        let piece = self.piece(job);
        let bytes = usize_of(piece.extent.bytes);
        let buf = match job.region() {
            Some(region) => Buf::Window(Window::new(region, piece.at, bytes)),
            None => Buf::File(self.source(job)),
        };
        self.io(job, piece.extent.offset, buf, bytes, tag)
    }

    /// The source file of a file-to-file chunk.
    fn source(&self, job: &Job) -> Arc<File> {
        let source = &job.objects.handles()[self.chunk.object as usize];
        file(source).expect("only files are copied without a slot")
    }

    fn io(&self, job: &Job, offset: u64, buf: Buf, bytes: usize, tag: u32) -> Io {
        let by = match self.route() {
            Route::Buffered if self.leg == Leg::Read && self.chunk.reason == Reason::Resident => IoPath::Resident,
            Route::Buffered if self.leg == Leg::Write && job.maps_writes() => IoPath::Mapping,
            Route::Buffered => IoPath::PageCache,
            Route::Direct | Route::Staged | Route::Socket | Route::Mapped | Route::Service => IoPath::Direct,
        };
        let op = match self.leg {
            Leg::Read => Op::Read,
            Leg::Write => Op::Write,
        };
        Io {
            op,
            object: Arc::clone(self.object(job)),
            by,
            offset,
            buf,
            start: 0,
            bytes,
            tag,
        }
    }

    /// The object of the running leg.
    fn object<'a>(&self, job: &'a Job) -> &'a Arc<dyn Handle> {
        let objects = match self.leg {
            Leg::Read => Some(&job.objects),
            Leg::Write => job.written(),
        };
        let objects = objects.expect("a job that writes has objects to write to");
        &objects.handles()[self.chunk.object as usize]
    }

    /// Decides what to do with a completed I/O.
    pub(crate) fn judge(&mut self, job: &Job, mut io: Io, result: std::io::Result<usize>) -> Verdict {
        let moved = match &result {
            Ok(moved) => *moved,
            Err(error) if is_passing(error) => 0,
            Err(_) => return self.failed(job, io, result),
        };
        let reached = io.offset + moved as u64;
        if moved == io.bytes || (io.op == Op::Read && reached >= self.needed_end(job)) {
            return Verdict::Whole(io);
        }
        // Direct I/O continues at a whole block. Moving part of it twice does no harm.
        let block = block_bytes(&io);
        let step = down(reached, block).saturating_sub(io.offset);
        if step == 0 {
            self.stalls += 1;
            // After part of a block the rest may follow. A read of 0 bytes is the end.
            let at_end = io.op == Op::Read && result.as_ref().is_ok_and(|moved| *moved == 0);
            if at_end || self.stalls > STALLS_MAX {
                return self.failed(job, io, result);
            }
        }
        if io.by == IoPath::Resident && (moved > 0 || self.missed) {
            // The next byte is not in the page cache.
            io.by = IoPath::PageCache;
        }
        let step = usize_of(step);
        io.offset += step as u64;
        io.start += step;
        io.bytes -= step;
        Verdict::Again(io)
    }

    fn failed(&self, job: &Job, io: Io, result: std::io::Result<usize>) -> Verdict {
        let object = self.object(job);
        let error = match (result, io.op) {
            (Err(source), Op::Read) => {
                // A store that explains an error knows better what it is about.
                let is_plain = source.raw_os_error().is_some();
                let bytes = if is_plain { io.bytes as u64 } else { 0 };
                let end = io.offset.saturating_add(bytes);
                object.error("read", source).in_bytes(io.offset..end)
            }
            (Err(source), Op::Write) => object.error("write", source),
            (Ok(moved), Op::Read) => object.check_unchanged().err().unwrap_or_else(|| {
                let end = io.offset + moved as u64;
                let Object { name, bytes } = object.object();
                let message = format!("it ended at byte {end} of {bytes}");
                Error::new(ErrorKind::Corrupt, "read", name, message)
            }),
            (Ok(_), Op::Write) => {
                let source = self.is_between_files.then(|| self.source(job));
                let changed = source.and_then(|source| source.check_unchanged().err());
                changed.unwrap_or_else(|| object.error("write", std::io::ErrorKind::WriteZero.into()))
            }
        };
        Verdict::Failed(io, error)
    }

    /// The end of the last needed byte of this chunk. A superset may reach past the file's end, and is then short
    /// without harm.
    fn needed_end(&self, job: &Job) -> u64 {
        if job.inspect().is_some() {
            return job.plan().portion(&self.chunk).1.extent.end();
        }
        if self.route() == Route::Buffered {
            return self.piece(job).extent.end();
        }
        let ends = job.plan().pieces(&self.chunk).iter().map(|p| p.extent.end());
        ends.max().expect("a chunk has a piece")
    }
}

/// Whether an error is transient and the I/O can be repeated at once.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock
    )
}
