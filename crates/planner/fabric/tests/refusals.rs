//! Damaged scenarios: any file gives a valid scenario or a refusal that names its field and line, never a panic.

use std::ops::ControlFlow;

use proptest::prelude::*;
use straightway_fabric::{FabricScenario, cases::CASES, simulate};
use straightway_scenario::check::read;

/// Invalid values and pieces of syntax.
const NONSENSE: [&str; 16] = [
    "nan",
    "-1",
    "0",
    "1e30",
    "\"\"",
    "\"0Gb/s\"",
    "[]",
    "{}",
    "true",
    "\"h99999\"",
    "4294967295",
    "18446744073709551615",
    "\"1ns\"",
    "\"->\"",
    "]]",
    "\"\u{1F980}\"",
];

/// One of the scenarios with the value of one line replaced.
fn damaged() -> impl Strategy<Value = String> {
    let case = prop::sample::select(CASES.to_vec());
    (
        case,
        any::<prop::sample::Index>(),
        prop::sample::select(NONSENSE.to_vec()),
    )
        .prop_map(|(case, line, nonsense)| {
            let mut lines: Vec<String> = case.text.lines().map(str::to_owned).collect();
            let with_value: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].contains(" = ")).collect();
            let at = with_value[line.index(with_value.len())];
            let cut = lines[at].rfind(" = ").expect("it has a value") + 3;
            let closes = if lines[at].trim_end().ends_with('}') { " }" } else { "" };
            lines[at] = format!("{}{nonsense}{closes}", &lines[at][..cut]);
            lines.join("\n")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_scenario_is_refused_by_field_and_line_or_runs(text in damaged()) {
        match read::<FabricScenario>(&text) {
            Err(refused) => {
                for refusal in &refused.0 {
                    prop_assert!(!refusal.field.is_empty() && refusal.line.is_some(), "{refusal:?}");
                }
            }
            Ok(scenario) => {
                // At most half a million events.
                let _ = simulate(&scenario, |_| ControlFlow::Break(()));
            }
        }
    }
}
