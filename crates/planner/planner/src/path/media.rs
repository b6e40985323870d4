//! The drives behind a node: its share of a storage system, or the drives of its machine.

use serde::{Deserialize, Serialize};
use straightway_core::{Rate, Seconds};
use straightway_pcie::machine::Drives;

use super::{ComputeNode, Flow};

/// One node's share of the drives. What is absent is that of the machine's drives if there is no network hop, and the
/// planner's default otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeMedia {
    /// The time to the first byte.
    pub latency: Option<Seconds>,
    /// The sustained rate of the drives for this node, in both directions.
    pub rate: Option<Rate>,
    /// The rate of one drive. One I/O is moved by one drive.
    pub drive_rate: Option<Rate>,
}

/// The default latency of the storage system's drives: a flash read under load; a DGX-2 saw 135 to 163 µs for 4 KB
/// through the stack.
const LATENCY: Seconds = Seconds(100e-6);

/// The default share of the storage system that one node has.
const RATE: Rate = Rate(50e9);

/// The media of a node, resolved.
pub(super) struct Media {
    pub(super) latency_s: f64,
    /// All drives together, in bytes per second.
    pub(super) all: f64,
    /// One drive, in bytes per second.
    pub(super) one: f64,
}

impl ComputeNode {
    /// The machine's drives, if they are the storage; empty with a network hop.
    pub(super) fn local_drives(&self) -> &[Drives] {
        match (&self.hop, &self.machine) {
            (None, Some(machine)) => &machine.drives,
            _ => &[],
        }
    }

    /// The media of the node in one direction.
    pub(super) fn media(&self, flow: Flow) -> Media {
        let given = &self.media;
        let local = self.local_drives();
        let count: u64 = local.iter().map(|drives| drives.count).sum();
        let over = |of: &dyn Fn(&Drives) -> f64| -> f64 { local.iter().map(|d| d.count as f64 * of(d)).sum() };
        let rate_of = |drives: &Drives| match flow {
            Flow::Read => drives.rate.0,
            Flow::Write => drives.write_rate().0,
        };
        let (latency, rate, one) = if count > 0 {
            let rate = over(&rate_of);
            // Drives of several kinds count with their mean.
            (over(&|d| d.latency.0) / count as f64, rate, rate / count as f64)
        } else {
            let one = Drives::default();
            (LATENCY.0, RATE.0, rate_of(&one))
        };
        let all = given.rate.map_or(rate, |rate| rate.0);
        Media {
            latency_s: given.latency.map_or(latency, |latency| latency.0),
            all,
            one: given.drive_rate.map_or(one, |rate| rate.0).min(all),
        }
    }
}
