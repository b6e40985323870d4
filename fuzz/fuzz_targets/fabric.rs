//! Any bytes as a fabric scenario: sound, or a refusal that names its field and line.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use straightway_model::{check, fabric};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match check::read::<fabric::Scenario>(text) {
        Err(refused) => {
            assert!(refused.0.iter().all(|refusal| !refusal.field.is_empty() && refusal.line.is_some()));
        }
        // A scenario that is sound runs, or says which flow has no path; a glimpse is enough.
        Ok(scenario) => {
            let _ = fabric::simulate(&scenario, |_| ControlFlow::Break(()));
        }
    }
});
