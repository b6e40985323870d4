//! The published cases, as embedded scenarios.

use straightway_scenario::{
    entries,
    library::{Entry, find_in},
};

/// Every embedded scenario.
pub const CASES: &[Entry] = entries!(
    "pcie-":
    "article-8gpu",
    "article-1gpu",
    "article-fences",
    "article-classes",
    "dgx2-same-switch",
    "dgx2-other-switch",
    "dgx2-iops",
    "nfp6000-writes",
    "nfp6000-latency",
    "dgx-h100",
    "dgx-b200",
    "dgx2-8-ports",
    "gen6",
);

/// The scenario called `name`, with or without the `pcie-` its file starts with.
pub fn case(name: &str) -> Option<&'static Entry> {
    find_in(CASES, "pcie-", name)
}
