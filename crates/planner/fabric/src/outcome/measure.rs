//! Computes the outcome of a finished engine.

use straightway_core::{Rate, Seconds};

use super::{
    super::{
        engine::Engine,
        port::Port,
        scenario::{Control, FabricScenario},
        series::QueueSeries,
        topology::narrow,
        traffic::{Flow, Traffic},
    },
    BufferUse, CongestedLink, DeadlockAnswer, Distribution, Effort, FabricOutcome, Ledger, LinkUse, PauseSummary,
    Spreading, TrafficOutcome, Victim,
};
use crate::dcqcn::picoseconds;
use straightway_scenario::provenance::{Basis, Citation, Formula};

/// The maximum number of listed links, roots and victims, worst first.
const LISTED_MAX: usize = 20;

/// A flow counts as an innocent victim from this share of the run on: nearly every flow meets a pause or two.
const INNOCENT_SHARE_MIN: f64 = 0.01;

/// The outcome of one flow.
struct FlowOutcome {
    completion_s: Option<f64>,
    slowdown: Option<f64>,
    goodput: f64,
}

impl FabricOutcome {
    /// Computes the outcome of a finished engine.
    pub(crate) fn of(
        scenario: &FabricScenario,
        flows: &[Flow],
        engine: Engine<'_>,
        possible: Option<Vec<String>>,
    ) -> Self {
        let mut outcome = Self::measured(scenario, flows, engine, possible);
        if !scenario.claims.is_empty() {
            let answer = serde_json::to_value(&outcome).expect("plain data has a JSON form");
            let judged = scenario.claims.iter().filter_map(|c| c.judge(&answer));
            outcome.basis.corrections = judged.collect();
        }
        outcome
    }

    fn measured(scenario: &FabricScenario, flows: &[Flow], engine: Engine<'_>, possible: Option<Vec<String>>) -> Self {
        let outcomes: Vec<FlowOutcome> = (0..narrow(flows.len()))
            .map(|f| flow_outcome(scenario, &flows[f as usize], &engine, f))
            .collect();
        let tally = engine.tally;
        let ledger = Ledger {
            injected_bytes: tally.injected_bytes,
            delivered_bytes: tally.delivered_bytes,
            dropped_bytes: tally.dropped_bytes,
            discarded_bytes: tally.discarded_bytes,
            in_flight_bytes: engine.pool.live_bytes(),
            injected_packets: tally.injected_packets,
            dropped_packets: tally.dropped_packets,
        };
        Self {
            title: scenario.title.clone(),
            seed: scenario.seed.0,
            simulated: seconds(engine.now),
            offered: offered(flows, &engine),
            traffic: groups(scenario, flows, &outcomes),
            ledger,
            pauses: pauses(&engine),
            spreading: spreading(flows, &engine, &outcomes),
            links: links(&engine),
            buffer: buffer(&engine),
            effort: Effort {
                events: tally.events,
                packets: tally.injected_packets,
                packets_peak: engine.pool.peak(),
            },
            basis: basis(scenario, &engine),
            deadlock: DeadlockAnswer {
                possible,
                happened: engine.deadlock.clone(),
            },
            series: series(engine),
        }
    }
}

fn seconds(ps: u64) -> Seconds {
    Seconds(ps as f64 / 1e12)
}

/// The exact time of a flow through an empty fabric. Equal packets leave a hop at the rate of the slowest hop so far.
/// The last packet, which may be short, leaves when it has arrived and the one before it has left.
fn ideal_ps(scenario: &FabricScenario, engine: &Engine<'_>, flow: u32, payload: u64) -> u64 {
    let (packet, overhead) = (scenario.transport.packet.0, scenario.transport.overhead.0);
    let before_last = payload.div_ceil(packet).saturating_sub(1);
    let last_bytes = payload - before_last * packet + overhead;
    let latency_ps = picoseconds(scenario.switch.latency);
    let (mut first_there, mut last_there, mut slowest) = (0, 0, 0);
    let path = engine.routes.path(flow);
    for (hop, link) in path.iter().enumerate() {
        let port = &engine.ports[*link as usize];
        let takes = port.wire_time_ps(packet + overhead);
        slowest = takes.max(slowest);
        let free = match before_last {
            0 => 0,
            packets => first_there + takes + (packets - 1) * slowest,
        };
        // A host has no latency.
        let inside = if hop + 1 < path.len() { latency_ps } else { 0 };
        let onward = port.wire_ps + inside;
        first_there += takes + onward;
        last_there = last_there.max(free) + port.wire_time_ps(last_bytes) + onward;
    }
    last_there
}

fn flow_outcome(scenario: &FabricScenario, flow: &Flow, engine: &Engine<'_>, f: u32) -> FlowOutcome {
    let receiver = &engine.receivers[f as usize];
    let until = receiver.finished_ps.unwrap_or(engine.now);
    let took_ps = until.saturating_sub(flow.start_ps) as f64;
    let completion = receiver.finished_ps.map(|_| took_ps);
    let ideal = flow.bytes.map(|bytes| ideal_ps(scenario, engine, f, bytes) as f64);
    FlowOutcome {
        completion_s: completion.map(|ps| ps / 1e12),
        slowdown: completion.zip(ideal).map(|(took, ideal)| took / ideal),
        goodput: if took_ps > 0.0 {
            receiver.delivered_bytes as f64 / (took_ps / 1e12)
        } else {
            0.0
        },
    }
}

fn groups(scenario: &FabricScenario, flows: &[Flow], outcomes: &[FlowOutcome]) -> Vec<TrafficOutcome> {
    let mut members: Vec<Vec<&FlowOutcome>> = scenario.traffic.iter().map(|_| Vec::new()).collect();
    for (flow, outcome) in flows.iter().zip(outcomes) {
        members[flow.entry as usize].push(outcome);
    }
    let group = |(traffic, members): (&Traffic, &Vec<&FlowOutcome>)| {
        let goodput = members.iter().map(|f| f.goodput);
        TrafficOutcome {
            label: traffic.label(),
            flows: members.len(),
            finished: members.iter().filter(|f| f.completion_s.is_some()).count(),
            completion: Distribution::of(members.iter().filter_map(|f| f.completion_s).collect()),
            slowdown: Distribution::of(members.iter().filter_map(|f| f.slowdown).collect()),
            goodput_mean: Rate(goodput.clone().sum::<f64>() / members.len().max(1) as f64),
            goodput_min: Rate(goodput.fold(f64::INFINITY, f64::min)),
        }
    };
    scenario.traffic.iter().zip(&members).map(group).collect()
}

fn pauses(engine: &Engine<'_>) -> PauseSummary {
    let paused = || (0..engine.ports.len()).filter(|l| engine.pauses[*l].count > 0);
    let longest = engine.pauses.iter().map(|p| p.longest_ps).max();
    PauseSummary {
        frames: engine.tally.pause_frames,
        links: paused().count(),
        hosts: paused().filter(|l| engine.net.is_host(engine.ports[*l].from)).count(),
        first: engine.tally.first_pause_ps.map(seconds),
        longest: seconds(longest.unwrap_or(0)),
        notifications: engine.tally.notifications,
    }
}

fn spreading(flows: &[Flow], engine: &Engine<'_>, outcomes: &[FlowOutcome]) -> Spreading {
    let mut roots: Vec<(u64, u32)> = (0..)
        .zip(&engine.blame_ps)
        .map(|(l, ps)| (*ps, l))
        .filter(|(ps, _)| *ps > 0)
        .collect();
    roots.sort_unstable_by(|a, b| b.cmp(a));
    let mut innocent: Vec<(u64, usize)> = engine
        .held
        .iter()
        .enumerate()
        .map(|(f, held)| (held.innocent_ps, f))
        .filter(|(ps, _)| *ps as f64 > engine.now as f64 * INNOCENT_SHARE_MIN)
        .collect();
    innocent.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let slowdowns = innocent.iter().filter_map(|(_, f)| outcomes[*f].slowdown);
    let victim = |(ps, f): &(u64, usize)| {
        let name = |node: u32| &engine.net.names[node as usize];
        Victim {
            flow: format!("{} → {}", name(flows[*f].from), name(flows[*f].to)),
            innocent: seconds(*ps),
            goodput: Rate(outcomes[*f].goodput),
            slowdown: outcomes[*f].slowdown,
        }
    };
    Spreading {
        roots: roots
            .iter()
            .take(LISTED_MAX)
            .map(|(ps, link)| CongestedLink {
                link: engine.net.link_name(*link),
                silenced: seconds(*ps),
            })
            .collect(),
        held_flows: engine.held.iter().filter(|h| h.all_ps > 0).count(),
        innocent_flows: innocent.len(),
        innocent_slowdown: Distribution::of(slowdowns.collect()).map(|s| s.mean),
        victims: innocent.iter().take(LISTED_MAX).map(victim).collect(),
    }
}

fn links(engine: &Engine<'_>) -> Vec<LinkUse> {
    let mut order: Vec<usize> = (0..engine.ports.len())
        .filter(|l| engine.ports[*l].sent_bytes > 0 || engine.ports[*l].dropped_packets > 0)
        .collect();
    let weight = |l: &usize| {
        let port = &engine.ports[*l];
        (port.queue_peak, engine.pauses[*l].total_ps, port.sent_bytes)
    };
    order.sort_by(|a, b| weight(b).cmp(&weight(a)).then(a.cmp(b)));
    let elapsed_ps = engine.now.max(1) as f64;
    order
        .into_iter()
        .take(LISTED_MAX)
        .map(|l| {
            let port = &engine.ports[l];
            let rate = engine.net.links[l].rate;
            LinkUse {
                link: engine.net.link_name(narrow(l)),
                rate,
                utilisation: sent_ps(port, rate, engine.now) / elapsed_ps,
                queue_max: port.queue_peak,
                paused: seconds(engine.pauses[l].total_ps),
                marked_packets: port.marked_packets,
                dropped_packets: port.dropped_packets,
            }
        })
        .collect()
}

/// The time for which a link was sending. Bytes are counted when a frame starts, and one may still be leaving at the
/// end.
fn sent_ps(port: &Port, rate: Rate, now: u64) -> f64 {
    let all_ps = port.sent_bytes as f64 / rate.0 * 1e12;
    (all_ps - port.unsent_ps(now) as f64).max(0.0)
}

fn buffer(engine: &Engine<'_>) -> BufferUse {
    let first = engine.net.hosts as usize;
    let fullest = (first..engine.shared.len())
        .rev()
        .max_by_key(|n| engine.shared[*n].peak)
        .unwrap_or(first);
    let headroom = engine.ingress.iter().map(|i| i.headroom_peak).max();
    BufferUse {
        switch: engine.net.names[fullest].clone(),
        shared_peak_bytes: engine.shared[fullest].peak,
        shared_bytes: engine.shared[fullest].total,
        headroom_peak_bytes: headroom.unwrap_or(0),
    }
}

fn series(engine: Engine<'_>) -> Vec<QueueSeries> {
    let (net, now) = (engine.net, engine.now);
    let records = engine.records.into_iter();
    records
        .map(|(link, record)| record.finish(now, net.link_name(link)))
        .collect()
}

const MODELLED: [Formula; 3] = [
    Formula {
        gives: "marking",
        text: "p = pmax·(q − kmin)/(kmax − kmin) at the queue a packet leaves, 1 above kmax",
        source: Citation::read("DCQCN, SIGCOMM 2015", "section 3.1, with the switch's RED profile"),
    },
    Formula {
        gives: "pause threshold",
        text: "xoff at alpha · (shared buffer − used), xon resume_below under it",
        source: Citation::read("HPCC's ns-3 simulation", "switch-mmu.cc: (buffer − …) >> 3"),
    },
    Formula {
        gives: "slowdown",
        text: "completion ÷ the same packets over the same hops, each forwarded when complete",
        source: Citation::computed("store and forward", "an empty fabric"),
    },
];

fn basis(scenario: &FabricScenario, engine: &Engine<'_>) -> Basis {
    let mut basis = Basis::of(&MODELLED);
    let host = &engine.net.links[engine.net.leaving[0][0] as usize];
    let given = Citation::ASSUMED;
    let headroom = scenario.calculated_headroom(host);
    match scenario.switch.pfc.headroom {
        _ if !scenario.switch.pfc.enabled => {}
        Some(bytes) => {
            basis.parameter("switch.pfc.headroom", "headroom of a port", bytes.0 as f64, "B", given);
        }
        None => {
            let source = Citation::computed("SONiC's formula", "straightway sim headroom");
            basis.assume("headroom of a host's port", headroom as f64, "B", source);
        }
    }
    if scenario.marks() {
        let ecn = scenario.ecn(host.rate);
        let source = match (scenario.switch.ecn, scenario.transport.control) {
            (Some(_), _) => given,
            (None, Control::Dctcp) => Citation::read("HPCC's run.py", "dctcp: 30 KB per 10 Gb/s"),
            (None, _) => Citation::read("the parameter set", "scaled with the link's rate"),
        };
        basis.parameter("switch.ecn.kmin", "kmin", ecn.kmin.0 as f64, "B", source);
        basis.parameter("switch.ecn.kmax", "kmax", ecn.kmax.0 as f64, "B", source);
        basis.parameter("switch.ecn.pmax", "pmax", ecn.pmax, "share", source);
    }
    basis.parameter(
        "switch.latency",
        "switch latency",
        scenario.switch.latency.0 * 1e9,
        "ns",
        given,
    );
    basis
}

/// The total line rate of all sending hosts.
fn offered(flows: &[Flow], engine: &Engine<'_>) -> Rate {
    let senders: std::collections::BTreeSet<u32> = flows.iter().map(|f| f.from).collect();
    let links = senders.iter().map(|h| engine.net.leaving[*h as usize][0]);
    Rate(links.map(|l| engine.net.links[l as usize].rate.0).sum())
}
