//! Any bytes as a tree of PCIe links: sound, or a refusal that names its field and line.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use straightway_model::{check, pcie};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match check::read::<pcie::Scenario>(text) {
        Err(refused) => {
            assert!(refused.0.iter().all(|refusal| !refusal.field.is_empty() && refusal.line.is_some()));
        }
        // A scenario that is sound runs; a glimpse is enough, and what ends before it is whole.
        Ok(scenario) => {
            if let Ok(outcome) = pcie::simulate(&scenario, |_| ControlFlow::Break(())) {
                assert_eq!(outcome.audit.injected_bytes, outcome.audit.delivered_bytes);
                assert_eq!(outcome.audit.credits_missing, 0);
            }
        }
    }
});
