//! The scenarios that ship with Straightway, one for every published case.
//!
//! The files under `scenarios/` are compiled in, so `--scenario llama3-405b` needs no file at run time.

use straightway_scenario::{
    entries,
    library::{Entry, find_in},
};

/// Every scenario, by name.
pub const LIBRARY: &[Entry] = entries!(
    "":
    "article-1t-24tb",
    "article-200gb",
    "article-50tb",
    "article-architectures",
    "article-gds-gain",
    "article-half-hour",
    "article-nvme-tcp",
    "article-registration-1gb",
    "article-registration-1mb",
    "article-transports",
    "dedup-1pb",
    "dgx-b200-storage",
    "dgx2-cross",
    "dgx2-storage",
    "dpu-400g",
    "farm-16mb",
    "h200-page-cache",
    "h200-registration",
    "iotlb-broadwell",
    "libfabric-4738",
    "llama3-405b",
    "lustre-one-file",
    "metadata-storm",
    "mlcommons-100k",
    "mlperf-1t",
    "mlperf-405b",
    "mlperf-70b",
    "mlperf-8b",
    "mlperf-aistore-405b",
    "mlperf-aistore-70b",
    "multi-rail",
    "noisy-neighbour",
    "s3-200gb",
    "sn4280-100g-300m",
    "sn4280-100g-40m",
    "sn4280-100g-5m",
    "sn4280-200g-300m",
    "sn4280-200g-40m",
    "sn4280-200g-5m",
    "sn4280-400g-300m",
    "sn4280-400g-40m",
    "sn4280-400g-5m",
    "unet3d-b200",
    "unet3d-h100",
);

/// Finds a scenario by name.
pub fn find(name: &str) -> Option<&'static Entry> {
    find_in(LIBRARY, "", name)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use straightway_scenario::check;

    use crate::scenario::Scenario;

    #[test]
    fn every_file_is_in_the_library() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
        let files: BTreeSet<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
            // The simulators have their own lists.
            .filter(|name| !name.starts_with("pcie-") && !name.starts_with("fabric-"))
            .collect();
        let library: BTreeSet<String> = LIBRARY.iter().map(|e| e.name.to_owned()).collect();
        assert_eq!(files, library);
    }

    /// Every row of published figures that the files carry, with its source and tolerance.
    #[test]
    fn every_published_figure_holds_or_fails_as_its_file_says() {
        let (mut judged, mut wrong) = (0, Vec::new());
        for entry in LIBRARY {
            let scenario: Scenario = check::read(entry.text).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            let answer = scenario.answer().unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            let corrections = &answer.basis().corrections;
            assert_eq!(
                corrections.len(),
                scenario.claims.len(),
                "{}: a claim about nothing",
                entry.name
            );
            for (claim, correction) in scenario.claims.iter().zip(corrections) {
                if correction.holds != claim.holds {
                    wrong.push(format!("{}: {correction:?}", entry.name));
                }
                assert!(claim.holds || !claim.why.is_empty(), "{}: say why", claim.says);
                judged += 1;
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(judged >= 60, "only {judged} figures");
    }
}
