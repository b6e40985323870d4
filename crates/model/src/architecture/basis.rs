//! The constants of a comparison of architectures, with their sources and bands.

use straightway_scenario::provenance::{Basis, Source};

use super::{Architecture, FORMULAS};

const PARITY: Source = Source::quoted("protection that vendors offer", "4+2 to 146+4");

const METADATA: Source = Source::quoted(
    "Lustre manual (old) and newer reports",
    "flash and more cores: up to ten times",
);

const LUSTRE: Source = Source::read(
    "Lustre manual (old)",
    "35 k creates and 100 k stats a second for an MDS",
);

const STRUCTURE: Source = Source::quoted(
    "vendors' documents",
    "usual protection: RAID 8+2, 16+2, 146+4, 13+2",
);

impl Architecture {
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
        let same = Source::computed("the same hardware for all", "only the structure differs");
        basis.parameter(
            "hardware.servers",
            "servers",
            hardware.servers as f64,
            "",
            same,
        );
        for (i, system) in self.systems.iter().enumerate() {
            let what = format!(
                "{}: share of a write that is data (parity width)",
                system.name
            );
            let path = format!("systems[{i}].write_share");
            // Any of them can be set up with narrower or wider codes.
            basis
                .parameter(path, what, system.write_share, "", STRUCTURE)
                .between(
                    0.667_f64.min(system.write_share),
                    0.973_f64.max(system.write_share),
                    PARITY,
                );
        }
        basis
    }
}
