//! The allowed values of a scenario.

use std::ops::RangeInclusive;

use straightway_core::{Bytes, Rate, Seconds};

use super::{
    CHANNELS_MAX, Channels, Credits, DEPTH_MAX, NODES_MAX, NodeKind, NodeSpec, PcieScenario, PcieSettings,
    SIMULATED_MAX, STREAMS_MAX, StreamSpec,
};
use crate::{
    link::{LANES, PAYLOADS},
    topology,
};
use straightway_scenario::check::{Checkable, Checker};

/// The slowest and the fastest allowed rate.
const RATES: RangeInclusive<Rate> = Rate(1e6)..=Rate(1e13);
/// The latency of a link. It must not be zero, since the simulator's events need a future; the maximum is a thousand
/// times the latency of the longest cable.
const LINK_LATENCIES: RangeInclusive<Seconds> = Seconds(1e-9)..=Seconds(1e-3);
/// Latencies of devices, which may be zero. A device that takes more than a second is broken.
const PAUSES: RangeInclusive<Seconds> = Seconds(0.0)..=Seconds(1.0);

impl Checkable for PcieScenario {
    fn check(&self, c: &mut Checker) {
        c.nested("pcie", &self.pcie);
        c.nested("credits", &self.credits);
        c.nested("channels", &self.channels);
        if let Some(machine) = &self.machine {
            c.nested("machine", machine);
        }
        let nodes_min = usize::from(self.machine.is_none());
        c.each("node", &self.node, nodes_min..=NODES_MAX);
        c.each("stream", &self.stream, 1..=STREAMS_MAX);
        c.each("claims", &self.claims, 0..=64);
        // An invalid machine has no tree to check.
        if self.machine.is_none() || c.is_clean() {
            topology::check(self, c);
        }
    }
}

/// Refuses a payload size that is not in the specification.
fn payload(c: &mut Checker, field: &str, bytes: Bytes) {
    if !PAYLOADS.iter().any(|known| u64::from(*known) == bytes.0) {
        c.refuse(field, bytes, "128, 256, 512, 1024, 2048 or 4096 bytes");
    }
}

impl Checkable for PcieSettings {
    fn check(&self, c: &mut Checker) {
        payload(c, "mps", self.mps);
        payload(c, "mrrs", self.mrrs);
        c.seconds("link_latency", self.link_latency, LINK_LATENCIES);
        // Ten-bit tags; the first 256 are reserved for eight-bit ones.
        c.count("tags", self.tags, 1..=1024);
    }
}

impl Checkable for Credits {
    fn check(&self, c: &mut Checker) {
        // A receiver must accept at least one TLP of the largest payload, else nothing moves.
        let headers = 1..=4095;
        let data = Bytes(4096)..=Bytes::mib(16);
        c.count("posted_headers", self.posted_headers, headers.clone());
        c.bytes("posted_data", self.posted_data, data.clone());
        c.count("nonposted_headers", self.nonposted_headers, headers.clone());
        c.count("completion_headers", self.completion_headers, headers);
        c.bytes("completion_data", self.completion_data, data);
    }
}

impl Checkable for Channels {
    fn check(&self, c: &mut Checker) {
        let most = CHANNELS_MAX as u64;
        c.count("count", self.count, 1..=most);
        for (i, vc) in self.map.iter().enumerate() {
            c.count(&format!("map[{i}]"), *vc, 0..=self.count.saturating_sub(1));
        }
        for (i, weight) in self.weights.iter().enumerate() {
            c.count(&format!("weights[{i}]"), *weight, 1..=1024);
        }
        let lengths = [("map", self.map.len()), ("weights", self.weights.len())];
        for (field, len) in lengths {
            if len > CHANNELS_MAX {
                c.refuse(field, format!("{len} entries"), format!("at most {most} entries"));
            }
        }
    }
}

impl Checkable for NodeSpec {
    fn check(&self, c: &mut Checker) {
        if self.id.is_empty() || self.id.len() > 64 {
            c.refuse("id", format!("{:?}", self.id), "a name of 1 to 64 characters");
        }
        if let Some(count) = self.count {
            c.count("count", count, 1..=NODES_MAX as u64);
        }
        self.check_link(c);
        let rates = [
            ("memory_rate", self.memory_rate),
            ("media_rate", self.media_rate),
            ("media_write_rate", self.media_write_rate),
            ("peer_rate", self.peer_rate),
            ("dma_copy_rate", self.dma_copy_rate),
        ];
        for (field, rate) in rates {
            if let Some(rate) = rate {
                c.rate(field, rate, RATES);
            }
        }
        for (field, per_s) in [
            ("dma_writes_per_s", self.dma_writes_per_s),
            ("dma_reads_per_s", self.dma_reads_per_s),
        ] {
            if let Some(per_s) = per_s {
                c.range(field, per_s, 1e3..=1e10, "a second");
            }
        }
        for (field, bytes) in [("dma_chunk", self.dma_chunk), ("completion", self.completion)] {
            if let Some(bytes) = bytes {
                c.bytes(field, bytes, Bytes(16)..=Bytes(4096));
            }
        }
        let pauses = [
            ("latency", self.latency),
            ("dma_latency", self.dma_latency),
            ("dma_partial_word", self.dma_partial_word),
            ("jitter", self.jitter),
            ("commit", self.commit),
        ];
        for (field, pause) in pauses {
            if let Some(pause) = pause {
                c.seconds(field, pause, PAUSES);
            }
        }
        if let Some(tags) = self.tags {
            c.count("tags", tags, 1..=1024);
        }
        if let Some(weight) = self.weight {
            c.count("weight", weight, 1..=1024);
        }
        self.check_kind(c);
    }
}

impl NodeSpec {
    /// Checks the link to the parent.
    fn check_link(&self, c: &mut Checker) {
        if let Some(lanes) = self.lanes
            && !LANES.contains(&lanes)
        {
            c.refuse("lanes", lanes, "1, 2, 4, 8 or 16");
        }
        if let Some(rate) = self.rate {
            c.rate("rate", rate, RATES);
        }
        if let Some(latency) = self.link_latency {
            c.seconds("link_latency", latency, LINK_LATENCIES);
        }
        if let Some(mps) = self.mps {
            payload(c, "mps", mps);
        }
        let pcie = self.generation.is_some() && self.lanes.is_some();
        let half = self.generation.is_some() != self.lanes.is_some();
        if self.parent.is_some() && self.kind != NodeKind::RootPort {
            if half || pcie == self.rate.is_some() {
                c.refuse(
                    "gen",
                    self.link_text(),
                    "`gen` and `lanes` together, or `rate` for a link that is not PCIe",
                );
            }
        } else if self.parent.is_none() && (pcie || half || self.rate.is_some()) {
            c.refuse("gen", self.link_text(), "no link: the root has nothing above it");
        }
    }

    fn link_text(&self) -> String {
        let part =
            |name: &str, value: Option<String>| value.map_or_else(|| format!("no {name}"), |v| format!("{name} {v}"));
        [
            part("gen", self.generation.map(|g| u8::from(g).to_string())),
            part("lanes", self.lanes.map(|l| l.to_string())),
            part("rate", self.rate.map(|r| r.to_string())),
        ]
        .join(", ")
    }

    /// Refuses fields that do not apply to this kind of node.
    fn check_kind(&self, c: &mut Checker) {
        let drive = matches!(self.kind, NodeKind::Drive | NodeKind::Hca);
        let host = self.kind == NodeKind::Host;
        let endpoint = !self.kind.forwards();
        let wrong = [
            (
                "media_rate",
                self.media_rate.is_some() && !drive,
                "only on a drive or an HCA",
            ),
            (
                "media_write_rate",
                self.media_write_rate.is_some() && !drive,
                "only on a drive or an HCA",
            ),
            ("peer_rate", self.peer_rate.is_some() && !host, "only on a host"),
            (
                "memory_rate",
                self.memory_rate.is_some() && !endpoint,
                "only where data ends",
            ),
            ("commit", self.commit.is_some() && !endpoint, "only where data ends"),
            (
                "jitter",
                self.jitter.is_some() && !endpoint,
                "only where data ends or starts",
            ),
        ];
        for (field, is_wrong, allowed) in wrong {
            if is_wrong {
                c.refuse(field, format!("given on a {:?}", self.kind).to_lowercase(), allowed);
            }
        }
    }
}

impl Checkable for StreamSpec {
    fn check(&self, c: &mut Checker) {
        c.bytes("size", self.size, Bytes(1)..=Bytes(1 << 50));
        c.bytes("io", self.io, Bytes(1)..=Bytes::gib(4));
        c.count("depth", self.depth, 1..=DEPTH_MAX);
        c.seconds("start", self.start, Seconds(0.0)..=SIMULATED_MAX);
        c.count("tc", self.tc, 0..=7);
        c.count("weight", self.weight, 1..=1024);
        if let Some(fence) = self.fence {
            c.bytes("fence", fence, Bytes(64)..=Bytes::gib(4));
        }
    }
}
