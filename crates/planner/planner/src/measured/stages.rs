//! Predicts the rate of a route from its stages.
//!
//! Each stage is measured alone, with the I/O size, the depth and the lanes of the route. The model says how stages
//! combine: a ring overlaps them, a lane of the page cache runs them one after the other, and in a synced write through
//! the page cache the drive starts when the kernel's writeback does.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate};
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY},
    provenance::{Citation, Formula},
};

use super::{Operation, Through};

/// The measured stages of the routes. What was not measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stages {
    /// The drive into the slots of a ring, repeatedly. A core reads the slots in between and copies nothing.
    pub drive_to_ring: Option<Rate>,
    /// The combined copies of all lanes from a ring into memory.
    pub ring_to_memory: Option<Rate>,
    /// The drive into the page cache, block by block; nothing is copied.
    pub drive_to_cache: Option<Rate>,
    /// The combined copies of all lanes from a freshly filled page cache into memory.
    pub cache_to_memory: Option<Rate>,
    /// The combined copies of all lanes from memory into a ring.
    pub memory_to_ring: Option<Rate>,
    /// The slots of a ring to the drive, repeatedly, synced. A core writes to the slots in between.
    pub ring_to_drive: Option<Rate>,
    /// The combined copies of all lanes from memory into the page cache of a new file, not synced.
    pub memory_to_cache: Option<Rate>,
    /// Memory to the drive in I/Os as large as those of the kernel's writeback, synced.
    pub memory_to_drive: Option<Rate>,
    /// The size of the write through the page cache.
    pub cache_written: Option<Bytes>,
    /// The amount of dirty memory at which the kernel's background writeback starts.
    pub writeback_start: Option<Bytes>,
}

/// The predicted rate of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Predicted {
    pub(super) rate_bytes_per_s: f64,
    /// The measurements it uses.
    pub(super) from: &'static str,
}

/// The formulas of this file.
pub(super) const FORMULAS: [Formula; 3] = [
    Formula {
        gives: "rate of a ring in host memory",
        text: "B = min(drive with the ring's memory, copies of all lanes)",
        source: Citation::computed("a pipeline: slots are copied while others are in flight", ""),
    },
    Formula {
        gives: "rate of a cold read through the page cache",
        text: "1 / B = 1 / B_fill + 1 / B_copy",
        source: Citation::computed(
            "Little's law: a lane waits for its block, copies it, and only then asks for the next",
            "",
        ),
    },
    Formula {
        gives: "rate of a synced write through the page cache",
        text: "B = S / max(S / B_copy, min(S, S_start) / B_copy + S / B_drive), S_start: writeback begins",
        source: Citation::read(
            "Linux, Documentation/admin-guide/sysctl/vm.rst",
            "dirty_background_ratio",
        ),
    },
];

impl Stages {
    /// All rates, with the names of their fields.
    pub(super) fn list(&self) -> [(&'static str, Option<Rate>); 8] {
        [
            ("drive_to_ring", self.drive_to_ring),
            ("ring_to_memory", self.ring_to_memory),
            ("drive_to_cache", self.drive_to_cache),
            ("cache_to_memory", self.cache_to_memory),
            ("memory_to_ring", self.memory_to_ring),
            ("ring_to_drive", self.ring_to_drive),
            ("memory_to_cache", self.memory_to_cache),
            ("memory_to_drive", self.memory_to_drive),
        ]
    }

    /// Predicts the rate of a route; `None` if one of its stages was not measured.
    pub(super) fn predict(&self, work: Operation, through: Through) -> Option<Predicted> {
        let predicted = |rate_bytes_per_s, from| Predicted { rate_bytes_per_s, from };
        match (work, through) {
            (Operation::Read, Through::HostRing) => {
                let (drive, copies) = (self.drive_to_ring?.0, self.ring_to_memory?.0);
                let from = "the drive into the ring's memory without copies, and the copies without the drive: \
                            the slower of the two";
                Some(predicted(drive.min(copies), from))
            }
            (Operation::Write, Through::HostRing) => {
                let (drive, copies) = (self.ring_to_drive?.0, self.memory_to_ring?.0);
                let from = "the drive out of the ring's memory without copies, and the copies without the drive: \
                            the slower of the two";
                Some(predicted(drive.min(copies), from))
            }
            (Operation::Read, Through::PageCache) => {
                let (drive, copies) = (self.drive_to_cache?.0, self.cache_to_memory?.0);
                let from = "the drive into the page cache without copies, and copies out of what it \
                            has just filled, without the drive: one after the other in each lane";
                Some(predicted(1.0 / (1.0 / drive + 1.0 / copies), from))
            }
            (Operation::Write, Through::PageCache) => {
                let (drive, copies) = (self.memory_to_drive?.0, self.memory_to_cache?.0);
                let from = "copies into the page cache without a sync, and the drive by O_DIRECT in I/Os of 4 MiB: \
                            one after the other up to where the kernel's writeback begins";
                Some(predicted(self.synced(drive, copies), from))
            }
            (_, Through::GpuRing | Through::Peer) => None,
        }
    }

    /// The rate of a synced write: the drive starts when background writeback does, or when all is copied.
    fn synced(&self, drive: f64, copies: f64) -> f64 {
        let written = self.cache_written.map_or(1.0, |bytes| bytes.0 as f64);
        let start = self.writeback_start.map_or(written, |bytes| bytes.0 as f64);
        let begins_s = start.min(written) / copies;
        written / (written / copies).max(begins_s + written / drive)
    }
}

impl Checkable for Stages {
    fn check(&self, c: &mut Checker) {
        for (field, rate) in self.list() {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
        for (field, bytes) in [
            ("cache_written", self.cache_written),
            ("writeback_start", self.writeback_start),
        ] {
            if let Some(bytes) = bytes {
                c.bytes(field, bytes, BYTES_ANY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        measured::{MeasuredMachine, MeasuredRoute},
        path::ComputeNode,
    };
    use straightway_scenario::near::near;

    #[expect(clippy::unnecessary_wraps, reason = "measurements are optional")]
    fn gb(rate: f64) -> Option<Rate> {
        Some(Rate(rate * 1e9))
    }

    fn stages() -> Stages {
        Stages {
            drive_to_ring: gb(4.2),
            ring_to_memory: gb(12.0),
            drive_to_cache: gb(2.5),
            cache_to_memory: gb(10.0),
            memory_to_ring: gb(12.0),
            ring_to_drive: gb(2.9),
            memory_to_cache: gb(4.0),
            memory_to_drive: gb(2.4),
            cache_written: Some(Bytes::gib(1)),
            writeback_start: Some(Bytes::gib(12)),
        }
    }

    fn rate(stages: &Stages, work: Operation, through: Through) -> f64 {
        stages.predict(work, through).unwrap().rate_bytes_per_s / 1e9
    }

    #[test]
    fn a_ring_overlaps_drive_and_copies_and_a_lane_of_the_page_cache_does_not() {
        let mut stages = stages();
        near(rate(&stages, Operation::Read, Through::HostRing), 4.2, 1e-9);
        near(rate(&stages, Operation::Write, Through::HostRing), 2.9, 1e-9);
        near(rate(&stages, Operation::Read, Through::PageCache), 2.0, 1e-9);
        near(rate(&stages, Operation::Write, Through::PageCache), 1.5, 1e-9);
        // Copies that are slower than the drive bound a ring.
        stages.ring_to_memory = gb(3.0);
        near(rate(&stages, Operation::Read, Through::HostRing), 3.0, 1e-9);
        stages.ring_to_memory = None;
        assert_eq!(stages.predict(Operation::Read, Through::HostRing), None);
    }

    #[test]
    fn the_drive_overlaps_the_copies_once_writeback_starts() {
        let written = |start| Stages {
            writeback_start: Some(start),
            ..stages()
        };
        // A quarter is copied alone: 1/16 s, and then 1 / 2.4 s.
        let quarter = rate(&written(Bytes::mib(256)), Operation::Write, Through::PageCache);
        near(quarter, 1.0 / (1.0 / 16.0 + 1.0 / 2.4), 1e-6);
        let at_once = rate(&written(Bytes(1)), Operation::Write, Through::PageCache);
        near(at_once, 2.4, 1e-6);
        let mut slow = written(Bytes(1));
        slow.memory_to_cache = gb(1.0);
        near(rate(&slow, Operation::Write, Through::PageCache), 1.0, 1e-6);
    }

    #[test]
    fn a_route_is_predicted_from_its_stages_and_not_from_its_own_rate() {
        let measured = |whole: f64| MeasuredMachine {
            stages: stages(),
            drive: MeasuredRoute {
                read: gb(3.6),
                write: gb(2.4),
                ..MeasuredRoute::default()
            },
            buffered: MeasuredRoute {
                read: gb(whole),
                read_spread: Some(0.2),
                write: gb(whole),
                ..MeasuredRoute::default()
            },
            staged: MeasuredRoute {
                read: gb(whole),
                write: gb(whole),
                ..MeasuredRoute::default()
            },
            ..MeasuredMachine::default()
        };
        let rows = |whole| measured(whole).compare(&ComputeNode::default()).rows;
        let (one, other) = (rows(2.0), rows(3.0));
        assert_eq!(one.len(), 4);
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one.calibrated.to_bits(), other.calibrated.to_bits());
            assert_eq!(one.why, None, "a row with measured stages has no reason to miss");
        }
        assert!(one[0].is_noisy() && !one[1].is_noisy());
    }

    #[test]
    fn one_row_of_four_may_not_miss_even_with_a_reason() {
        let mut measured = MeasuredMachine {
            drive: MeasuredRoute {
                read: gb(3.6),
                write: gb(2.4),
                ..MeasuredRoute::default()
            },
            buffered: MeasuredRoute {
                write: gb(0.5),
                ..MeasuredRoute::default()
            },
            ..MeasuredMachine::default()
        };
        let compared = measured.compare(&ComputeNode::default());
        assert!(compared.rows[0].why.is_some() && !compared.holds());
        // With its stages the same route follows.
        measured.stages = stages();
        measured.buffered.write = gb(1.5);
        assert!(measured.compare(&ComputeNode::default()).holds());
    }
}
