//! The result of a run: completion times, loaded and paused links, and congestion spreading.

mod measure;

use serde::Serialize;
use straightway_core::{Rate, Seconds};

use super::{deadlock::Deadlock, series::QueueSeries};
use straightway_scenario::provenance::Basis;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FabricOutcome {
    /// The scenario's title.
    pub title: String,
    /// The seed it ran with.
    pub seed: u64,
    /// The simulated time.
    pub simulated: Seconds,
    /// The total line rate of all sending hosts.
    pub offered: Rate,
    /// The outcome of each traffic entry.
    pub traffic: Vec<TrafficOutcome>,
    /// The accounting of all bytes.
    pub ledger: Ledger,
    /// All pauses.
    pub pauses: PauseSummary,
    /// The spreading of congestion by pauses.
    pub spreading: Spreading,
    /// Links that wait for each other in a cycle.
    pub deadlock: DeadlockAnswer,
    /// The links with the longest queues, the longest first.
    pub links: Vec<LinkUse>,
    /// The peak use of a switch's shared buffer.
    pub buffer: BufferUse,
    /// Queues recorded over time.
    pub series: Vec<QueueSeries>,
    /// The work of the run: events and packets, the same for the same seed.
    pub effort: Effort,
    /// The assumptions and their sources.
    pub basis: Basis,
}

/// The outcome of the flows of one traffic entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrafficOutcome {
    /// The pattern.
    pub label: String,
    /// The number of flows.
    pub flows: usize,
    /// The number of finished flows.
    pub finished: usize,
    /// The time from start to last byte of finished flows.
    pub completion: Option<Distribution>,
    /// The completion time relative to an empty fabric.
    pub slowdown: Option<Distribution>,
    /// The mean over all flows of payload received per time.
    pub goodput_mean: Rate,
    /// The goodput of the slowest flow.
    pub goodput_min: Rate,
}

/// A distribution summarised by a few values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// The minimum.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// Bytes on the wire: injected bytes are delivered, dropped, discarded or in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Sent by hosts, retransmissions included.
    pub injected_bytes: u64,
    /// Accepted by the receivers.
    pub delivered_bytes: u64,
    /// Dropped by switches.
    pub dropped_bytes: u64,
    /// Discarded by receivers: out of order or duplicate.
    pub discarded_bytes: u64,
    /// Still in queues and on wires at the end.
    pub in_flight_bytes: u64,
    /// Packets sent.
    pub injected_packets: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
}

/// Summary of all pauses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PauseSummary {
    /// The number of pause frames sent.
    pub frames: u64,
    /// The number of links that were ever paused.
    pub links: usize,
    /// The number of paused host links, where a pause reached a sender.
    pub hosts: usize,
    /// The time at which the first pause took effect.
    pub first: Option<Seconds>,
    /// The longest single pause.
    pub longest: Seconds,
    /// The number of congestion notifications sent.
    pub notifications: u64,
}

/// The spreading of congestion by pauses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spreading {
    /// The congested egress links that caused pauses, by the link-time they paused.
    pub roots: Vec<CongestedLink>,
    /// The number of flows that were delayed by a pause at all.
    pub held_flows: usize,
    /// The number of flows delayed by congestion that is not on their path, for at least a hundredth of the run.
    pub innocent_flows: usize,
    /// The mean slowdown of those that finished.
    pub innocent_slowdown: Option<f64>,
    /// The worst of them.
    pub victims: Vec<Victim>,
}

/// A congested egress link that caused pauses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CongestedLink {
    /// The link.
    pub link: String,
    /// The time for which it paused other links, summed over them.
    pub silenced: Seconds,
}

/// A flow delayed by congestion that is not on its path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Victim {
    /// Sender and receiver.
    pub flow: String,
    /// The time that its packets waited at links that were paused for other flows, summed over links.
    pub innocent: Seconds,
    /// Payload received per time.
    pub goodput: Rate,
    /// The completion time relative to an empty fabric, if it finished.
    pub slowdown: Option<f64>,
}

/// Whether a deadlock is possible, and whether it happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeadlockAnswer {
    /// A cycle of buffers in the paths, if there is one.
    pub possible: Option<Vec<String>>,
    /// The deadlocked cycle, if there was one.
    pub happened: Option<Deadlock>,
}

/// One direction of a cable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// The link.
    pub link: String,
    /// Its rate.
    pub rate: Rate,
    /// The share of the time in which it was sending.
    pub utilisation: f64,
    /// The maximum length of its queue, in bytes.
    pub queue_max: u64,
    /// The time for which it was paused.
    pub paused: Seconds,
    /// Packets marked there.
    pub marked_packets: u64,
    /// Packets dropped before it.
    pub dropped_packets: u64,
}

/// The fullest switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BufferUse {
    /// The switch.
    pub switch: String,
    /// The peak use of its shared buffer.
    pub shared_peak_bytes: u64,
    /// The size of its shared buffer.
    pub shared_bytes: u64,
    /// The peak use of a port's headroom, over all switches.
    pub headroom_peak_bytes: u64,
}

/// The work of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Effort {
    /// Events handled.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
    /// The maximum number of packets in flight.
    pub packets_peak: usize,
}

impl Distribution {
    /// The distribution of some values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        // Nearest rank, so that it is a value that occurred.
        let at = |p: usize| values[(values.len() * p).div_ceil(100).saturating_sub(1).min(last)];
        Some(Self {
            min: values[0],
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: values[last],
            mean: values.iter().sum::<f64>() / values.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Distribution::of((1..=100).rev().map(f64::from).collect()).unwrap();
        let named = [spread.min, spread.p50, spread.p90, spread.p99, spread.max];
        assert_eq!(
            named.map(f64::to_bits),
            [1.0, 50.0, 90.0, 99.0, 100.0].map(f64::to_bits)
        );
        assert!((spread.mean - 50.5).abs() < 1e-12);
        assert_eq!(Distribution::of(Vec::new()), None);
    }
}
