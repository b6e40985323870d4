//! The progress of a stream over time, from which its rate in any span can be computed.
//!
//! A mark is set at every `depth`-th completion. A closed loop repeats itself after `depth` I/Os: drives that all
//! answer at once and then all seek show a steady rate from mark to mark, but not in between.

use hdrhistogram::Histogram;

use super::Ps;

/// The maximum number of marks; a stream with more drops every second one, repeatedly.
const MARKS_MAX: usize = 512;

/// The progress of a stream.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) size_bytes: u64,
    pub(crate) start: Ps,
    pub(crate) sent_bytes: u64,
    pub(crate) delivered_bytes: u64,
    pub(crate) ios: u64,
    pub(crate) fences: u64,
    pub(crate) fence_wait: Ps,
    pub(crate) last: Ps,
    pub(crate) latency: Histogram<u64>,
    /// I/Os from mark to mark, and the number of the I/O that sets the next mark.
    mark_ios: u64,
    next_mark: u64,
    marks: Vec<Mark>,
}

/// The bytes that had arrived by a time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Ps,
    bytes: u64,
}

impl Progress {
    /// A stream of which nothing has arrived, with `depth` I/Os in flight.
    pub(super) fn new(size_bytes: u64, depth: u64, start: Ps) -> Self {
        Self {
            size_bytes,
            start,
            sent_bytes: 0,
            delivered_bytes: 0,
            ios: 0,
            fences: 0,
            fence_wait: 0,
            last: start,
            latency: Histogram::new(3).expect("three digits are allowed"),
            mark_ios: depth,
            next_mark: depth,
            marks: Vec::new(),
        }
    }

    /// Records bytes that arrived at `at`.
    #[inline(always)]
    pub(super) fn arrive(&mut self, bytes: u64, at: Ps) {
        self.delivered_bytes += bytes;
        self.last = self.last.max(at);
    }

    /// Records that an I/O that was issued at `issued` is complete at `at`.
    #[inline(always)]
    pub(super) fn complete(&mut self, issued: Ps, at: Ps) {
        self.ios += 1;
        let grows = "a resizable histogram accepts any time";
        self.latency.record(at - issued).expect(grows);
        if self.ios == self.next_mark {
            self.mark(at);
        }
    }

    #[cold]
    fn mark(&mut self, at: Ps) {
        let bytes = self.delivered_bytes;
        self.marks.push(Mark { at, bytes });
        if self.marks.len() == MARKS_MAX {
            let mut number = 0;
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.mark_ios *= 2;
        }
        self.next_mark += self.mark_ios;
    }

    /// Bytes per second from the start to the last byte.
    pub(crate) fn overall_bytes_per_s(&self) -> f64 {
        self.size_bytes as f64 * 1e12 / (self.last - self.start).max(1) as f64
    }

    /// The span from the mark at a quarter of its marks to the one at three quarters.
    pub(crate) fn middle(&self) -> Option<(Ps, Ps)> {
        let count = self.marks.len();
        let first = count.div_ceil(4).checked_sub(1)?;
        let last = (count * 3 / 4).checked_sub(1)?;
        (first < last).then(|| (self.marks[first].at, self.marks[last].at))
    }

    /// The span in which it ran steadily: its middle or, with few marks, all after the first.
    pub(crate) fn steady(&self) -> Option<(Ps, Ps)> {
        let after_first = || {
            let first = self.marks.first()?.at;
            (first < self.last).then_some((first, self.last))
        };
        self.middle().or_else(after_first)
    }

    /// The bytes between two marks, which is the resolution of the record.
    pub(crate) fn grain_bytes(&self) -> f64 {
        self.size_bytes as f64 * self.mark_ios as f64 / self.ios as f64
    }

    /// The bytes that arrived from `from` to `to`, as if they came evenly from mark to mark.
    pub(crate) fn bytes_within(&self, (from, to): (Ps, Ps)) -> f64 {
        self.bytes_by(to) - self.bytes_by(from)
    }

    fn bytes_by(&self, at: Ps) -> f64 {
        let next = self.marks.partition_point(|mark| mark.at <= at);
        let before = match next {
            0 => Mark {
                at: self.start,
                bytes: 0,
            },
            _ => self.marks[next - 1],
        };
        let after = self.marks.get(next).copied().unwrap_or(Mark {
            at: self.last,
            bytes: self.size_bytes,
        });
        if at <= before.at || after.at <= before.at {
            return before.bytes as f64;
        }
        let share = (at.min(after.at) - before.at) as f64 / (after.at - before.at) as f64;
        before.bytes as f64 + share * (after.bytes - before.bytes) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    /// A stream of I/Os of 10 bytes, one every 100 ps.
    fn even(ios: u64, depth: u64) -> Progress {
        let mut progress = Progress::new(10 * ios, depth, 1000);
        for k in 1..=ios {
            progress.arrive(10, 1000 + 100 * k);
            progress.complete(1000, 1000 + 100 * k);
        }
        progress
    }

    #[test]
    fn the_bytes_within_a_span_follow_from_the_marks() {
        let progress = even(16, 2);
        assert_eq!(progress.middle(), Some((1400, 2200)));
        near(progress.bytes_within((1400, 2200)), 80.0, 1e-12);
        near(progress.bytes_within((1450, 1500)), 5.0, 1e-12);
        near(progress.bytes_within((0, 5000)), 160.0, 1e-12);
    }

    #[test]
    fn a_long_stream_keeps_few_marks_and_its_rate() {
        let progress = even(100_000, 1);
        assert!(progress.marks.len() < MARKS_MAX);
        let (from, to) = progress.middle().unwrap();
        let rate = progress.bytes_within((from, to)) / (to - from) as f64;
        near(rate, 0.1, 1e-12);
        assert!(progress.grain_bytes() < 0.01 * progress.size_bytes as f64);
    }

    #[test]
    fn one_io_has_no_middle() {
        assert_eq!(even(1, 1).middle(), None);
    }
}
