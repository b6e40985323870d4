//! The published cases, as embedded scenarios.

use straightway_scenario::{
    entries,
    library::{Entry, find_in},
};

/// Every embedded scenario.
pub const CASES: &[Entry] = entries!(
    "fabric-":
    "incast-pfc",
    "incast-dcqcn",
    "incast-dctcp",
    "incast-lossy",
    "slow-receiver",
    "microburst",
    "permutation-1024",
    "rail",
    "deadlock-ring",
    "article-incast",
    "dcqcn-40g",
);

/// The scenario called `name`, with or without the `fabric-` its file starts with.
pub fn case(name: &str) -> Option<&'static Entry> {
    find_in(CASES, "fabric-", name)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::FabricScenario;
    use straightway_scenario::check::read;

    #[test]
    fn every_file_is_a_case() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
        let files: BTreeSet<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| {
                let name = name.strip_prefix("fabric-")?.strip_suffix(".toml")?;
                Some(name.to_owned())
            })
            .collect();
        let cases: BTreeSet<String> = CASES.iter().map(|case| case.name.to_owned()).collect();
        assert_eq!(files, cases);
    }

    #[test]
    fn every_case_is_valid_and_has_a_description() {
        for case in CASES {
            let scenario: FabricScenario = read(case.text).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            assert!(
                !scenario.title.is_empty() && !scenario.about.is_empty(),
                "{}",
                case.name
            );
        }
        assert!(case("fabric-rail").is_some() && case("rail").is_some());
        assert!(case("nonsense").is_none());
    }
}
