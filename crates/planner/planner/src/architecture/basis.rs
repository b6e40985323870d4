//! The constants of a comparison of architectures, with their sources and bands.

use straightway_scenario::provenance::{Basis, Citation, Confidence};

use super::{ArchitectureQuestion, FORMULAS};
use crate::servers::assume_efficiency;

/// The narrowest and the widest erasure code in use. The operator of a system chooses the code.
const PARITY: Citation = Citation {
    name: "an assumption",
    place: "any of them may run 2+2 up to 146+4",
    confidence: Confidence::Assumed,
};

const METADATA: Citation = Citation::quoted(
    "Lustre manual (old) and newer reports",
    "flash and more cores: up to ten times",
);

const LUSTRE: Citation = Citation::read(
    "Lustre manual (old)",
    "35 k creates and 100 k stats a second for an MDS",
);

/// Only VAST's code width was read in a source (storagemath.com, "Understanding VAST Data's Erasure Coding
/// Architecture").
const VAST_CODE: Citation = Citation::read("VAST, capacity tier", "146+4, 2.7 % of parity");

const USUAL_CODE: Citation = Citation {
    name: "an assumption",
    place: "RAID 8+2, 16+2, 13+2",
    confidence: Confidence::Assumed,
};

/// A drive of the class that servers of 2024 hold.
const TARGET: Citation = Citation {
    name: "an assumption",
    place: "NVMe drives have 3.84 to 61.44 TB",
    confidence: Confidence::Assumed,
};

impl ArchitectureQuestion {
    pub(super) fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        let hardware = &self.hardware;
        let (creates, stats) = (hardware.creates_per_s, hardware.stats_per_s);
        basis
            .parameter(
                "hardware.creates_per_s",
                "creates of a metadata server",
                creates,
                "per s",
                LUSTRE,
            )
            .between(35e3, 200e3, METADATA);
        basis
            .parameter(
                "hardware.stats_per_s",
                "lookups of a metadata server",
                stats,
                "per s",
                LUSTRE,
            )
            .between(100e3, 1e6, METADATA);
        let what = "share of line rates that carries data";
        assume_efficiency(&mut basis, "hardware.efficiency", what, hardware.efficiency);
        let same = Citation::computed("the same hardware for all", "only the structure differs");
        basis.parameter("hardware.servers", "servers", hardware.servers as f64, "", same);
        let capacity = hardware.target_capacity.0 as f64;
        let what = "capacity of a target";
        basis.parameter("hardware.target_capacity", what, capacity, "B", TARGET);
        for (i, system) in self.systems.iter().enumerate() {
            let what = format!("{}: share of a write that is data (parity width)", system.name);
            let path = format!("systems[{i}].write_share");
            // Any system can be configured with narrower or wider codes.
            basis
                .parameter(path, what, system.write_share, "", code(&system.name))
                .between(
                    0.5_f64.min(system.write_share),
                    (146.0 / 150.0_f64).max(system.write_share),
                    PARITY,
                );
        }
        basis
    }
}

fn code(system: &str) -> Citation {
    if system == "vast" { VAST_CODE } else { USUAL_CODE }
}
