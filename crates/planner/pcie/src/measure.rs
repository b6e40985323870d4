//! The rates of the streams and their total, over a span that is the same for all.
//!
//! A rate excludes the start and the end of a run, where queues fill and drain. But rates of different times cannot
//! be added: two streams of which one ends before the other begins would fill a link twice. So one span is chosen in
//! which all streams run: the overlap of the middles of all streams, or else the middle half of the time in which all
//! run. If that span holds too little (a handful of I/Os, streams that hardly overlap), or gives a rate that exceeds
//! a link or a queue depth, all time counts: each stream's bytes over its own time, and all bytes over all time.

use std::collections::BTreeMap;

use super::{
    bound::{Resource, capacity},
    engine::{Finished, Progress},
    topology::PcieTopology,
};

/// A span in picoseconds.
type Span = (u64, u64);

/// A span is long enough if it holds this many times the bytes between two marks of the streams.
const GRAINS_MIN: f64 = 1.5;

/// The factor by which a measured rate may exceed the possible one, since buffers that drain are included.
const SLACK: f64 = 1.01;

/// The measured rates.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// All streams together, in bytes per second.
    pub(super) total_bytes_per_s: f64,
    /// Each stream, in bytes per second.
    pub(super) stream_bytes_per_s: Vec<f64>,
    /// The measured span, if it is the same for all streams.
    pub(super) span: Option<Span>,
}

impl Measured {
    /// The measured span of a stream.
    pub(super) fn span_of(&self, progress: &Progress) -> Span {
        self.span.unwrap_or((progress.start, progress.last))
    }
}

/// Measures a finished run. `costs` is the cost of a byte of each stream at every resource on its path.
pub(super) fn measure(topology: &PcieTopology, run: &Finished, costs: &[BTreeMap<Resource, f64>]) -> Measured {
    let spans = [common_middle(run), middle_of_common(run)];
    let mut measured = spans
        .into_iter()
        .flatten()
        .filter(|span| holds_enough(run, *span))
        .map(|span| {
            let rates: Vec<f64> = run.streams.iter().map(|s| rate(s.bytes_within(span), span)).collect();
            Measured {
                total_bytes_per_s: rates.iter().sum(),
                stream_bytes_per_s: rates,
                span: Some(span),
            }
        });
    let possible = measured.find(|m| is_possible(topology, run, costs, &m.stream_bytes_per_s));
    possible.unwrap_or_else(|| over_all(run))
}

/// Bytes over all time.
fn over_all(run: &Finished) -> Measured {
    let first = run.streams.iter().map(|s| s.start).min().unwrap_or(0);
    let last = run.streams.iter().map(|s| s.last).max().unwrap_or(0);
    let bytes: u64 = run.streams.iter().map(|s| s.delivered_bytes).sum();
    Measured {
        total_bytes_per_s: rate(bytes as f64, (first, last)),
        stream_bytes_per_s: run.streams.iter().map(Progress::overall_bytes_per_s).collect(),
        span: None,
    }
}

/// The overlap of the middles of all streams.
fn common_middle(run: &Finished) -> Option<Span> {
    let mut common = (0, u64::MAX);
    for stream in &run.streams {
        let (from, to) = stream.middle()?;
        common = (common.0.max(from), common.1.min(to));
    }
    (common.0 < common.1).then_some(common)
}

/// The middle half of the time in which all streams run.
fn middle_of_common(run: &Finished) -> Option<Span> {
    let from = run.streams.iter().map(|s| s.start).max()?;
    let to = run.streams.iter().map(|s| s.last).min()?;
    let quarter = to.checked_sub(from)? / 4;
    (quarter > 0).then_some((from + quarter, to - quarter))
}

fn holds_enough(run: &Finished, span: Span) -> bool {
    let held: f64 = run.streams.iter().map(|s| s.bytes_within(span)).sum();
    let grains: f64 = run.streams.iter().map(Progress::grain_bytes).sum();
    held >= GRAINS_MIN * grains
}

/// Whether the links can carry these rates, and whether Little's law allows them: the amount in flight divided by the
/// latency of an I/O.
fn is_possible(topology: &PcieTopology, run: &Finished, costs: &[BTreeMap<Resource, f64>], rates: &[f64]) -> bool {
    let mut loads: BTreeMap<Resource, f64> = BTreeMap::new();
    for (cost, rate) in costs.iter().zip(rates) {
        for (resource, each) in cost {
            *loads.entry(*resource).or_default() += each * rate;
        }
    }
    let mut streams = topology.streams.iter().zip(&run.streams).zip(rates);
    let in_flight = streams.all(|((stream, progress), rate)| {
        let ios = rate * progress.ios as f64 / progress.size_bytes as f64;
        ios * progress.latency.mean() * 1e-12 <= SLACK * stream.depth as f64
    });
    in_flight
        && loads.iter().all(|(resource, load)| {
            !matches!(resource, Resource::Port(_)) || *load <= SLACK * capacity(topology, *resource)
        })
}

/// Bytes per second.
fn rate(bytes: f64, (from, to): Span) -> f64 {
    bytes * 1e12 / (to - from).max(1) as f64
}
