//! Scenarios for the planner and the simulators.

use std::ops::ControlFlow;

use straightway_fabric as fabric;
use straightway_model::scenario::Scenario;
use straightway_pcie as pcie;
use straightway_scenario::check::{self, Refusals};

use crate::assert_harmless;

/// Trials that are too many for one execution.
const TRIALS_MAX: u64 = 10_000;

/// Every refusal names its field and line.
fn assert_told(refused: &Refusals) {
    for refusal in &refused.0 {
        assert!(
            !refusal.field.is_empty() && refusal.line.is_some(),
            "{refusal:?}"
        );
        assert_harmless(&refusal.to_string());
    }
}

/// Any bytes as a scenario: an answer without NaN, or a refusal that names its field and line.
pub(crate) fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let scenario = match check::read::<Scenario>(text) {
        Err(refused) => return assert_told(&refused),
        Ok(scenario) => scenario,
    };
    // What is played out takes time that the fuzzer has better uses for.
    let trials = scenario
        .checkpoint
        .as_ref()
        .map_or(0, |c| c.trials.runs.saturating_mul(c.trials.segments));
    if scenario.qos.is_some() || trials > TRIALS_MAX {
        return;
    }
    if let Ok(answer) = scenario.answer() {
        let told = format!("{answer:?}");
        assert!(!told.contains(": NaN") && !told.contains(": inf"), "{told}");
    }
}

/// Any bytes as a tree of PCIe links: sound, or a refusal that names its field and line.
pub(crate) fn pcie(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match check::read::<pcie::Scenario>(text) {
        Err(refused) => assert_told(&refused),
        // A scenario that is sound runs; a glimpse is enough, and what ends before it is whole.
        Ok(scenario) => {
            if let Ok(outcome) = pcie::simulate(&scenario, |_| ControlFlow::Break(())) {
                assert_eq!(outcome.audit.injected_bytes, outcome.audit.delivered_bytes);
                assert_eq!(outcome.audit.credits_missing, 0);
            }
        }
    }
}

/// Any bytes as a fabric scenario: sound, or a refusal that names its field and line.
pub(crate) fn fabric(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match check::read::<fabric::Scenario>(text) {
        Err(refused) => assert_told(&refused),
        // A scenario that is sound runs, or says which flow has no path; a glimpse is enough.
        Ok(scenario) => {
            let _ = fabric::simulate(&scenario, |_| ControlFlow::Break(()));
        }
    }
}
