//! On an empty fabric the slowdown is exactly one, whatever the links and sizes.

use std::ops::ControlFlow;

use proptest::prelude::*;
use straightway_fabric::{FabricScenario, simulate};
use straightway_scenario::check::read;

/// One flow over a chain of switches with links of these rates in Gb/s.
fn scenario(rates: &[u32], bytes: u64, latency_ns: u32, cable_m: u32) -> FabricScenario {
    let switches: Vec<String> = (1..rates.len()).map(|i| format!("s{i}")).collect();
    let ends = [&["a".to_owned()][..], &switches, &["b".to_owned()]].concat();
    let links = rates
        .iter()
        .zip(ends.windows(2))
        .map(|(rate, ends)| format!("{{ends={ends:?},rate=\"{rate}Gb/s\",cable_m={cable_m}}}"));
    let text = format!(
        "[topology.graph]\nhosts=[\"a\",\"b\"]\nswitches={switches:?}\nlinks=[{}]\n\
         [switch]\nlatency=\"{latency_ns}ns\"\n[transport]\ncontrol=\"none\"\n\
         [[traffic]]\nflow={{from=\"a\",to=\"b\",bytes={bytes}}}\n",
        links.collect::<Vec<_>>().join(",")
    );
    read(&text).unwrap_or_else(|refusals| panic!("{refusals}\n{text}"))
}

proptest! {
    #[test]
    fn a_single_flow_is_not_slowed_down(
        rates in prop::collection::vec(prop::sample::select(vec![10u32, 25, 40, 100, 400]), 2..6),
        bytes in 1u64..60_000,
        latency_ns in 0u32..2000,
        cable_m in 0u32..300,
    ) {
        let scenario = scenario(&rates, bytes, latency_ns, cable_m);
        let outcome = simulate(&scenario, |_| ControlFlow::Continue(())).expect("sound");
        let slowdown = outcome.traffic[0].slowdown.expect("it finished");
        prop_assert!((slowdown.max - 1.0).abs() < f64::EPSILON, "{}", slowdown.max);
        prop_assert!((slowdown.min - 1.0).abs() < f64::EPSILON, "{}", slowdown.min);
    }
}

#[test]
fn a_short_packet_behind_a_slow_link_is_not_ahead_of_an_empty_fabric() {
    let outcome = simulate(&scenario(&[10, 400], 4097, 0, 0), |_| ControlFlow::Continue(()));
    let slowdown = outcome.expect("sound").traffic[0].slowdown.expect("it finished");
    assert!((slowdown.mean - 1.0).abs() < f64::EPSILON, "{}", slowdown.mean);
}
