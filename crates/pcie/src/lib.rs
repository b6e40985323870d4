//! PCIe under many streams: an analytic bound, and a simulator that moves every TLP.
//!
//! A [`Scenario`] describes a tree of root ports, switches, drives, HCAs and GPUs and the streams
//! between them. [`simulate`] answers with an [`Outcome`]: what each stream got and why not more,
//! how busy every link was, and the analytic bound beside it. [`sweep`] finds how many streams give
//! the most, [`what_if`] what one change of the tree would bring.
//!
//! ```
//! use std::ops::ControlFlow;
//! use straightway_pcie as pcie;
//! use straightway_scenario::check;
//!
//! let case = pcie::case("dgx2-same-switch").expect("an embedded scenario");
//! let scenario: pcie::Scenario = check::read(case.text)?;
//! let outcome = pcie::simulate(&scenario, |_| ControlFlow::Continue(()))?;
//! assert!(outcome.basis.corrections.iter().all(|figure| figure.holds));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How it is done: [`link`] has the formulas, [`bound`] the fair share, `engine` the events. What
//! it is not: there are no link errors, no IOMMU and no cache in it, and the root complex is a
//! rate and a latency, for no vendor says what is inside.

pub mod article;
mod bottleneck;
pub mod bound;
mod cases;
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

use straightway_core::{Bytes, Error, Kind, Result};

pub use self::{
    cases::{CASES, case},
    machine::Machine,
    outcome::Outcome,
    scenario::Scenario,
    sweep::{Sweep, SweepPoint, sweep},
    topology::Topology,
    what_if::{Change, WhatIf, what_if},
};
use self::{
    engine::{Engine, Stop},
    scenario::SIMULATED_MAX,
};
use straightway_scenario::check::checked;

/// Simulates a scenario. `look` is told now and then what share of the bytes has arrived, and
/// may break it off.
pub fn simulate(scenario: &Scenario, look: impl FnMut(f64) -> ControlFlow<()>) -> Result<Outcome> {
    checked(scenario).map_err(|refusals| {
        Error::new(
            Kind::Invalid,
            "simulate",
            &scenario.title,
            refusals.to_string(),
        )
    })?;
    run(scenario, &Topology::new(scenario), look)
}

/// Simulates a topology that came from `scenario`, perhaps with a change.
fn run(
    scenario: &Scenario,
    topology: &Topology,
    look: impl FnMut(f64) -> ControlFlow<()>,
) -> Result<Outcome> {
    let finished = Engine::new(scenario, topology)
        .run(look)
        .map_err(|stop| match stop {
            Stop::Cancelled => Error::new(
                Kind::Cancelled,
                "simulate",
                &scenario.title,
                "it was cancelled",
            ),
            Stop::TooLong(stream) => Error::new(
                Kind::Invalid,
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
