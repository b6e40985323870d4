//! Known behaviour of fabrics, shown with the embedded scenarios.

use std::ops::ControlFlow;

use straightway_core::{Bytes, ErrorKind, Rate, Seconds};
use straightway_fabric::{Control, FabricOutcome, FabricScenario, cases, dcqcn::ParameterSet, fluid::Fluid, simulate};
use straightway_scenario::check::read;

fn scenario(name: &str) -> FabricScenario {
    let case = cases::case(name).expect("it comes with the program");
    read(case.text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn run(scenario: &FabricScenario) -> FabricOutcome {
    simulate(scenario, |_| ControlFlow::Continue(())).expect("a sound scenario")
}

fn gbit(rate: Rate) -> f64 {
    rate.as_gbit()
}

#[test]
fn flow_control_alone_slows_the_innocent_flow_and_dcqcn_does_not() {
    let [pfc, dcqcn] = ["incast-pfc", "incast-dcqcn"].map(|name| run(&scenario(name)));
    let [held, freed] = [&pfc, &dcqcn].map(|o| gbit(o.traffic[1].goodput_mean));
    assert!(held < 8.0, "{held} Gb/s of 400 under flow control alone");
    assert!(freed > 10.0 * held, "{freed} Gb/s with DCQCN, {held} without");
    assert_eq!(pfc.spreading.victims[0].flow, "h79 → h1");
    assert_eq!(pfc.spreading.roots[0].link, "leaf0->h0");
    // The pause reached every sender; with DCQCN most links are free most of the time.
    assert_eq!(pfc.pauses.hosts, 64);
    let silenced = |o: &FabricOutcome| o.spreading.roots.iter().map(|r| r.silenced.0).sum::<f64>();
    assert!(silenced(&dcqcn) < silenced(&pfc) / 4.0);
    for outcome in [pfc, dcqcn] {
        assert_eq!(outcome.ledger.dropped_packets, 0);
    }
}

#[test]
fn a_slow_receiver_pauses_flows_to_its_neighbours_but_not_those_on_another_spine() {
    let outcome = run(&scenario("slow-receiver"));
    let [behind, beside] = [1, 2].map(|i| gbit(outcome.traffic[i].goodput_mean));
    assert!(behind < 20.0, "{behind}");
    assert!(beside > 390.0, "{beside}");
    assert_eq!(outcome.spreading.roots[0].link, "h0.nic->h0");
    let innocent: Vec<&str> = outcome.spreading.victims.iter().map(|v| v.flow.as_str()).collect();
    assert!(
        innocent.contains(&"h16 → h1") && !innocent.contains(&"h24 → h2"),
        "{innocent:?}"
    );
}

#[test]
fn a_ring_deadlocks_and_the_reported_cycle_is_the_ring() {
    let outcome = run(&scenario("deadlock-ring"));
    let mut ring = vec!["s0->s1", "s1->s2", "s2->s3", "s3->s4", "s4->s0"];
    let happened = outcome.deadlock.happened.expect("it stood still");
    for cycle in [
        happened.cycle,
        outcome.deadlock.possible.expect("the paths form a cycle"),
    ] {
        let start = ring.iter().position(|l| *l == cycle[0]).expect("a link of the ring");
        ring.rotate_left(start);
        assert_eq!(cycle, ring);
    }
    assert!(happened.stuck_bytes > 100_000);
}

#[test]
fn a_ring_with_flows_of_one_switch_cannot_deadlock() {
    let mut ring = scenario("deadlock-ring");
    let text = toml::to_string(&ring).expect("plain data");
    for (from, near) in [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")] {
        let straightway_fabric::Traffic::Flow(flow) = ring
            .traffic
            .iter_mut()
            .find(|t| matches!(t, straightway_fabric::Traffic::Flow(f) if f.from == from))
            .unwrap_or_else(|| panic!("{text}"))
        else {
            unreachable!("just matched");
        };
        near.clone_into(&mut flow.to);
    }
    let outcome = run(&ring);
    assert_eq!((outcome.deadlock.possible, outcome.deadlock.happened), (None, None));
    assert!(outcome.traffic.iter().all(|t| gbit(t.goodput_mean) > 90.0));
}

#[test]
fn a_micro_burst_is_invisible_in_the_mean_and_visible_per_microsecond() {
    let outcome = run(&scenario("microburst"));
    let link = &outcome.links[0];
    assert!(link.utilisation < 0.3, "{}", link.utilisation);
    assert!(link.queue_max > 3_000_000, "{}", link.queue_max);
    let series = &outcome.series[0];
    assert!(series.span_ns <= 2048, "{}", series.span_ns);
    let full = series.queue_max.iter().filter(|q| **q > 1_000_000).count();
    let share = full as f64 / series.queue_max.len() as f64;
    assert!((0.05..0.35).contains(&share), "{share}");
}

#[test]
fn on_rails_a_ring_of_neighbours_loses_nothing_to_the_network() {
    let outcome = run(&scenario("rail"));
    let slowdown = outcome.traffic[0].slowdown.expect("all finished");
    assert!(slowdown.max < 1.01, "{slowdown:?}");
}

#[test]
fn one_packet_takes_the_time_computed_by_hand() {
    let text = r#"
[topology.leaf_spine]
leaves = 1
hosts_per_leaf = 2
host_rate = "100Gb/s"
host_cable_m = 198
[switch]
latency = "400ns"
[transport]
packet = 1000
overhead = 0
[[traffic]]
flow = { from = "h0", to = "h1", bytes = 2500 }
"#;
    let outcome = run(&read(text).expect("sound"));
    // Two cables of 1 µs, 400 ns in the switch, a packet of 80 ns per hop, then two more of 80 and 40 ns.
    let took = outcome.traffic[0].completion.expect("it finished").max;
    let by_hand = (2.0 * 1000.0 + 400.0 + 2.0 * 80.0 + 80.0 + 40.0) * 1e-9;
    assert!((took - by_hand).abs() < 1e-15, "{took} {by_hand}");
    let slowdown = outcome.traffic[0].slowdown.expect("it finished").max;
    assert!((slowdown - 1.0).abs() < 1e-9, "{slowdown}");
}

#[test]
fn dropped_packets_are_retransmitted_until_every_flow_has_finished() {
    for control in [Control::None, Control::Dcqcn, Control::Dctcp, Control::Newreno] {
        let text = r#"
[topology.leaf_spine]
leaves = 1
hosts_per_leaf = 9
host_rate = "100Gb/s"
[switch]
buffer = "200kB"
marking = false
pfc = { enabled = false }
[transport]
retransmit_timeout = "100us"
[[traffic]]
incast = { receiver = "h0", senders = 8, bytes = "1MB" }
"#;
        let mut scenario: FabricScenario = read(text).expect("sound");
        scenario.transport.control = control;
        let outcome = run(&scenario);
        assert!(outcome.ledger.dropped_packets > 0, "{control:?}");
        assert_eq!(outcome.traffic[0].finished, 8, "{control:?}");
    }
}

#[test]
fn dctcp_keeps_the_queue_short_where_a_window_halved_on_loss_fills_the_buffer() {
    let [dctcp, lossy] = ["incast-dctcp", "incast-lossy"].map(|name| {
        let mut scenario = scenario(name);
        scenario.duration = Some(Seconds(2e-3));
        run(&scenario)
    });
    assert_eq!(dctcp.ledger.dropped_packets, 0);
    assert!(lossy.ledger.dropped_packets > 0);
}

#[test]
fn a_run_can_be_cancelled() {
    let error = simulate(&scenario("incast-pfc"), |progress| {
        assert!(progress.events > 0 && progress.done < 1.0);
        ControlFlow::Break(())
    })
    .expect_err("it was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn every_claim_holds_or_fails_as_its_file_says() {
    let mut judged = 0;
    for case in cases::CASES {
        let scenario = scenario(case.name);
        if scenario.claims.is_empty() {
            continue;
        }
        let corrections = run(&scenario).basis.corrections;
        assert_eq!(corrections.len(), scenario.claims.len(), "{}", case.name);
        for (claim, correction) in scenario.claims.iter().zip(&corrections) {
            assert_eq!(claim.holds, correction.holds, "{}: {correction:?}", case.name);
            judged += 1;
        }
    }
    assert!(judged >= 3, "{judged}");
}

/// The mean queue of N flows through one 40 Gb/s port after the first quarter of the scenario's time,
/// or of `ms`.
fn packet_queue(flows: u32, ms: Option<f64>) -> f64 {
    let mut scenario = scenario("dcqcn-40g");
    scenario.duration = ms.map(|ms| Seconds(ms * 1e-3)).or(scenario.duration);
    let text = toml::to_string(&scenario).expect("plain data");
    let text = text
        .replace("hosts_per_leaf = 11", &format!("hosts_per_leaf = {}", flows + 1))
        .replace("senders = 10", &format!("senders = {flows}"));
    let outcome = run(&read(&text).expect("sound"));
    let queue = &outcome.series[0].queue_mean;
    let settled = &queue[queue.len() / 4..];
    settled.iter().sum::<u64>() as f64 / settled.len() as f64
}

#[test]
fn packets_and_fluid_agree_on_the_queue_within_fifteen_per_cent() {
    for (flows, ms) in [(2, Some(400.0)), (4, None), (10, None)] {
        // The path back takes 4 µs, and a mark waits half a notification interval on average.
        let delay = Seconds(4e-6 + 25e-6);
        let rate = Rate::gbit(40.0);
        let fluid = Fluid::new(ParameterSet::Paper, flows, rate, Bytes(1000), delay);
        let fluid = fluid.settle(Seconds(1.0)).queue_mean.0 as f64;
        let packets = packet_queue(flows, ms);
        let off = packets / fluid - 1.0;
        assert!(off.abs() < 0.15, "{flows} flows: {packets:.0} B against {fluid:.0} B");
    }
}

#[test]
fn a_link_is_never_busy_for_longer_than_the_run() {
    // Shorter than the time of a packet, and with pause frames in flight.
    for ns in [1, 10, 100, 1_000, 20_000] {
        let mut scenario = scenario("slow-receiver");
        scenario.duration = Some(Seconds(f64::from(ns) * 1e-9));
        for link in run(&scenario).links {
            assert!(link.utilisation <= 1.0 + 1e-9, "{} {}", link.link, link.utilisation);
        }
    }
}

/// Five hosts send packets of 78 bytes on the wire to one host over long cables, through a switch with cells of 192
/// bytes that pauses early.
fn small_packets(share: f64) -> FabricOutcome {
    let text = format!(
        r#"
title = "small packets"
duration = "400us"
[topology.leaf_spine]
leaves = 2
spines = 1
hosts_per_leaf = 5
host_rate = "100Gb/s"
host_cable_m = 300.0
[switch]
buffer = "2MB"
cell = "192"
[switch.pfc]
alpha = 0.02
small_packet_share = {share}
[transport]
control = "none"
packet = "64"
overhead = "14"
[[traffic]]
incast = {{ receiver = "h0", senders = 5, first = "h5", bytes = "1MB" }}
"#
    );
    let scenario: FabricScenario = read(&text).unwrap_or_else(|refused| panic!("{refused}"));
    run(&scenario)
}

#[test]
fn small_packets_overflow_a_headroom_that_allows_for_few_of_them() {
    // All packets are small: the headroom holds with the share of all, and not with SN4280's one in a hundred.
    let (all, few) = (small_packets(1.0), small_packets(0.01));
    assert!(all.pauses.frames > 0 && few.pauses.frames > 0);
    assert_eq!(all.ledger.dropped_packets, 0);
    assert!(few.ledger.dropped_packets > 0);
}
