//! What a run showed: who finished when, which links were full or silent, who suffered for whom.

mod measure;

use serde::Serialize;
use straightway_core::{Rate, Seconds};

use super::{deadlock::Deadlock, series::Series};
use straightway_scenario::provenance::Basis;

/// Everything a run showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// The seed it ran with.
    pub seed: u64,
    /// How much time was simulated.
    pub simulated: Seconds,
    /// What the hosts that send could send at once, all at line rate.
    pub offered: Rate,
    /// By traffic entry.
    pub traffic: Vec<Group>,
    /// What became of every byte.
    pub ledger: Ledger,
    /// Pauses in all.
    pub pauses: PauseSummary,
    /// Who was held up by whose congestion.
    pub spreading: Spreading,
    /// Links that wait for each other in a circle.
    pub deadlock: DeadlockAnswer,
    /// The busiest links.
    pub links: Vec<LinkUse>,
    /// The fullest any switch's shared buffer was, and of how much.
    pub buffer: BufferUse,
    /// Queues followed over time.
    pub series: Vec<Series>,
    /// What the run took: events and packets, the same for the same seed.
    pub effort: Effort,
    /// What is assumed and where it is from.
    pub basis: Basis,
}

/// How the flows of one traffic entry fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The pattern.
    pub label: String,
    /// Flows in all.
    pub flows: usize,
    /// Flows that finished.
    pub finished: usize,
    /// From start to last byte, of those that finished.
    pub completion: Option<Spread>,
    /// Completion against an empty fabric.
    pub slowdown: Option<Spread>,
    /// Payload received by each flow over its time, mean.
    pub goodput_mean: Rate,
    /// The slowest flow's.
    pub goodput_min: Rate,
}

/// A distribution in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// Half are at most this.
    pub p50: f64,
    /// Ninety of a hundred.
    pub p90: f64,
    /// Ninety-nine of a hundred.
    pub p99: f64,
    /// All.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

/// Bytes on the wire: what was sent is what arrived, was lost, was thrown away, or is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Sent by hosts, retransmissions included.
    pub injected_bytes: u64,
    /// Taken by the receivers.
    pub delivered_bytes: u64,
    /// Dropped by switches.
    pub dropped_bytes: u64,
    /// Thrown away by receivers: out of order or a second time.
    pub discarded_bytes: u64,
    /// Still in queues and on wires at the end.
    pub in_flight_bytes: u64,
    /// Packets sent.
    pub injected_packets: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
}

/// Pauses in all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PauseSummary {
    /// Pause frames sent.
    pub frames: u64,
    /// Links that were ever paused.
    pub links: usize,
    /// Of those, hosts' links: the pause reached the senders.
    pub hosts: usize,
    /// When the first took effect.
    pub first: Option<Seconds>,
    /// The longest single pause.
    pub longest: Seconds,
    /// Congestion notifications sent.
    pub notifications: u64,
}

/// Who was held up by whose congestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spreading {
    /// The congested egresses that pauses go back to, by the link-time they silenced.
    pub roots: Vec<Root>,
    /// Flows that were held by a pause at all.
    pub held_flows: usize,
    /// Flows held for congestion that is not on their path, for a hundredth of the run or longer.
    pub innocent_flows: usize,
    /// Mean slowdown of finished flows held innocently.
    pub innocent_slowdown: Option<f64>,
    /// The worst of them.
    pub victims: Vec<Victim>,
}

/// A congested egress.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Root {
    /// The link.
    pub link: String,
    /// The time it silenced other links, summed over them.
    pub silenced: Seconds,
}

/// A flow held for congestion it has no part in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Victim {
    /// Sender and receiver.
    pub flow: String,
    /// How long packets of it stood before links that were paused for others, summed over links.
    pub innocent: Seconds,
    /// Payload received over its time.
    pub goodput: Rate,
    /// Completion against an empty fabric, if it finished.
    pub slowdown: Option<f64>,
}

/// Deadlock: can it, did it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeadlockAnswer {
    /// A circle of buffers that the paths make, if they do.
    pub possible: Option<Vec<String>>,
    /// The circle that stood still, if one did.
    pub happened: Option<Deadlock>,
}

/// One direction of a cable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// The link.
    pub link: String,
    /// Its rate.
    pub rate: Rate,
    /// The share of the time it was sending.
    pub utilisation: f64,
    /// The longest its queue was, in bytes.
    pub queue_max: u64,
    /// How long it was paused.
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
    /// The most of its shared buffer that was taken.
    pub shared_peak_bytes: u64,
    /// The shared buffer.
    pub shared_bytes: u64,
    /// The most of one port's headroom that was taken, anywhere.
    pub headroom_peak_bytes: u64,
}

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Effort {
    /// Events handled.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
    /// The most packets under way at once.
    pub packets_peak: usize,
}

impl Spread {
    /// The distribution of some values; none of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        // The nearest rank: a value that occurred.
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
    fn a_spread_names_values_that_occurred() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect()).unwrap();
        let named = [spread.min, spread.p50, spread.p90, spread.p99, spread.max];
        assert_eq!(
            named.map(f64::to_bits),
            [1.0, 50.0, 90.0, 99.0, 100.0].map(f64::to_bits)
        );
        assert!((spread.mean - 50.5).abs() < 1e-12);
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
