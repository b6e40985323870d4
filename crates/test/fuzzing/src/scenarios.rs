//! Scenarios for the cluster planner and the simulators.

use std::ops::ControlFlow;

use straightway_fabric as fabric;
use straightway_pcie as pcie;
use straightway_planner::scenario::Scenario;
use straightway_scenario::check::{self, Refusals};

use crate::assert_harmless;

/// The maximum number of trials in one execution.
const TRIALS_MAX: u64 = 10_000;

/// Asserts that every refusal has its field and line.
fn assert_has_location(refused: &Refusals) {
    for refusal in &refused.0 {
        assert!(!refusal.field.is_empty() && refusal.line.is_some(), "{refusal:?}");
        assert_harmless(&refusal.to_string());
    }
}

/// Any bytes as a scenario. It gives an answer without NaN, or a refusal with its field and line.
pub(crate) fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let scenario = match check::read::<Scenario>(text) {
        Err(refused) => return assert_has_location(&refused),
        Ok(scenario) => scenario,
    };
    // Simulating trials is too slow for the fuzzer.
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

/// Any bytes as a tree of PCIe links. It is valid, or refused with its field and line.
pub(crate) fn pcie(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match check::read::<pcie::PcieScenario>(text) {
        Err(refused) => assert_has_location(&refused),
        // A valid scenario runs. A short run is enough, and a run that ends before its limit is complete.
        Ok(scenario) => {
            if let Ok(outcome) = pcie::simulate(&scenario, |_| ControlFlow::Break(())) {
                assert_eq!(outcome.audit.injected_bytes, outcome.audit.delivered_bytes);
                assert_eq!(outcome.audit.credits_missing, 0);
            }
        }
    }
}

/// Any bytes as a fabric scenario. It is valid, or refused with its field and line.
pub(crate) fn fabric(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match check::read::<fabric::FabricScenario>(text) {
        Err(refused) => assert_has_location(&refused),
        // A valid scenario runs, or reports a flow without a path. A short run is enough.
        Ok(scenario) => {
            let _ = fabric::simulate(&scenario, |_| ControlFlow::Break(()));
        }
    }
}
