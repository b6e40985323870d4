//! PCIe under many streams: an analytic bound, and a simulator that moves every TLP.
//!
//! A [`PcieScenario`] describes a tree of root ports, switches, drives, HCAs and GPUs and the streams between them.
//! [`simulate`] returns a [`PcieOutcome`]: the rate and the bottleneck of each stream, the utilisation of every link,
//! and the analytic bound. [`sweep`] finds the best number of streams, [`what_if`] the gain of a single change of the
//! tree.
//!
//! ```
//! use std::ops::ControlFlow;
//! use straightway_pcie as pcie;
//! use straightway_scenario::check;
//!
//! let case = pcie::case("dgx2-same-switch").expect("an embedded scenario");
//! let scenario: pcie::PcieScenario = check::read(case.text)?;
//! let outcome = pcie::simulate(&scenario, |_| ControlFlow::Continue(()))?;
//! assert!(outcome.basis.corrections.iter().all(|figure| figure.holds));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`link`] has the formulas, [`bound`] the fair share, `engine` the events. Link errors, the IOMMU and caches are
//! not modelled. The root complex is only a rate and a latency, since vendors do not publish its internals.

pub mod article;
mod bottleneck;
pub mod bound;
mod cases;
pub mod client_host;
pub mod cut;
#[expect(
    clippy::inline_always,
    reason = "a third of the speed of benches/pcie.rs: LLVM finds these too large, each has one caller"
)]
mod engine;
pub mod link;
pub mod machine;
mod measure;
pub mod narrowest;
pub mod node;
pub mod outcome;
#[cfg(test)]
mod properties;
pub mod scenario;
mod sweep;
pub mod topology;
mod what_if;

use std::ops::ControlFlow;

use straightway_core::{Bytes, Error, ErrorKind, Result};

pub use self::{
    cases::{CASES, case},
    machine::MachineSpec,
    outcome::PcieOutcome,
    scenario::PcieScenario,
    sweep::{StreamSweep, SweepPoint, sweep},
    topology::PcieTopology,
    what_if::{TreeChange, WhatIf, what_if},
};
use self::{
    engine::{Engine, Stop},
    scenario::SIMULATED_MAX,
};
use straightway_scenario::check::checked;

/// Simulates a scenario. `look` is called now and then with the share of the bytes that has arrived, and may cancel
/// the run.
pub fn simulate(scenario: &PcieScenario, look: impl FnMut(f64) -> ControlFlow<()>) -> Result<PcieOutcome> {
    checked(scenario)
        .map_err(|refusals| Error::new(ErrorKind::Invalid, "simulate", &scenario.title, refusals.to_string()))?;
    run(scenario, &PcieTopology::new(scenario), look)
}

/// Simulates a topology of `scenario`, possibly changed.
fn run(
    scenario: &PcieScenario,
    topology: &PcieTopology,
    look: impl FnMut(f64) -> ControlFlow<()>,
) -> Result<PcieOutcome> {
    let finished = Engine::new(scenario, topology).run(look).map_err(|stop| match stop {
        Stop::Cancelled => Error::new(ErrorKind::Cancelled, "simulate", &scenario.title, "it was cancelled"),
        Stop::TooLong(stream) => Error::new(
            ErrorKind::Invalid,
            "simulate",
            &scenario.title,
            format!(
                "the `size` of stream {}, {}, takes longer than is allowed: at most {} s of \
                     simulated time",
                topology.streams[stream].name,
                Bytes(topology.streams[stream].size_bytes),
                SIMULATED_MAX.0
            ),
        )
        .with_hint("make `size` smaller: a few milliseconds of traffic show the steady rate"),
    })?;
    Ok(outcome::outcome(scenario, topology, &finished))
}
