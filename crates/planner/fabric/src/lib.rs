//! A lossless Ethernet fabric, packet by packet.
//!
//! Hosts send along fixed paths (ECMP by hash) through switches that share one buffer among their ports, mark packets
//! as queues grow, and pause their neighbours before they would have to drop. Senders use DCQCN, no congestion
//! control or, for comparison, a TCP-like window. [`simulate`] runs a [`FabricScenario`] and returns a
//! [`FabricOutcome`]: completion times, queues and pauses over time, flows delayed by congestion that is not on their
//! path, drops, and deadlock.
//!
//! Time is whole picoseconds; the same scenario gives the same bytes of output everywhere.
//!
//! Simplifications: there is one traffic class besides the control class; a packet's buffer is free when it starts to
//! leave; acknowledgements and notifications take no bandwidth; adapters have no limit on packets per second; links
//! do not lose packets.

pub mod bounds;
mod buffer;
pub mod cases;
pub mod dcqcn;
mod deadlock;
mod engine;
pub mod fluid;
pub mod headroom;
mod outcome;
pub mod packet_check;
mod port;
mod progress;
mod route;
mod scenario;
mod series;
mod topology;
mod traffic;
pub mod wheel;
mod window;

use std::ops::ControlFlow;

use straightway_core::{Error, ErrorKind, Result};

pub use deadlock::Deadlock;
pub use outcome::{
    BufferUse, CongestedLink, DeadlockAnswer, Distribution, Effort, FabricOutcome, Ledger, LinkUse, PauseSummary,
    Spreading, TrafficOutcome, Victim,
};
pub use progress::SimulationProgress;
pub(crate) use scenario::whole;
pub use scenario::{Control, FabricScenario, FabricTransport, Pfc, SlowReceiver, Switch};
pub use series::QueueSeries;
pub use topology::{Cable, FabricTopology, Graph, LeafSpine, Rail};
pub use traffic::{AllToAll, Burst, Incast, Permutation, Shift, Single, Traffic};

use engine::Engine;
use route::Routes;
use straightway_scenario::check::checked;
use topology::{Network, narrow};

/// Runs a scenario. `report` is called with the progress and may cancel the run.
pub fn simulate(
    scenario: &FabricScenario,
    mut report: impl FnMut(&SimulationProgress) -> ControlFlow<()>,
) -> Result<FabricOutcome> {
    let invalid = |message: String| Error::new(ErrorKind::Invalid, "simulate", &scenario.title, message);
    checked(scenario).map_err(|refusals| invalid(refusals.to_string()))?;
    let net = scenario.network();
    let mut flows = Vec::new();
    for (entry, traffic) in (0..).zip(&scenario.traffic) {
        let seed = scenario.seed.part(u64::from(entry));
        traffic.unfold(entry, &net, seed, &mut flows);
    }
    let routes = Routes::find(&net, &flows, scenario.seed).map_err(|f| {
        let flow = &flows[f];
        let name = |node: u32| &net.names[node as usize];
        let (from, to) = (name(flow.from), name(flow.to));
        invalid(format!("traffic[{}] has no path from {from} to {to}", flow.entry))
            .with_hint("every switch named in `via` must be wired to the next")
    })?;
    let count = narrow(flows.len());
    let possible = if scenario.switch.pfc.enabled {
        deadlock::possible_cycle(&net, &routes, count)
    } else {
        None
    };
    let watched = watched(scenario, &net, &routes, count);
    let mut engine = Engine::new(scenario, &net, &routes, &flows, &watched);
    if engine.run(&mut report).is_break() {
        let message = "it was cancelled";
        return Err(Error::new(ErrorKind::Cancelled, "simulate", &scenario.title, message));
    }
    Ok(FabricOutcome::of(scenario, &flows, engine, possible))
}

/// The links to record: those named, or the two switch ports that most flows share.
fn watched(scenario: &FabricScenario, net: &Network, routes: &Routes, flows: u32) -> Vec<u32> {
    if !scenario.watch.is_empty() {
        let named = scenario.watch.iter().filter_map(|name| net.link(name));
        return named.collect();
    }
    let mut shared: Vec<(u32, u32)> = (0..narrow(net.links.len())).map(|l| (0, l)).collect();
    for link in (0..flows).flat_map(|f| routes.path(f)) {
        shared[*link as usize].0 += 1;
    }
    shared.retain(|(count, link)| *count > 0 && !net.is_host(net.links[*link as usize].from));
    shared.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    shared.iter().take(2).map(|(_, link)| *link).collect()
}
