//! Scenario files that must be refused, each with its expected message.
//!
//! The first line of a file is a comment with the expected refusal.

use std::{fs, path::Path};

use straightway_planner::scenario::Scenario;
use straightway_scenario::check;

#[test]
fn every_attack_is_refused_with_the_expected_message() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../attacks/scenarios");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "only {} attacks", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let expected = text.lines().next().unwrap().strip_prefix("# refused: ").unwrap();
        let refused = match check::read::<Scenario>(&text) {
            Err(refused) => refused,
            Ok(scenario) => scenario.answer().expect_err("must be refused").located(&text),
        };
        let told = refused.to_string();
        assert!(
            told.contains(expected),
            "{}: expected `{expected}`, got `{told}`",
            file.display()
        );
    }
}
