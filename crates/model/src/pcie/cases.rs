//! The published cases, as scenarios that come with the program.

/// A scenario known by name.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The TOML, as it stands in `scenarios/`.
    pub text: &'static str,
}

/// Embeds `scenarios/pcie-NAME.toml`.
macro_rules! cases {
    ($($name:literal),* $(,)?) => {
        [$(Case {
            name: $name,
            text: include_str!(concat!("../../../../scenarios/pcie-", $name, ".toml")),
        }),*]
    };
}

/// Every embedded scenario.
pub const CASES: [Case; 11] = cases![
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

/// The scenario called `name`.
pub fn case(name: &str) -> Option<Case> {
    CASES.into_iter().find(|case| case.name == name)
}
