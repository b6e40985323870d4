//! Properties that hold for every tree and every load.

use std::{collections::BTreeMap, ops::ControlFlow};

use proptest::prelude::*;
use straightway_core::{Bytes, Rate, Seconds};

use crate::{
    self as pcie, PcieOutcome, PcieScenario, PcieTopology,
    bound::{Resource, capacity, costs},
    engine::Engine,
    scenario::{Arbiter, ChannelArbiter, Channels, Credits, Mode, NodeKind, NodeSpec, StreamSpec},
};
use straightway_scenario::check;

/// A device or a switch below one of the branches before it.
#[derive(Clone, Debug)]
struct Leaf {
    kind: NodeKind,
    parent: prop::sample::Index,
    generation: u8,
    lanes: u8,
    memory_rate: Option<f64>,
    media_rate: Option<f64>,
    dma_per_s: Option<f64>,
    weight: u64,
    jitter_s: f64,
}

#[derive(Clone, Debug)]
struct Load {
    from: prop::sample::Index,
    to: prop::sample::Index,
    mode: Mode,
    size_bytes: u64,
    io_bytes: u64,
    depth: u64,
    start_s: f64,
    tc: u64,
    fence_bytes: Option<u64>,
}

fn leaf() -> impl Strategy<Value = Leaf> {
    let kind = prop::sample::select(vec![
        NodeKind::Switch,
        NodeKind::Switch,
        NodeKind::RootPort,
        NodeKind::Drive,
        NodeKind::Hca,
        NodeKind::Gpu,
    ]);
    let link = (1u8..=6, prop::sample::select(vec![1u8, 2, 4, 8, 16]));
    let limits = (
        prop::option::weighted(0.3, 1e9..50e9),
        prop::option::weighted(0.3, 1e9..20e9),
        prop::option::weighted(0.2, 1e6..60e6),
    );
    let rest = (1u64..5, prop::sample::select(vec![0.0, 0.0, 40e-9]));
    (kind, any::<prop::sample::Index>(), link, limits, rest).prop_map(
        |(kind, parent, (generation, lanes), (memory, media, dma), (weight, jitter_s))| Leaf {
            kind,
            parent,
            generation,
            lanes,
            memory_rate: memory.filter(|_| !kind.forwards()),
            media_rate: media.filter(|_| matches!(kind, NodeKind::Drive | NodeKind::Hca)),
            dma_per_s: dma,
            weight,
            jitter_s: if kind.forwards() { 0.0 } else { jitter_s },
        },
    )
}

fn load() -> impl Strategy<Value = Load> {
    let ends = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let mode = prop::sample::select(vec![Mode::Write, Mode::Read]);
    let sizes = (1u64..200_000, 1u64..70_000, 1u64..20);
    let rest = (0.0..20e-6, 0u64..4, prop::option::weighted(0.3, 64u64..30_000));
    (ends, mode, sizes, rest).prop_map(
        |((from, to), mode, (size_bytes, io_bytes, depth), (start_s, tc, fence_bytes))| Load {
            from,
            to,
            mode,
            size_bytes,
            io_bytes,
            depth,
            start_s,
            tc,
            fence_bytes: fence_bytes.filter(|_| mode == Mode::Write),
        },
    )
}

fn credits() -> impl Strategy<Value = Credits> {
    (1u64..40, 1u64..40, 1u64..40, 4096u64..20_000, 4096u64..20_000).prop_map(
        |(posted, nonposted, completion, posted_data, completion_data)| Credits {
            posted_headers: posted,
            posted_data: Bytes(posted_data),
            nonposted_headers: nonposted,
            completion_headers: completion,
            completion_data: Bytes(completion_data),
        },
    )
}

fn channels() -> impl Strategy<Value = Channels> {
    let arbiter = prop::sample::select(vec![ChannelArbiter::Strict, ChannelArbiter::Weighted]);
    (1u64..4, arbiter).prop_map(|(count, arbiter)| Channels {
        count,
        map: Vec::new(),
        arbiter,
        weights: vec![1, 3, 2],
    })
}

fn spec(id: &str, kind: NodeKind) -> NodeSpec {
    let text = format!("id = \"{id}\"\nkind = \"host\"");
    let mut spec: NodeSpec = toml::from_str(&text).unwrap();
    spec.kind = kind;
    spec
}

/// A tree with at least two endpoints.
fn scenarios() -> impl Strategy<Value = PcieScenario> {
    let arbiter = prop::sample::select(vec![
        Arbiter::RoundRobin,
        Arbiter::WeightedRoundRobin,
        Arbiter::WeightedFair,
    ]);
    // Shorter than the time of a TLP, the default, and longer than any scheduling window.
    let latency_s = prop::sample::select(vec![1e-9, 50e-9, 5e-6]);
    let pace = (prop::sample::select(vec![128u64, 256, 512, 4096]), latency_s);
    let shape = (
        prop::collection::vec(leaf(), 1..10),
        prop::collection::vec(load(), 1..6),
        any::<bool>(),
    );
    (shape, arbiter, pace, credits(), channels()).prop_map(
        |((leaves, loads, relaxed), arbiter, (mps, latency_s), credits, channels)| {
            let mut nodes = vec![spec("host", NodeKind::Host)];
            let mut branches = vec!["host".to_owned()];
            let mut ends = vec!["host".to_owned()];
            let gpu = Leaf {
                kind: NodeKind::Gpu,
                memory_rate: None,
                media_rate: None,
                ..leaves[0].clone()
            };
            for (i, leaf) in leaves.iter().chain([&gpu]).enumerate() {
                let id = format!("n{i}");
                nodes.push(NodeSpec {
                    parent: Some(leaf.parent.get(&branches).clone()),
                    generation: Some(leaf.generation.try_into().unwrap()),
                    lanes: Some(leaf.lanes),
                    memory_rate: leaf.memory_rate.map(Rate),
                    media_rate: leaf.media_rate.map(Rate),
                    dma_writes_per_s: leaf.dma_per_s,
                    weight: Some(leaf.weight),
                    jitter: (leaf.jitter_s > 0.0).then_some(Seconds(leaf.jitter_s)),
                    ..spec(&id, leaf.kind)
                });
                if leaf.kind.branches() {
                    branches.push(id);
                } else {
                    ends.push(id);
                }
            }
            let mut text: PcieScenario = check::read(pcie::CASES[0].text).unwrap();
            text.claims.clear();
            text.article = None;
            text.pcie.arbiter = arbiter;
            text.pcie.mps = Bytes(mps);
            text.pcie.link_latency = Seconds(latency_s);
            text.pcie.relaxed_ordering = relaxed;
            text.credits = credits;
            text.channels = channels;
            text.node = nodes;
            text.stream = loads.iter().map(|load| stream(load, &ends)).collect();
            text
        },
    )
}

fn stream(load: &Load, ends: &[String]) -> StreamSpec {
    let from = load.from.index(ends.len());
    let to = (from + 1 + load.to.index(ends.len() - 1)) % ends.len();
    // A host has no DMA engine, so the other end moves the data.
    let mode = match (from, to) {
        (0, _) => Mode::Read,
        (_, 0) => Mode::Write,
        _ => load.mode,
    };
    StreamSpec {
        from: ends[from].clone(),
        to: ends[to].clone(),
        mode: Some(mode),
        size: Bytes(load.size_bytes),
        io: Bytes(load.io_bytes.max(load.size_bytes / 2000)),
        depth: load.depth,
        start: Seconds(load.start_s),
        tc: load.tc,
        weight: 1 + load.depth % 3,
        fence: load.fence_bytes.filter(|_| mode == Mode::Write).map(Bytes),
    }
}

fn simulate(scenario: &PcieScenario) -> PcieOutcome {
    pcie::simulate(scenario, |_| ControlFlow::Continue(())).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_byte_arrives_every_credit_comes_back_and_no_link_is_above_its_rate(
        scenario in scenarios()
    ) {
        let outcome = simulate(&scenario);
        let sizes: u64 = scenario.stream.iter().map(|s| s.size.0).sum();
        prop_assert_eq!(outcome.audit.injected_bytes, sizes);
        prop_assert_eq!(outcome.audit.delivered_bytes, sizes);
        prop_assert_eq!(outcome.audit.credits_missing, 0);
        for link in &outcome.links {
            prop_assert!(link.utilisation <= 1.0, "{} is {} busy", link.name, link.utilisation);
            let rate = link.wire_bytes as f64 / outcome.simulated_s.0;
            prop_assert!(rate <= link.capacity_bytes_per_s.0, "{} carries {rate}", link.name);
        }
        for stream in &outcome.streams {
            let overall = stream.overall_bytes_per_s.0;
            prop_assert!(overall > 0.0 && stream.latency.median_s.0 > 0.0, "{}", stream.name);
        }
    }

    #[test]
    fn rates_are_within_the_links_and_by_littles_law(scenario in scenarios()) {
        let outcome = simulate(&scenario);
        let topology = PcieTopology::new(&scenario);
        let rates: Vec<f64> = outcome.streams.iter().map(|s| s.bytes_per_s.0).collect();
        let mut loads = BTreeMap::new();
        for (stream, rate) in topology.streams.iter().zip(&rates) {
            for (resource, cost) in costs(&topology, stream) {
                let load: &mut f64 = loads.entry(resource).or_default();
                // Rates of different times do not add up; each must still be possible.
                *load = match outcome.measured_s {
                    Some(_) => *load + cost * rate,
                    None => load.max(cost * rate),
                };
            }
        }
        for (resource, load) in loads {
            if let Resource::Port(port) = resource {
                let rate = capacity(&topology, resource);
                prop_assert!(load <= 1.01 * rate, "{port:?} carries {load} of {rate}");
            }
        }
        prop_assert_eq!(outcome.total_bytes_per_s.is_some(), outcome.measured_s.is_some() || rates.len() == 1);
        if let Some(total) = outcome.total_bytes_per_s {
            prop_assert!(total.0 <= 1.001 * rates.iter().sum::<f64>());
        }
        for (stream, found) in topology.streams.iter().zip(&outcome.streams) {
            let in_flight = found.ios_per_s * found.latency.mean_s.0;
            prop_assert!(in_flight <= 1.011 * stream.depth as f64, "{} of {}", in_flight, stream.depth);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(scenario in scenarios()) {
        let text = |scenario: &PcieScenario| serde_json::to_string(&simulate(scenario)).unwrap();
        prop_assert_eq!(text(&scenario), text(&scenario));
    }

    #[test]
    fn the_shortcuts_of_the_engine_do_not_change_the_outcome(
        scenario in scenarios()
    ) {
        let mut scenario = scenario;
        for node in &mut scenario.node {
            // The random draws would depend on the order of events.
            node.jitter = None;
        }
        let topology = PcieTopology::new(&scenario);
        let told = |engine: Engine| {
            let finished = engine.run(|_| ControlFlow::Continue(())).unwrap();
            let mut outcome = pcie::outcome::outcome(&scenario, &topology, &finished);
            // The shortcuts differ only here: fewer events, and no accounting of ample credits.
            outcome.audit.events = 0;
            outcome.links.iter_mut().for_each(|link| link.starved = 0.0);
            serde_json::to_string(&outcome).unwrap()
        };
        let quick = told(Engine::new(&scenario, &topology));
        prop_assert_eq!(quick, told(Engine::without_shortcuts(&scenario, &topology)));
    }

    #[test]
    fn a_damaged_scenario_is_read_or_refused_and_never_panics(
        case in 0..pcie::CASES.len(),
        cut in any::<prop::sample::Index>(),
        into in any::<prop::sample::Index>(),
        put in "[0-9\\-\\[\\]\"a-z=.\n]{0,12}",
    ) {
        let text = pcie::CASES[case].text;
        let chars: Vec<char> = text.chars().collect();
        let (a, b) = (cut.index(chars.len()), into.index(chars.len()));
        let (a, b) = (a.min(b), a.max(b).min(a.min(b) + 40));
        let mangled: String = chars[..a].iter().chain(&put.chars().collect::<Vec<_>>()).chain(&chars[b..]).collect();
        if let Err(refusals) = check::read::<PcieScenario>(&mangled) {
            prop_assert!(refusals.0.iter().all(|r| r.line.is_some()), "{refusals}");
        }
    }
}

#[test]
fn a_simulation_can_be_watched_and_cancelled() {
    let mut scenario: PcieScenario = check::read(pcie::case("article-8gpu").unwrap().text).unwrap();
    let mut shares = Vec::new();
    let all = pcie::simulate(&scenario, |share| {
        shares.push(share);
        ControlFlow::Continue(())
    });
    assert!(all.is_ok() && shares.len() > 2);
    assert!(shares.is_sorted() && shares.iter().all(|s| (0.0..=1.0).contains(s)));
    scenario.stream[0].size = Bytes::gib(8);
    let error = pcie::simulate(&scenario, |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(error.kind(), straightway_core::ErrorKind::Cancelled);
}

#[test]
fn one_thread_and_many_give_the_same_sweep_and_the_same_what_if() {
    let mut scenario: PcieScenario = check::read(pcie::case("dgx-h100").unwrap().text).unwrap();
    for stream in &mut scenario.stream {
        stream.size = Bytes::kib(256);
    }
    let base = simulate(&scenario);
    let all = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let go = |_| ControlFlow::Continue(());
            let sweep = pcie::sweep(&scenario, go).unwrap();
            let changes = pcie::what_if(&scenario, &base, go).unwrap();
            serde_json::to_string(&(sweep, changes)).unwrap()
        })
    };
    assert_eq!(all(1), all(4));
}
