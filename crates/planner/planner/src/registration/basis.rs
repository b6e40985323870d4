//! The constants of a registration, with their sources and bands.

use straightway_scenario::provenance::{Basis, Citation};

use super::{ARTICLE, FORMULAS, PCIE_BENCH, RegistrationQuestion};

/// Published costs per page differ by two orders of magnitude between hosts and page sizes.
const PAGES: Citation = Citation::quoted("Mooncake, DingoCache, libfabric issues", "0.1 to 13 µs a page");

const UNTOUCHED: Citation = Citation::quoted(
    "Mooncake#1468, cirrus-kv#102",
    "untouched host memory: 50 GB in about 60 s, 10 GB in about 33 s",
);

/// The cost of one call, by source: from many small registrations.
const PEER_MEMORY: Citation = Citation::read(
    "ModelExpress#267, gpunet#1, Ascend/TransferQueue#79",
    "0.32 to 0.95, 1.4 and about 6 ms for a call that registers GPU memory",
);

const LIBFABRIC: Citation = Citation::read(
    "libfabric#4738, Mooncake#848, ROCm/mori#679, xdna-driver#1399, an H200 host",
    "0.28 to 0.71 µs a 4 KiB page",
);

impl RegistrationQuestion {
    pub(super) fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        basis
            .parameter("per_page", "registering one page", self.per_page.0, "s", LIBFABRIC)
            .between(0.1e-6, 13e-6, PAGES);
        basis.parameter("fixed", "fixed part of a registration", self.fixed.0, "s", ARTICLE);
        basis
            .parameter("fault", "faulting in one page", self.fault.0, "s", UNTOUCHED)
            .between(0.25e-6, 12e-6, UNTOUCHED);
        basis
            .parameter(
                "zero_rate",
                "zeroing by one thread",
                self.zero_rate.0,
                "B/s",
                Citation::ASSUMED,
            )
            .between(4e9, 15e9, Citation::ASSUMED);
        self.assume_gpu(&mut basis);
        basis
    }

    fn assume_gpu(&self, basis: &mut Basis) {
        let gds = &self.gds;
        basis
            .parameter("gds.per_page", "mapping one GPU page", gds.per_page.0, "s", LIBFABRIC)
            .between(0.28e-6, 0.71e-6, LIBFABRIC);
        basis
            .parameter(
                "gds.fixed",
                "one call that registers GPU memory",
                gds.fixed.0,
                "s",
                PEER_MEMORY,
            )
            .between(0.32e-3, 6e-3, PEER_MEMORY);
        basis.parameter("gds.setup", "one-off GDS set-up, as claimed", gds.setup.0, "s", ARTICLE);
        let cache = &self.translation;
        let entries = cache.entries as f64;
        basis.parameter(
            "translation.entries",
            "translation cache entries",
            entries,
            "",
            PCIE_BENCH,
        );
        basis.parameter("translation.miss", "translation miss", cache.miss.0, "s", PCIE_BENCH);
    }
}
