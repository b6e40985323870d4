//! Any bytes as a scenario: an answer without NaN, or a refusal that names its field and line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use straightway_model::{check, scenario::Scenario};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match check::read::<Scenario>(text) {
        Err(refused) => {
            assert!(refused.0.iter().all(|refusal| !refusal.field.is_empty() && refusal.line.is_some()));
        }
        // What is played out takes time that the fuzzer has better uses for.
        Ok(scenario) if scenario.qos.is_some() => {}
        Ok(scenario) if scenario.checkpoint.as_ref().is_some_and(|c| c.trials.runs * c.trials.segments > 1_000_000) => {}
        Ok(scenario) => {
            if let Ok(answer) = scenario.answer() {
                let told = format!("{answer:?}");
                assert!(!told.contains(": NaN") && !told.contains(": inf"), "{told}");
            }
        }
    }
});
