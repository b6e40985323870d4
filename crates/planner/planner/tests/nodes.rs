//! A node's direct rate: three ways to compute it, compared with each other and with published rates.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;

use straightway_core::Rate;
use straightway_pcie::machine::{LinkSpec, MachineSpec, Ports};
use straightway_planner::{
    checkpoint::CheckpointQuestion,
    path::{ComputeNode, DataPath, Flow},
    question::Question,
    rail::RailQuestion,
};
use straightway_scenario::check;

/// Computes the direct rate in three ways: the path model with unlimited storage, `plan rail`, and `sim
/// pcie` with one stream per port.
fn three_ways(machine: &MachineSpec, gpus: u64) -> [f64; 3] {
    let mut node = ComputeNode {
        machine: Some(machine.clone()),
        ..ComputeNode::default()
    };
    (node.media.rate, node.media.drive_rate) = (Some(Rate(1e13)), Some(Rate(1e13)));
    let path = node.estimate(DataPath::Direct, Flow::Read, gpus).rate_bytes_per_s;
    let rails = RailQuestion {
        machine: machine.clone(),
        gpus,
        ..RailQuestion::default()
    };
    let rail = rails.answer().unwrap().rate_bytes_per_s;
    [path, rail, simulated(machine, gpus)]
}

fn simulated(machine: &MachineSpec, gpus: u64) -> f64 {
    let stream = r#"
        title = "ports into GPUs"
        [machine]
        [[stream]]
        from = "hca"
        to = "gpu"
        size = "16MiB"
        io = "256KiB"
        depth = 16
    "#;
    let mut scenario: straightway_pcie::PcieScenario = check::read(stream).unwrap();
    scenario.machine = Some(MachineSpec {
        gpus: Some(gpus),
        ..machine.clone()
    });
    let outcome = straightway_pcie::simulate(&scenario, |_| ControlFlow::Continue(())).unwrap();
    outcome.total_bytes_per_s.unwrap().0
}

fn ports(count: u64, gbit: f64, link: LinkSpec) -> Vec<Ports> {
    vec![Ports {
        count,
        rate: Rate::gbit(gbit),
        link,
        ..Ports::default()
    }]
}

fn assert_agree(name: &str, rates: [f64; 3]) {
    let least = rates.into_iter().fold(f64::MAX, f64::min);
    let most = rates.into_iter().fold(0.0, f64::max);
    assert!(most / least <= 1.05, "{name}: {rates:?}");
}

fn dgx2() -> MachineSpec {
    let gen3: LinkSpec = serde_json::from_str(r#"{ "gen": 3, "lanes": 16 }"#).unwrap();
    MachineSpec {
        switches: 8,
        gpu_link: gen3,
        uplink: gen3,
        ports: ports(8, 100.0, gen3),
        ..MachineSpec::default()
    }
}

#[test]
fn three_ways_to_compute_the_direct_rate_agree_within_5_percent() {
    let gen5 = Ports::default().link;
    let b200 = MachineSpec {
        ports: ports(2, 400.0, gen5),
        ..MachineSpec::default()
    };
    assert_agree("DGX H100", three_ways(&MachineSpec::default(), 8));
    assert_agree("DGX B200", three_ways(&b200, 8));
    assert_agree("DGX-2", three_ways(&dgx2(), 16));
}

#[test]
fn the_rates_of_published_nodes_are_met_within_15_percent() {
    // DDN: 96 GB/s into a DGX B200 by 2 × 400 Gb/s. VAST: 92.6 GB/s into a DGX-2 by 8 ports.
    let gen5 = Ports::default().link;
    let b200 = MachineSpec {
        ports: ports(2, 400.0, gen5),
        ..MachineSpec::default()
    };
    for (rates, published) in [(three_ways(&b200, 8), 96e9), (three_ways(&dgx2(), 16), 92.6e9)] {
        for rate in rates {
            assert!((rate / published - 1.0).abs() <= 0.15, "{rate} against {published}");
        }
    }
}

#[test]
fn with_100_gb_of_network_and_media_the_direct_path_is_not_slower() {
    let mut asked = CheckpointQuestion::default();
    asked.node.media.rate = Some(Rate(100e9));
    asked.node.hop.as_mut().unwrap().rate = Some(Rate(100e9));
    asked.storage.rate = Rate(1e14);
    let answer = asked.answer().unwrap();
    assert!(answer.gain >= 1.0, "{}", answer.gain);
    assert!(
        (answer.direct.rate_bytes_per_s - 90e9).abs() < 1.0,
        "{:?}",
        answer.direct
    );
}

#[test]
fn ports_on_the_host_feed_gpus_through_the_uplinks() {
    // Eight ports on their own root ports: the traffic reaches the GPUs through four uplinks.
    let mut machine = MachineSpec::default();
    machine.ports[0].on = straightway_pcie::machine::Attachment::Host;
    let rates = three_ways(&machine, 8);
    assert!((rates[0] / (4.0 * 51.98e9) - 1.0).abs() < 0.01, "{rates:?}");
    assert_agree("ports on the host", rates);
}
