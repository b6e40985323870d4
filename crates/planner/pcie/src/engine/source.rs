//! The source of a stream's TLPs: its I/Os in flight, its fences, and the DMA engine that sends them.
//!
//! A stream is a closed loop: `depth` I/Os are issued at its start, and each completion issues the next. A drive's
//! data is ready a media latency after its I/O was issued; the TLPs are then generated one by one as the device's
//! port takes them, so they are never queued.

use super::{
    Ps,
    progress::Progress,
    ring::Ring,
    tlp::{Class, FENCE, LAST, Tlp},
    wake::NEVER,
};
use crate::{scenario::Mode, topology::WORD_BYTES};
use straightway_core::random::Rng;

/// One I/O of the application.
#[derive(Clone, Copy, Debug, Default)]
struct Io {
    ready: Ps,
    issued: Ps,
    bytes: u64,
}

/// The state of a stream.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) mode: Mode,
    /// The device that moves the data.
    pub(super) device: u32,
    /// The latency of the notice of a delivery to the device.
    pub(super) back: Ps,
    /// The path of its TLPs, and the first hop after the device's own port.
    flow: u16,
    hop: u32,
    /// The maximum bytes that one TLP carries or requests.
    piece_bytes: u64,
    io_bytes: u64,
    depth: u64,
    fence_bytes: Option<u64>,
    unissued_bytes: u64,
    /// Issued I/Os of which no TLP was sent, the first ready in front.
    waiting: Ring<Io>,
    /// The I/O that is partly sent, with its remaining bytes; 0 if there is none.
    current: Io,
    /// The issue times of the I/Os that were sent and are not complete.
    sent: Ring<Ps>,
    /// Bytes written since the last fence.
    unfenced_bytes: u64,
    /// The number of I/Os in `sent` that the pending fence covers.
    covered: u32,
    fence: Fence,
    /// The time at which the last fence was done: I/Os issued before wait for it too.
    fenced: Ps,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    None,
    Due,
    Sent(Ps),
}

/// The parameters of a stream.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) mode: Mode,
    pub(super) device: u32,
    pub(super) back: Ps,
    pub(super) flow: u16,
    pub(super) hop: u32,
    pub(super) piece_bytes: u64,
    pub(super) io_bytes: u64,
    pub(super) depth: u64,
    pub(super) fence_bytes: Option<u64>,
    pub(super) size_bytes: u64,
    pub(super) start: Ps,
}

/// The DMA engine and the media of a device, shared by its streams.
#[derive(Debug)]
pub(super) struct Device {
    /// The port its TLPs leave by.
    pub(super) port: u32,
    /// The pool of its read tags.
    pub(super) tags: u32,
    /// The pieces in which the engine processes a write.
    pub(super) chunk_bytes: u32,
    pub(super) writes: Pace,
    pub(super) reads: Pace,
    /// The extra time of the engine for a read request that ends within a word.
    pub(super) partial_word: Ps,
    /// The media rates in bytes: reads that are sent, and writes of received data.
    pub(super) media_out: Pace,
    pub(super) media_in: Pace,
    pub(super) media_latency: Ps,
    pub(super) read_latency: Ps,
    /// Picoseconds per byte from the last completion of a read I/O to its end, in units of 2^-20.
    pub(super) copy_cost: u64,
    pub(super) jitter: f64,
    pub(super) rng: Rng,
}

/// A rate limiter: a transaction engine, or media read byte by byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Picoseconds per unit, in units of 2^-20; zero for no limit.
    cost: u64,
    /// The time by which it may run behind and catch up, given by its buffer.
    slack: Ps,
    ready: Ps,
    /// Its busy time.
    pub(super) busy: Ps,
}

/// The next TLP of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) class: Class,
    pub(super) tlp: Tlp,
}

impl Pace {
    /// `per_s` units per second, able to catch up by `slack_units`.
    pub(super) fn new(per_s: Option<f64>, slack_units: f64) -> Self {
        let Some(per_s) = per_s else {
            return Self::default();
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked rates")]
        let (cost, slack) = (
            (1e12 / per_s * f64::from(1u32 << 20)).ceil() as u64,
            (1e12 / per_s * slack_units) as u64,
        );
        Self {
            cost,
            slack,
            ..Self::default()
        }
    }

    #[inline(always)]
    fn spend(&mut self, now: Ps, units: u64) {
        if self.cost > 0 {
            let time = (units * self.cost + (1 << 20) - 1) >> 20;
            self.busy += time;
            self.ready = (self.ready + time).max((now + time).saturating_sub(self.slack));
        }
    }

    /// Keeps it busy for another `time`.
    fn hold(&mut self, time: Ps) {
        if self.cost > 0 {
            self.busy += time;
            self.ready += time;
        }
    }
}

impl Device {
    /// The time from the last completion to the end of a read I/O of `bytes`.
    pub(super) fn copy_time(&self, bytes: u64) -> Ps {
        (bytes * self.copy_cost) >> 20
    }

    /// The time at which the engine and the media allow `head`.
    #[inline(always)]
    pub(super) fn ready(&self, head: &Head, mode: Mode) -> Ps {
        let engine = match head.class {
            Class::Posted => self.writes.ready,
            _ => self.reads.ready,
        };
        let media = match mode {
            _ if head.tlp.has(FENCE) => 0,
            Mode::Write => self.media_out.ready,
            Mode::Read => self.media_in.ready,
        };
        engine.max(media)
    }

    /// The time at which the engine and the media allow a write.
    #[inline(always)]
    pub(super) fn write_ready(&self) -> Ps {
        self.writes.ready.max(self.media_out.ready)
    }

    /// The turns the engine takes for a write: one for each of its pieces.
    #[inline(always)]
    fn turns(&self, bytes: u64) -> u64 {
        let chunk = u64::from(self.chunk_bytes);
        // Most engines take a TLP as a whole; this avoids a division.
        if bytes <= chunk { 1 } else { bytes.div_ceil(chunk) }
    }

    /// Records that a write was sent at `now`.
    #[inline(always)]
    pub(super) fn spend_write(&mut self, now: Ps, bytes: u64) {
        self.writes.spend(now, self.turns(bytes));
        self.media_out.spend(now, bytes);
    }

    /// Records that `head` was sent at `now`.
    #[inline(always)]
    pub(super) fn spend(&mut self, now: Ps, head: &Head, mode: Mode) {
        let bytes = head.tlp.bytes();
        if head.class == Class::Posted {
            self.writes.spend(now, self.turns(u64::from(bytes)));
        } else {
            self.reads.spend(now, 1);
            if !u32::from(bytes).is_multiple_of(WORD_BYTES) {
                self.reads.hold(self.partial_word);
            }
        }
        match mode {
            Mode::Write => self.media_out.spend(now, u64::from(head.tlp.bytes())),
            Mode::Read => self.media_in.spend(now, u64::from(head.tlp.bytes())),
        }
    }

    /// Draws a latency with its random tail.
    pub(super) fn draw(&mut self, latency: Ps) -> Ps {
        if self.jitter > 0.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most minutes")]
            let tail = self.rng.exponential(self.jitter) as u64;
            latency + tail
        } else {
            latency
        }
    }
}

impl Source {
    pub(super) fn new(job: &Job) -> Self {
        Self {
            mode: job.mode,
            device: job.device,
            back: job.back,
            flow: job.flow,
            hop: job.hop,
            piece_bytes: job.piece_bytes,
            io_bytes: job.io_bytes,
            depth: job.depth,
            fence_bytes: job.fence_bytes,
            unissued_bytes: job.size_bytes,
            waiting: Ring::default(),
            current: Io::default(),
            sent: Ring::default(),
            unfenced_bytes: 0,
            covered: 0,
            fence: Fence::None,
            fenced: 0,
            progress: Progress::new(job.size_bytes, job.depth, job.start),
        }
    }

    /// Issues the next I/O at `now`. Returns the time at which its data is ready, `delay` later.
    pub(super) fn issue(&mut self, now: Ps, delay: Ps) -> Ps {
        let bytes = self.unissued_bytes.min(self.io_bytes);
        if bytes == 0 {
            return NEVER;
        }
        self.unissued_bytes -= bytes;
        let io = Io {
            ready: now + delay,
            issued: now,
            bytes,
        };
        // At the back, unless the latency tail of another I/O delayed that one.
        self.waiting.insert(io, |other| other.ready <= io.ready);
        io.ready
    }

    /// The number of I/Os that the stream starts with.
    pub(super) fn depth(&self) -> u64 {
        self.depth.min(self.progress.size_bytes.div_ceil(self.io_bytes))
    }

    /// The TLP that it sends next; its time is [`NEVER`] if the stream waits.
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        let tlp = |ready, marks| Tlp::new(ready, self.flow, self.hop, 0, marks);
        match (self.fence, self.next_io()) {
            (Fence::Due, _) => Head {
                class: Class::NonPosted,
                tlp: tlp(0, FENCE),
            },
            (Fence::None, Some(io)) => Head {
                class: match self.mode {
                    Mode::Write => Class::Posted,
                    Mode::Read => Class::NonPosted,
                },
                tlp: self.piece(io),
            },
            (Fence::Sent(_), _) | (Fence::None, None) => Head {
                class: Class::Posted,
                tlp: tlp(NEVER, 0),
            },
        }
    }

    /// As [`Self::head`], if that is a write.
    #[inline(always)]
    pub(super) fn write(&self) -> Option<Tlp> {
        match (self.fence, self.next_io()) {
            (Fence::None, Some(io)) => Some(self.piece(io)),
            _ => None,
        }
    }

    /// The next TLP of an I/O.
    #[inline(always)]
    fn piece(&self, io: Io) -> Tlp {
        let bytes = io.bytes.min(self.piece_bytes);
        let marks = if bytes == io.bytes { LAST } else { 0 };
        let bytes = u16::try_from(bytes).expect("a payload is at most 4 KiB");
        let ready = io.ready.max(self.fenced);
        Tlp::new(ready, self.flow, self.hop, bytes, marks)
    }

    /// The I/O that is partly sent, or the first that waits.
    #[inline(always)]
    fn next_io(&self) -> Option<Io> {
        if self.current.bytes > 0 {
            Some(self.current)
        } else {
            self.waiting.front()
        }
    }

    /// Updates the stream after `head` was sent at `now`.
    #[inline(always)]
    pub(super) fn advance(&mut self, head: &Head, now: Ps) {
        if head.tlp.has(FENCE) {
            self.fence = Fence::Sent(now);
            self.covered = self.sent.len();
            self.progress.fences += 1;
        } else {
            self.advance_by(u64::from(head.tlp.bytes()));
        }
    }

    /// Records that `bytes` of the next I/O were sent or requested.
    #[inline(always)]
    pub(super) fn advance_by(&mut self, bytes: u64) {
        self.progress.sent_bytes += bytes;
        if self.current.bytes == 0 {
            let first = self.waiting.pop_front();
            self.current = first.expect("a head belongs to the current I/O or the first waiting one");
        }
        self.current.bytes -= bytes;
        if self.current.bytes == 0 {
            self.sent.push_back(self.current.issued);
        }
        if let Some(fence_bytes) = self.fence_bytes {
            self.unfenced_bytes += bytes;
            // A fence is due after its bytes, at the end, and when every I/O in flight waits for it.
            let all_sent = self.progress.sent_bytes == self.progress.size_bytes;
            let all_wait = u64::from(self.sent.len()) >= self.depth;
            if self.unfenced_bytes >= fence_bytes || all_sent || all_wait {
                self.fence = Fence::Due;
                self.unfenced_bytes = 0;
            }
        }
    }

    /// Whether everything has been sent.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.progress.sent_bytes == self.progress.size_bytes && self.fence == Fence::None
    }

    /// Whether the next TLP is a write.
    #[inline]
    pub(super) fn is_writing(&self) -> bool {
        self.mode == Mode::Write && self.fence != Fence::Due
    }

    /// Whether an I/O is complete only after a fence.
    #[inline]
    pub(super) fn is_fenced(&self) -> bool {
        self.fence_bytes.is_some()
    }

    /// The size of every I/O except the last.
    pub(super) fn io_bytes(&self) -> u64 {
        self.io_bytes
    }

    /// Completes the oldest I/O in flight at `at`.
    pub(super) fn complete(&mut self, at: Ps) {
        let issued = self.sent.pop_front().expect("a complete I/O was sent");
        self.progress.complete(issued, at);
    }

    /// Ends the pending fence at `at`; returns the number of I/Os that it covered.
    pub(super) fn fence_done(&mut self, at: Ps) -> u32 {
        let Fence::Sent(since) = self.fence else {
            unreachable!("only a fence that was sent completes");
        };
        self.progress.fence_wait += at - since;
        self.progress.last = self.progress.last.max(at);
        self.fence = Fence::None;
        self.fenced = at;
        std::mem::take(&mut self.covered)
    }
}
