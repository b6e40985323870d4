//! The length of a queue over time in bounded memory: its minimum and maximum in each span.
//!
//! The first spans are a nanosecond long. When the record is full, adjacent spans are merged and the span length
//! doubles. So a run of any length keeps its peaks, and a short run its nanoseconds.

use serde::Serialize;

use super::bounds::SERIES_POINTS;

/// The shortest span, in picoseconds.
const SPAN_PS_MIN: u64 = 1000;

/// The queue and the pauses of one link over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueSeries {
    /// The link.
    pub link: String,
    /// The length of each span in nanoseconds.
    pub span_ns: u64,
    /// The minimum queue length in each span, in bytes.
    pub queue_min: Vec<u64>,
    /// The maximum queue length in each span.
    pub queue_max: Vec<u64>,
    /// The time-weighted mean queue length in each span.
    pub queue_mean: Vec<u64>,
    /// The time in each span for which the link was paused, in nanoseconds.
    pub paused_ns: Vec<u64>,
}

/// A [`QueueSeries`] being recorded.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    span_ps: u64,
    spans: Vec<Span>,
    queue: u64,
    queue_since: u64,
    paused_since: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Span {
    min: u64,
    max: u64,
    paused_ps: u64,
    /// Bytes times picoseconds.
    area: u128,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            span_ps: SPAN_PS_MIN,
            spans: vec![Span::default()],
            queue: 0,
            queue_since: 0,
            paused_since: None,
        }
    }

    /// Records that the queue changed to `bytes`.
    pub(crate) fn queue(&mut self, now: u64, bytes: u64) {
        let place = self.reach(now);
        self.spread_area(now);
        let span = &mut self.spans[place];
        span.min = span.min.min(bytes);
        span.max = span.max.max(bytes);
        self.queue = bytes;
    }

    /// Records that the link was paused or resumed.
    pub(crate) fn paused(&mut self, now: u64, paused: bool) {
        self.reach(now);
        match (self.paused_since, paused) {
            (None, true) => self.paused_since = Some(now),
            (Some(since), false) => {
                self.spread(since, now, |span, ps| span.paused_ps += ps);
                self.paused_since = None;
            }
            _ => {}
        }
    }

    /// Ends the record at `now`.
    pub(crate) fn finish(mut self, now: u64, link: String) -> QueueSeries {
        self.paused(now, false);
        self.reach(now);
        self.spread_area(now);
        let last = self.spans.len() as u64 - 1;
        let lasted = |place: u64| {
            let whole = self.span_ps;
            let length = if place == last { now - last * whole } else { whole };
            u128::from(length.max(1))
        };
        let mean = |(place, span): (u64, &Span)| u64::try_from(span.area / lasted(place)).unwrap_or(u64::MAX);
        QueueSeries {
            link,
            queue_mean: (0..).zip(&self.spans).map(mean).collect(),
            span_ns: self.span_ps / 1000,
            queue_min: self.spans.iter().map(|s| s.min).collect(),
            queue_max: self.spans.iter().map(|s| s.max).collect(),
            paused_ns: self.spans.iter().map(|s| s.paused_ps / 1000).collect(),
        }
    }

    /// Extends the spans up to `now`, and returns the index of its span.
    fn reach(&mut self, now: u64) -> usize {
        while now / self.span_ps >= SERIES_POINTS as u64 {
            self.merge();
        }
        let place = usize::try_from(now / self.span_ps).expect("below SERIES_POINTS");
        if place >= self.spans.len() {
            let still = Span {
                min: self.queue,
                max: self.queue,
                ..Span::default()
            };
            self.spans.resize(place + 1, still);
        }
        place
    }

    fn merge(&mut self) {
        self.spans = self
            .spans
            .chunks(2)
            .map(|pair| Span {
                min: pair.iter().map(|s| s.min).min().unwrap_or(0),
                max: pair.iter().map(|s| s.max).max().unwrap_or(0),
                paused_ps: pair.iter().map(|s| s.paused_ps).sum(),
                area: pair.iter().map(|s| s.area).sum(),
            })
            .collect();
        self.span_ps *= 2;
    }

    /// Adds the queue since its last change to the spans.
    fn spread_area(&mut self, now: u64) {
        let queue = u128::from(self.queue);
        self.spread(self.queue_since, now, |span, ps| {
            span.area += queue * u128::from(ps);
        });
        self.queue_since = now;
    }

    /// Calls `charge` with every span between two times and the time within it.
    fn spread(&mut self, since: u64, until: u64, mut charge: impl FnMut(&mut Span, u64)) {
        for place in since / self.span_ps..=until / self.span_ps {
            let start = since.max(place * self.span_ps);
            let end = until.min((place + 1) * self.span_ps);
            let place = usize::try_from(place).expect("below SERIES_POINTS");
            charge(&mut self.spans[place], end - start);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_record_keeps_its_nanoseconds() {
        let mut record = Recorder::new();
        record.queue(5_000, 100);
        record.queue(5_400, 300);
        record.queue(7_000, 50);
        let series = record.finish(9_000, String::new());
        assert_eq!(series.span_ns, 1);
        assert_eq!(series.queue_max[4..8], [0, 300, 300, 300]);
        assert_eq!(series.queue_min[5..8], [0, 300, 50]);
        // 100 bytes for 0.4 ns, then 300 for 0.6.
        assert_eq!(series.queue_mean[4..8], [0, 220, 300, 50]);
    }

    proptest! {
        #[test]
        fn a_record_of_any_length_keeps_its_peak_its_pauses_and_its_bound(
            steps in prop::collection::vec((1u64..50_000_000, 0u64..1_000_000, any::<bool>()), 1..500),
        ) {
            let mut record = Recorder::new();
            let (mut now, mut peak, mut paused_ps, mut since) = (0, 0, 0, None);
            for (ahead, bytes, pause) in steps {
                now += ahead;
                record.queue(now, bytes);
                record.paused(now, pause);
                peak = peak.max(bytes);
                since = match (since, pause) {
                    (None, true) => Some(now),
                    (Some(start), false) => { paused_ps += now - start; None }
                    (as_before, _) => as_before,
                };
            }
            paused_ps += since.map_or(0, |start| now - start);
            let series = record.finish(now, String::new());
            prop_assert!(series.queue_max.len() <= SERIES_POINTS);
            prop_assert_eq!(series.queue_max.iter().copied().max(), Some(peak));
            for (i, mean) in series.queue_mean.iter().enumerate() {
                prop_assert!(*mean <= series.queue_max[i] && *mean + 1 >= series.queue_min[i]);
            }
            let sum: u64 = series.paused_ns.iter().sum();
            // Each span rounds down to a nanosecond.
            prop_assert!(sum <= paused_ps / 1000);
            prop_assert!(sum + series.paused_ns.len() as u64 + 1 >= paused_ps / 1000);
        }
    }
}
