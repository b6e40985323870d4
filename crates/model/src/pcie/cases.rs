//! The published cases, as scenarios that come with the program.

use crate::scenario::library::Entry;

/// Embeds `scenarios/pcie-NAME.toml`.
macro_rules! cases {
    ($($name:literal),* $(,)?) => {
        &[$(Entry {
            name: $name,
            text: include_str!(concat!("../../../../scenarios/pcie-", $name, ".toml")),
        }),*]
    };
}

/// Every embedded scenario.
pub const CASES: &[Entry] = cases![
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
    "gen6",
];

/// The scenario called `name`, with or without the `pcie-` its file starts with.
pub fn case(name: &str) -> Option<&'static Entry> {
    let name = name.strip_prefix("pcie-").unwrap_or(name);
    CASES.iter().find(|case| case.name == name)
}
