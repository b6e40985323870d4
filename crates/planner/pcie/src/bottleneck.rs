//! Finds the link, engine or buffer that limits a stream, and the evidence for it.
//!
//! A stream is limited by the busiest resource on its path, if that is full. If none is full, either a port had TLPs
//! but no credits to send them, or the stream has too little in flight for its latency.

use std::collections::BTreeMap;

use serde::Serialize;
use straightway_core::{Bytes, Rate, Seconds};

use super::{
    bound::{Resource, capacity},
    engine::Finished,
    measure::Measured,
    scenario::{Arbiter, Mode},
    topology::{PcieTopology, PortName, initiator},
};

/// From this utilisation on, a resource counts as full. Round robin between unequal TLPs and the start and end of a
/// run leave a few percent unused.
const FULL_SHARE: f64 = 0.9;

/// From this share of the time on, missing credits count as the bottleneck.
const STARVED_SHARE: f64 = 0.25;

/// From this share of the time on, fences do: the pipeline is otherwise never idle.
const FENCED_SHARE: f64 = 0.05;

/// From this share of the maximum on, two bottlenecks limit the same amount of traffic.
const AS_MUCH: f64 = 0.99;

/// The bottleneck of a stream or of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bottleneck {
    /// The limiting resource.
    pub what: String,
    /// The evidence.
    pub why: String,
}

/// The bottleneck of a stream, and its resource if there is one.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) limit: Bottleneck,
    by: Option<Resource>,
}

/// Finds the bottleneck of each stream. `used` is the cost of a byte of each stream at every resource on its path.
pub(super) fn limits(
    topology: &PcieTopology,
    run: &Finished,
    used: &[BTreeMap<Resource, f64>],
    measured: &Measured,
    seconds: f64,
) -> Vec<Held> {
    let mut sharers: BTreeMap<Resource, usize> = BTreeMap::new();
    for resource in used.iter().flat_map(BTreeMap::keys) {
        *sharers.entry(*resource).or_default() += 1;
    }
    let busy = busy(run, seconds);
    (0..used.len())
        .map(|i| {
            let share = |r: &Resource| {
                // The stream's own time, not that of all streams: while it waits for its first byte, nothing limits it.
                let span = run.streams[i].steady();
                let span = span.unwrap_or_else(|| measured.span_of(&run.streams[i]));
                let steady = steady_share(topology, run, used, span, *r);
                busy.get(r).copied().unwrap_or(0.0).max(steady)
            };
            let busiest = used[i].keys().copied().max_by(|a, b| share(a).total_cmp(&share(b)));
            match busiest.filter(|r| share(r) >= FULL_SHARE) {
                Some(r) => Held {
                    limit: full(topology, r, share(&r), sharers[&r]),
                    by: Some(r),
                },
                None => starved_or_latent(topology, run, seconds, i, &used[i]),
            }
        })
        .collect()
}

/// The utilisation of a resource by all streams within `span`. In a short run this is more accurate than its busy
/// time, since the wait for the first byte is a large part of the run.
fn steady_share(
    topology: &PcieTopology,
    run: &Finished,
    used: &[BTreeMap<Resource, f64>],
    span: (u64, u64),
    resource: Resource,
) -> f64 {
    let seconds = (span.1 - span.0).max(1) as f64 * 1e-12;
    let taken = used.iter().zip(&run.streams).filter_map(|(used, progress)| {
        let cost = used.get(&resource)?;
        Some(cost * progress.bytes_within(span) / seconds)
    });
    (taken.sum::<f64>() / capacity(topology, resource)).min(1.0)
}

/// The share of the time in which each resource was busy.
fn busy(run: &Finished, seconds: f64) -> BTreeMap<Resource, f64> {
    let share = |ps: u64| ps as f64 * 1e-12 / seconds;
    let ports = run
        .ports
        .iter()
        .map(|(port, tally)| (Resource::Port(*port), share(tally.busy)));
    let devices = run
        .devices
        .iter()
        .enumerate()
        .flat_map(|(n, [writes, reads, out, into])| {
            [
                (Resource::Writes(n), share(*writes)),
                (Resource::Reads(n), share(*reads)),
                (Resource::MediaOut(n), share(*out)),
                (Resource::MediaIn(n), share(*into)),
            ]
        });
    ports.chain(devices).collect()
}

fn full(topology: &PcieTopology, resource: Resource, share: f64, sharers: usize) -> Bottleneck {
    let percent = share * 100.0;
    let streams = match sharers {
        1 => "one stream".to_owned(),
        n => format!("{n} streams"),
    };
    let name = |n: usize| &topology.nodes[n].name;
    let (what, why) = match resource {
        Resource::Port(port) => {
            let (rate, width) = topology.port_rate(port);
            let width = width.map_or_else(String::new, |w| format!("{w}, "));
            let what = match port {
                PortName::Up(_) | PortName::Down(_) => {
                    format!("link {}", topology.port_label(port))
                }
                _ => topology.port_label(port),
            };
            let why = format!(
                "{width}{} with headers, of which {streams} took {percent:.1} %",
                Rate(rate)
            );
            (what, why)
        }
        Resource::MediaOut(n) => (
            format!("media of {}", name(n)),
            format!("reading {percent:.1} % of the time for {streams}"),
        ),
        Resource::MediaIn(n) => (
            format!("media of {}", name(n)),
            format!("writing {percent:.1} % of the time for {streams}"),
        ),
        Resource::Writes(n) => (
            format!("DMA engine of {}", name(n)),
            format!("issuing writes {percent:.1} % of the time for {streams}"),
        ),
        Resource::Reads(n) => (
            format!("DMA engine of {}", name(n)),
            format!("issuing reads {percent:.1} % of the time for {streams}"),
        ),
        Resource::Tags(n) => (
            format!("tags of {}", name(n)),
            format!(
                "{} outstanding for {streams}, {percent:.1} % of the time",
                match topology.nodes[n].tags {
                    1 => "one read".to_owned(),
                    tags => format!("{tags} reads"),
                }
            ),
        ),
    };
    Bottleneck { what, why }
}

fn starved_or_latent(
    topology: &PcieTopology,
    run: &Finished,
    seconds: f64,
    number: usize,
    used: &BTreeMap<Resource, f64>,
) -> Held {
    let stream = &topology.streams[number];
    let on_way = |port: &PortName| used.contains_key(&Resource::Port(*port));
    let starved = run.ports.iter().filter(|(port, _)| on_way(port));
    let starved = starved.max_by_key(|(_, tally)| tally.starved);
    if let Some((port, tally)) = starved
        && tally.starved as f64 * 1e-12 / seconds >= STARVED_SHARE
    {
        let percent = tally.starved as f64 * 1e-10 / seconds;
        return Held {
            limit: Bottleneck {
                what: format!("credits of {}", topology.port_label(*port)),
                why: format!("TLPs were ready and the far end had no room {percent:.0} % of the time"),
            },
            by: Some(Resource::Port(*port)),
        };
    }
    let progress = &run.streams[number];
    let fenced = progress.fence_wait as f64 * 1e-12;
    let active = (progress.last - progress.start) as f64 * 1e-12;
    if fenced / active >= FENCED_SHARE {
        let each = Seconds(fenced / progress.fences as f64);
        return Held {
            limit: Bottleneck {
                what: "fences".to_owned(),
                why: format!(
                    "{} of {each} each take {:.0} % of its time",
                    progress.fences,
                    100.0 * fenced / active
                ),
            },
            by: None,
        };
    }
    let node = &topology.nodes[initiator(stream)];
    let verb = match (stream.mode, stream.depth) {
        (Mode::Write, 1) => "write",
        (Mode::Write, _) => "writes",
        (Mode::Read, 1) => "read",
        (Mode::Read, _) => "reads",
    };
    Held {
        limit: Bottleneck {
            what: "latency".to_owned(),
            why: format!(
                "{} {verb} of {} in flight on {}, {} each",
                stream.depth,
                Bytes(stream.io_bytes),
                node.name,
                Seconds(progress.latency.mean() * 1e-12),
            ),
        },
        by: None,
    }
}

/// Returns the bottleneck that limits the most traffic, with the shares that its arbiter gave. A resource that limits
/// many slow streams matters less than one that limits a fast stream.
pub(super) fn bottleneck(topology: &PcieTopology, held: &[Held], measured: &Measured) -> Bottleneck {
    let rates = &measured.stream_bytes_per_s;
    let mut holds: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (i, one) in held.iter().enumerate() {
        let entry = holds.entry(one.limit.what.as_str()).or_insert((0.0, i));
        entry.0 += rates[i];
    }
    let most = holds.values().map(|(rate, _)| *rate).fold(0.0, f64::max);
    // Of those that limit as much traffic, the one that limits the first stream.
    let as_much = holds.values().filter(|(rate, _)| *rate >= AS_MUCH * most);
    let Some(first) = as_much.map(|(_, first)| *first).min() else {
        unreachable!("a scenario has a stream");
    };
    let one = &held[first];
    let mut limit = one.limit.clone();
    let rates = held.iter().zip(rates).filter(|(h, _)| h.limit.what == limit.what);
    let rates: Vec<f64> = rates.map(|(_, rate)| *rate).collect();
    if let (Some(Resource::Port(port)), true) = (one.by, rates.len() > 1) {
        let least = rates.iter().copied().fold(f64::MAX, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let arbiter = match arbiter_of(topology, port) {
            Arbiter::RoundRobin => "round robin",
            Arbiter::WeightedRoundRobin => "weighted round robin",
            Arbiter::WeightedFair => "weighted fair queueing",
        };
        let shares = if most / least < 1.01 {
            format!("{} each", Rate(least))
        } else {
            format!("{} to {} each", Rate(least), Rate(most))
        };
        limit.why = format!("{}; {arbiter} gives them {shares}", limit.why);
    }
    limit
}

/// The arbiter of a port.
fn arbiter_of(topology: &PcieTopology, port: PortName) -> Arbiter {
    let node = |n: usize| &topology.nodes[n];
    match port {
        PortName::Down(n) => node(n).parent.map_or(node(n).arbiter, |p| node(p).arbiter),
        PortName::Up(n) | PortName::Peer(n) | PortName::Memory(n) => node(n).arbiter,
    }
}
