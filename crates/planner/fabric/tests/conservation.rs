//! Properties of every fabric and every load: all bytes are accounted for, no link exceeds its rate, a lossless
//! fabric drops nothing with the calculated headroom, and a run is reproducible from its seed.

use std::ops::ControlFlow;

use proptest::prelude::*;
use straightway_core::{Bytes, Rate, Seconds, random::Seed};
use straightway_fabric::{
    Burst, Control, FabricOutcome, FabricScenario, FabricTopology, FabricTransport, Incast, LeafSpine, Permutation,
    Pfc, Rail, Shift, SlowReceiver, Switch, Traffic, dcqcn::ParameterSet, simulate,
};

fn run(scenario: &FabricScenario) -> FabricOutcome {
    simulate(scenario, |_| ControlFlow::Continue(())).expect("a sound scenario")
}

fn rate() -> impl Strategy<Value = Rate> {
    prop::sample::select(vec![10.0, 37.5, 100.0, 400.0]).prop_map(Rate::gbit)
}

fn topology() -> impl Strategy<Value = FabricTopology> {
    let leaf_spine = (1u32..4, 1u32..4, 2u32..5, rate(), rate(), 0.0..400.0f64).prop_map(
        |(leaves, spines, hosts_per_leaf, host_rate, uplink, cable_m)| {
            FabricTopology::LeafSpine(LeafSpine {
                leaves,
                spines,
                hosts_per_leaf,
                host_rate,
                uplink_rate: Some(uplink),
                host_cable_m: cable_m,
                uplink_cable_m: cable_m,
            })
        },
    );
    let rail = (2u32..6, 1u32..4, 1u32..4, 1u32..3, rate()).prop_map(
        |(servers, rails, servers_per_group, spines, host_rate)| {
            FabricTopology::Rail(Rail {
                servers,
                rails,
                servers_per_group,
                spines,
                host_rate,
                uplink_rate: None,
                host_cable_m: 5.0,
                uplink_cable_m: 40.0,
            })
        },
    );
    prop_oneof![leaf_spine, rail]
}

fn traffic() -> impl Strategy<Value = Vec<Traffic>> {
    let bytes = || prop::option::of((1u64..400_000).prop_map(Bytes));
    let start = || (0u32..20).prop_map(|us| Seconds(f64::from(us) * 1e-6));
    let one = prop_oneof![
        (bytes(), start()).prop_map(|(bytes, start)| { Traffic::Permutation(Permutation { bytes, start }) }),
        (bytes(), start()).prop_map(|(bytes, start)| Traffic::Shift(Shift { by: 1, bytes, start })),
        // Replaced below by a name that every topology has.
        (bytes(), start()).prop_map(|(bytes, start)| Traffic::Incast(Incast {
            receiver: String::new(),
            senders: u32::MAX,
            first: None,
            bytes,
            start,
        })),
        (1u64..50_000, 1u32..5).prop_map(|(bytes, count)| Traffic::Burst(Burst {
            receiver: String::new(),
            senders: u32::MAX,
            first: None,
            bytes: Bytes(bytes),
            start: Seconds(0.0),
            period: Seconds(20e-6),
            count,
            jitter: Seconds(1e-6),
        })),
    ];
    prop::collection::vec(one, 1..4)
}

fn control() -> impl Strategy<Value = Control> {
    prop::sample::select(vec![Control::None, Control::Dcqcn, Control::Dctcp, Control::Newreno])
}

prop_compose! {
    fn scenario()(
        topology in topology(),
        mut traffic in traffic(),
        control in control(),
        parameters in prop::sample::select(ParameterSet::ALL.to_vec()),
        seed: u64,
        buffer_kb in 200u64..3000,
        lossless: bool,
        slow in prop::option::of(1u32..50),
        packet in prop::sample::select(vec![256u64, 1000, 4096, 9000]),
        overhead in 0u64..100,
    ) -> FabricScenario {
        let receiver = match &topology {
            FabricTopology::Rail(_) => "s0r0",
            _ => "h0",
        };
        let others = u32::try_from(topology.hosts() - 1).expect("few hosts");
        for entry in &mut traffic {
            match entry {
                Traffic::Incast(t) => {
                    receiver.clone_into(&mut t.receiver);
                    t.senders = others;
                }
                Traffic::Burst(t) => {
                    receiver.clone_into(&mut t.receiver);
                    t.senders = others;
                }
                _ => {}
            }
        }
        FabricScenario {
            title: String::new(),
            about: String::new(),
            seed: Seed(seed),
            duration: Some(Seconds(100e-6)),
            topology,
            switch: Switch {
                // Headroom is added, so that some of the buffer is always shared.
                buffer: Bytes(buffer_kb * 1000 + 3_000_000),
                pfc: Pfc { enabled: lossless, ..Pfc::default() },
                ..Switch::default()
            },
            transport: FabricTransport {
                control,
                parameters,
                packet: Bytes(packet),
                overhead: Bytes(overhead),
                retransmit_timeout: Seconds(30e-6),
                ..FabricTransport::default()
            },
            traffic,
            slow: slow
                .map(|gbit| SlowReceiver {
                    host: receiver.to_owned(),
                    rate: Rate::gbit(f64::from(gbit)),
                    buffer: Bytes(2_000_000),
                })
                .into_iter()
                .collect(),
            watch: Vec::new(),
            claims: Vec::new(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        max_global_rejects: 4000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_injected_byte_is_delivered_dropped_discarded_or_in_flight(scenario in scenario()) {
        let ledger = run(&scenario).ledger;
        prop_assert_eq!(
            ledger.injected_bytes,
            ledger.delivered_bytes
                + ledger.dropped_bytes
                + ledger.discarded_bytes
                + ledger.in_flight_bytes
        );
    }

    #[test]
    fn no_link_carries_more_than_its_rate(scenario in scenario()) {
        let outcome = run(&scenario);
        // A frame that started before the end counts in full.
        let frame = (scenario.transport.packet.0 + scenario.transport.overhead.0 + 84) as f64;
        for link in &outcome.links {
            let slack = frame / (link.rate.0 * outcome.simulated.0);
            prop_assert!(link.utilisation <= 1.0 + slack, "{} {}", link.link, link.utilisation);
        }
    }

    #[test]
    fn a_lossless_fabric_drops_nothing_with_the_calculated_headroom(mut scenario in scenario()) {
        scenario.switch.pfc.enabled = true;
        let outcome = run(&scenario);
        prop_assert_eq!(outcome.ledger.dropped_packets, 0);
        prop_assert_eq!(outcome.ledger.discarded_bytes, 0);
    }

    #[test]
    fn a_lossless_fabric_drops_nothing_with_almost_no_shared_buffer(
        mut scenario in scenario(),
        buffer_kb in 50u64..1500,
    ) {
        scenario.switch.pfc.enabled = true;
        scenario.switch.buffer = Bytes(buffer_kb * 1000);
        for slow in &mut scenario.slow {
            slow.buffer = Bytes(buffer_kb * 500);
        }
        // A buffer smaller than the reserves of its ports is refused.
        let outcome = simulate(&scenario, |_| ControlFlow::Continue(()));
        prop_assume!(outcome.is_ok());
        prop_assert_eq!(outcome.expect("just looked at").ledger.dropped_packets, 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_of_output(scenario in scenario()) {
        let text = |scenario: &FabricScenario| serde_json::to_string(&run(scenario)).expect("plain data");
        prop_assert_eq!(text(&scenario), text(&scenario));
    }
}

/// Packets of two rings pass one spine while a slow receiver's adapter fills: the threshold falls below the use of an
/// ingress before that ingress has been paused.
#[test]
fn a_lossless_fabric_drops_nothing_when_the_threshold_falls_below_the_use_of_an_ingress() {
    let shift = |us: f64| {
        Traffic::Shift(Shift {
            by: 1,
            bytes: None,
            start: Seconds(us * 1e-6),
        })
    };
    let scenario = FabricScenario {
        duration: Some(Seconds(100e-6)),
        topology: FabricTopology::Rail(Rail {
            servers: 2,
            rails: 2,
            servers_per_group: 2,
            spines: 1,
            host_rate: Rate::gbit(400.0),
            uplink_rate: None,
            host_cable_m: 5.0,
            uplink_cable_m: 40.0,
        }),
        switch: Switch {
            buffer: Bytes(5_456_000),
            ..Switch::default()
        },
        transport: FabricTransport {
            control: Control::None,
            packet: Bytes(9000),
            overhead: Bytes(68),
            ..FabricTransport::default()
        },
        traffic: vec![shift(3.0), shift(0.0)],
        slow: vec![SlowReceiver {
            host: "s0r0".to_owned(),
            rate: Rate(5.75e9),
            buffer: Bytes(2_000_000),
        }],
        ..squeezed(5.0, None)
    };
    let outcome = run(&scenario);
    assert!(outcome.pauses.frames > 0);
    assert_eq!(outcome.ledger.dropped_packets, 0);
}

/// Eight senders at line rate over `cable_m` of fibre into one host, through a small buffer.
fn squeezed(cable_m: f64, headroom: Option<Bytes>) -> FabricScenario {
    FabricScenario {
        title: "squeezed".to_owned(),
        about: String::new(),
        seed: Seed(1),
        duration: Some(Seconds(200e-6)),
        topology: FabricTopology::LeafSpine(LeafSpine {
            leaves: 1,
            spines: 0,
            hosts_per_leaf: 9,
            host_rate: Rate::gbit(400.0),
            uplink_rate: None,
            host_cable_m: cable_m,
            uplink_cable_m: cable_m,
        }),
        switch: Switch {
            buffer: Bytes(4_000_000),
            pfc: Pfc {
                headroom,
                ..Pfc::default()
            },
            ..Switch::default()
        },
        transport: FabricTransport {
            control: Control::None,
            ..FabricTransport::default()
        },
        traffic: vec![Traffic::Incast(Incast {
            receiver: "h0".to_owned(),
            senders: 8,
            first: None,
            bytes: None,
            start: Seconds(0.0),
        })],
        slow: Vec::new(),
        watch: Vec::new(),
        claims: Vec::new(),
    }
}

#[test]
fn drops_appear_below_the_calculated_headroom_and_none_with_it() {
    for cable_m in [5.0, 40.0, 300.0] {
        let outcome = run(&squeezed(cable_m, None));
        assert_eq!(outcome.ledger.dropped_packets, 0, "{cable_m} m");
        assert!(outcome.pauses.frames > 0);
        let needed = outcome.buffer.headroom_peak_bytes;
        // The formula is for the worst case, and this case is close to it.
        let calculated = outcome
            .basis
            .assumptions
            .iter()
            .find(|a| a.what.starts_with("headroom"))
            .expect("a lossless run says its headroom")
            .value;
        assert!(needed as f64 > 0.75 * calculated, "{needed} of {calculated}");
        let short = run(&squeezed(cable_m, Some(Bytes(needed * 9 / 10))));
        assert!(short.ledger.dropped_packets > 0, "{cable_m} m");
        let enough = run(&squeezed(cable_m, Some(Bytes(needed))));
        assert_eq!(enough.ledger.dropped_packets, 0, "{cable_m} m");
    }
}
