//! Measured rates are possible: over one span for all streams, within the link rates and Little's law; and the named
//! bottleneck is the right one.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;

use straightway_core::{Bytes, Seconds};
use straightway_pcie::{self as pcie, PcieOutcome, PcieScenario};
use straightway_scenario::check;

/// Two HCAs on one Gen5 x16 switch that write to the host. With 280 bytes on the wire for 256 it
/// carries 52 GB/s.
const TWO: &str = r#"
title = "two"
[[node]]
id = "host"
kind = "host"
[[node]]
id = "switch"
kind = "switch"
parent = "host"
gen = 5
lanes = 16
[[node]]
id = "hca"
kind = "hca"
count = 2
parent = "switch"
gen = 5
lanes = 16
[[stream]]
from = "hca0"
to = "host"
size = "4MiB"
io = "64KiB"
depth = 8
[[stream]]
from = "hca1"
to = "host"
size = "4MiB"
io = "64KiB"
depth = 8
"#;

const LINK_BYTES_PER_S: f64 = 52e9;

fn simulate(scenario: &PcieScenario) -> PcieOutcome {
    pcie::simulate(scenario, |_| ControlFlow::Continue(())).unwrap()
}

fn two() -> PcieScenario {
    check::read(TWO).unwrap()
}

fn case(name: &str) -> PcieScenario {
    check::read(pcie::case(name).unwrap().text).unwrap()
}

#[track_caller]
fn near(got: f64, want: f64) {
    assert!((got / want - 1.0).abs() < 0.01, "{got} against {want}");
}

#[test]
fn streams_that_run_together_are_measured_together() {
    let outcome = simulate(&two());
    near(outcome.total_bytes_per_s.unwrap().0, LINK_BYTES_PER_S);
    assert!(outcome.measured_s.is_some());
    for stream in &outcome.streams {
        near(stream.bytes_per_s.0, LINK_BYTES_PER_S / 2.0);
    }
}

#[test]
fn rates_of_streams_that_do_not_overlap_are_not_added() {
    let mut scenario = two();
    scenario.stream[1].start = Seconds(10e-3);
    let outcome = simulate(&scenario);
    assert_eq!(outcome.measured_s, None);
    assert_eq!((outcome.total_bytes_per_s, outcome.mean_bytes_per_s), (None, None));
    assert!(outcome.overall_bytes_per_s.0 < 1e9);
    let sweep = pcie::sweep(&scenario, |_| ControlFlow::Continue(())).unwrap();
    // One stream alone has a rate, both together have none.
    let has_total: Vec<bool> = sweep.points.iter().map(|p| p.total_bytes_per_s.is_some()).collect();
    assert_eq!((has_total, sweep.best_streams), (vec![true, false], Some(1)));
    for stream in &outcome.streams {
        assert!(stream.bytes_per_s.0 > 0.9 * LINK_BYTES_PER_S);
        assert!(stream.bytes_per_s.0 < LINK_BYTES_PER_S);
    }
}

#[test]
fn a_short_stream_beside_a_long_one_does_not_fill_the_link_twice() {
    for short in [Bytes::kib(64), Bytes::kib(256), Bytes::mib(1), Bytes::mib(3)] {
        let mut scenario = two();
        scenario.stream[0].size = short;
        scenario.stream[1].size = Bytes::mib(32);
        let outcome = simulate(&scenario);
        let Some(total) = outcome.total_bytes_per_s.map(|rate| rate.0) else {
            continue;
        };
        assert!(total < 1.001 * LINK_BYTES_PER_S, "{short}: {total}");
        assert!(total > 0.95 * LINK_BYTES_PER_S, "{short}: {total}");
        let sweep = pcie::sweep(&scenario, |_| ControlFlow::Continue(())).unwrap();
        let most = sweep
            .points
            .iter()
            .filter_map(|p| p.total_bytes_per_s)
            .map(|rate| rate.0);
        assert!(most.fold(0.0, f64::max) < 1.001 * LINK_BYTES_PER_S);
    }
}

#[test]
fn the_rate_of_a_single_io_is_its_bytes_over_its_time() {
    let mut scenario = case("dgx2-iops");
    for ios in [1, 2, 5] {
        let stream = &mut scenario.stream[0];
        (stream.size, stream.io, stream.depth) = (Bytes::mib(ios), Bytes::mib(1), 1);
        for stream in &simulate(&scenario).streams {
            let little = Bytes::mib(1).0 as f64 / stream.latency.mean_s.0;
            near(stream.bytes_per_s.0, little);
        }
    }
}

#[test]
fn exhausted_tags_are_the_bottleneck() {
    for depth in [8, 64] {
        let mut scenario = two();
        scenario.stream.truncate(1);
        let stream = &mut scenario.stream[0];
        (stream.from, stream.to) = ("host".to_owned(), "hca0".to_owned());
        stream.depth = depth;
        scenario.node[2].tags = Some(1);
        let outcome = simulate(&scenario);
        assert_eq!(outcome.bottleneck.what, "tags of hca0");
        // One request per round trip, whatever the depth.
        near(outcome.total_bytes_per_s.unwrap().0, outcome.fair_bytes_per_s.0);
        scenario.node[2].tags = Some(2);
        near(
            simulate(&scenario).total_bytes_per_s.unwrap().0,
            2.0 * outcome.total_bytes_per_s.unwrap().0,
        );
    }
}

#[test]
fn improving_the_named_bottleneck_helps() {
    let mut scenario = case("dgx-h100");
    // At full line rate the ports and the drives together exceed the links of the GPUs.
    scenario.machine.as_mut().unwrap().ports[0].efficiency = 1.0;
    let outcome = simulate(&scenario);
    let named = outcome.bottleneck.what.strip_prefix("link ").unwrap();
    let link = outcome.links.iter().find(|l| l.name == named).unwrap();
    let most = outcome.links.iter().map(|l| l.payload_bytes).max().unwrap();
    assert!(link.payload_bytes > most / 2, "{named} carries next to nothing");
}

#[test]
fn a_depth_that_leaves_no_steady_state_reports_no_rate() {
    // 32 I/Os a drive: with 64 in flight the streams never run steadily at once.
    let rate = |depth: u64| {
        let mut scenario = case("dgx-h100");
        scenario.stream.iter_mut().for_each(|stream| stream.depth = depth);
        let outcome = simulate(&scenario);
        outcome.steady_bytes_per_s.map(|rate| rate.0)
    };
    let (shallow, deep) = (rate(16).unwrap(), rate(64));
    assert!((shallow / 410e9 - 1.0).abs() < 0.03, "{shallow}");
    assert!(deep.is_none_or(|deep| (deep / shallow - 1.0).abs() < 0.05), "{deep:?}");
}
