//! A packet simulation of the fluid model's flows, link and thresholds, for comparison.

use std::ops::ControlFlow;

use serde::Serialize;
use straightway_core::{Bytes, Result, Seconds, random::Seed};

use crate::{
    Control, FabricScenario, FabricTopology, FabricTransport, Incast, LeafSpine, Switch, Traffic,
    dcqcn::{Ecn, ParameterSet},
    fluid::Fluid,
    simulate,
};

/// The maximum number of flows: beyond it, the fluid limit is the better model anyway.
const FLOWS_MAX: u32 = 128;

/// A cable within a rack.
const CABLE_M: f64 = 5.0;

/// The queue of the packet simulation in the second half of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueRange {
    /// The minimum length.
    pub queue_min: Bytes,
    /// The mean length.
    pub queue_mean: Bytes,
    /// The maximum length.
    pub queue_max: Bytes,
}

/// Simulates `fluid`'s flows with the thresholds `ecn` packet by packet; `None` if there are too many flows.
pub fn simulate_queue(fluid: &Fluid, set: ParameterSet, ecn: Ecn, duration: Seconds) -> Option<Result<QueueRange>> {
    if fluid.flows > FLOWS_MAX {
        return None;
    }
    let scenario = scenario(fluid, set, ecn, duration);
    let outcome = simulate(&scenario, |_| ControlFlow::Continue(()));
    Some(outcome.map(|outcome| {
        let series = &outcome.series[0];
        let half = series.queue_max.len() / 2;
        let mean = &series.queue_mean[half..];
        let sum: u64 = mean.iter().sum();
        QueueRange {
            queue_min: Bytes(series.queue_min[half..].iter().copied().min().unwrap_or(0)),
            queue_mean: Bytes(sum / (mean.len() as u64).max(1)),
            queue_max: Bytes(series.queue_max[half..].iter().copied().max().unwrap_or(0)),
        }
    }))
}

/// All flows into one host of one switch, as many senders as flows.
fn scenario(fluid: &Fluid, set: ParameterSet, ecn: Ecn, duration: Seconds) -> FabricScenario {
    let senders = fluid.flows;
    FabricScenario {
        title: "DCQCN flows through one port".to_owned(),
        about: String::new(),
        seed: Seed::default(),
        duration: Some(duration),
        watch: vec!["leaf0->h0".to_owned()],
        topology: FabricTopology::LeafSpine(LeafSpine {
            leaves: 1,
            spines: 0,
            hosts_per_leaf: senders + 1,
            host_rate: fluid.rate,
            uplink_rate: None,
            host_cable_m: CABLE_M,
            uplink_cable_m: CABLE_M,
        }),
        switch: Switch {
            ecn: Some(ecn),
            ..Switch::default()
        },
        transport: FabricTransport {
            control: Control::Dcqcn,
            parameters: set,
            dcqcn: Some(fluid.dcqcn),
            packet: fluid.packet,
            overhead: Bytes(0),
            ..FabricTransport::default()
        },
        traffic: vec![Traffic::Incast(Incast {
            receiver: "h0".to_owned(),
            senders,
            first: None,
            bytes: None,
            start: Seconds(0.0),
        })],
        slow: Vec::new(),
        claims: Vec::new(),
    }
}
