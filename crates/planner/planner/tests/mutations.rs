//! Damaged scenario files: every input gives a finite answer or a refusal that names the field.

use proptest::prelude::*;
use straightway_planner::{library::LIBRARY, scenario::Scenario};
use straightway_scenario::check;

/// One modification of a text.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: usize, bit: u8 },
    Delete { at: usize, len: usize },
    Number { nth: usize, with: &'static str },
    Swap { a: usize, b: usize },
    Repeat { line: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    let wild = prop::sample::select(vec![
        "1e308",
        "-1",
        "nan",
        "inf",
        "\"zzz\"",
        "0",
        "1e-300",
        "\"1e30TB\"",
        "9223372036854775807",
        "[]",
        "{}",
        "true",
    ]);
    prop_oneof![
        (any::<usize>(), 0u8..7).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (any::<usize>(), 1usize..40).prop_map(|(at, len)| Damage::Delete { at, len }),
        (any::<usize>(), wild).prop_map(|(nth, with)| Damage::Number { nth, with }),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Damage::Swap { a, b }),
        any::<usize>().prop_map(|line| Damage::Repeat { line }),
    ]
}

fn apply(text: &str, damage: &Damage) -> String {
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return text.to_owned();
    }
    match damage {
        Damage::Flip { at, bit } => {
            let mut bytes = text.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Damage::Delete { at, len } => {
            let chars: Vec<char> = text.chars().collect();
            let at = at % chars.len();
            let end = (at + len).min(chars.len());
            chars[..at].iter().chain(&chars[end..]).collect()
        }
        Damage::Number { nth, with } => {
            let valued: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].contains(" = ")).collect();
            if valued.is_empty() {
                return text.to_owned();
            }
            let at = valued[nth % valued.len()];
            let key = lines[at].split(" = ").next().unwrap_or_default();
            let changed = format!("{key} = {with}");
            joined(
                lines
                    .iter()
                    .enumerate()
                    .map(|(i, line)| if i == at { &changed } else { *line }),
            )
        }
        Damage::Swap { a, b } => {
            let mut lines = lines.clone();
            let (a, b) = (a % lines.len(), b % lines.len());
            lines.swap(a, b);
            joined(lines.into_iter())
        }
        Damage::Repeat { line } => {
            let at = line % lines.len();
            let twice = lines
                .iter()
                .enumerate()
                .flat_map(|(i, line)| vec![*line; 1 + usize::from(i == at)]);
            joined(twice)
        }
    }
}

fn joined<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// Whether the simulation of a scenario is short. Long simulations are tested elsewhere.
fn quick(scenario: &Scenario) -> bool {
    scenario
        .qos
        .as_ref()
        .is_none_or(|qos| qos.capacity * qos.duration.0 < 1e5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_damaged_scenario_is_answered_or_refused_by_field_and_line(
        entry in prop::sample::select(LIBRARY),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let text = damages.iter().fold(entry.text.to_owned(), |text, damage| apply(&text, damage));
        match check::read::<Scenario>(&text) {
            Err(refused) => {
                prop_assert!(!refused.0.is_empty());
                for refusal in refused.0 {
                    prop_assert!(!refusal.field.is_empty(), "{refusal:?}");
                    prop_assert!(!refusal.allowed.is_empty(), "{refusal:?}");
                    let lines = text.lines().count().max(1);
                    prop_assert!(refusal.line.is_some_and(|line| (1..=lines + 1).contains(&line)), "{refusal:?}");
                }
            }
            Ok(scenario) if quick(&scenario) => match scenario.answer() {
                Ok(answer) => {
                    let told = format!("{answer:?}");
                    let wild = told.find(": NaN").or_else(|| told.find(": inf"));
                    let near = wild.map(|at| told[..at].rsplit(' ').next().unwrap_or_default());
                    prop_assert!(near.is_none(), "{near:?} in the answer to\n{text}");
                }
                Err(refused) => prop_assert!(refused.0.iter().all(|r| r.field.contains('.'))),
            },
            Ok(_) => {}
        }
    }
}
