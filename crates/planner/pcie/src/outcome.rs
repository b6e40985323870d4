//! The result of a simulation. Every figure has its unit in its name and is ready for JSON.

use serde::Serialize;
use straightway_core::{Rate, Seconds, random::Seed};

use super::{
    article,
    bottleneck::{self, Bottleneck},
    bound::{costs, fair_shares},
    client_host::VALID_FOR,
    engine::{Finished, Progress},
    link::FORMULAS,
    measure::{Measured, measure},
    scenario::{Mode, PcieScenario},
    topology::{PcieTopology, PortName},
};
use straightway_scenario::provenance::{Basis, Citation};

/// The result of one simulation.
#[derive(Clone, Debug, Serialize)]
pub struct PcieOutcome {
    /// The scenario's title.
    pub title: String,
    /// The seed it ran with.
    pub seed: Seed,
    /// All streams together, within [`Self::measured_s`]; a single stream without one, over its own time. Absent if
    /// several streams were never steady at the same time: rates of different times have no total.
    pub total_bytes_per_s: Option<Rate>,
    /// The same, but absent also for a single stream that was never steady.
    pub steady_bytes_per_s: Option<Rate>,
    /// The average of the streams' rates; absent if there is no total.
    pub mean_bytes_per_s: Option<Rate>,
    /// I/Os per second of all streams together.
    pub ios_per_s: f64,
    /// All bytes over all time, start and end included.
    pub overall_bytes_per_s: Rate,
    /// The total of all streams if every link is shared evenly, by the analytic model. An arbiter may prefer some
    /// streams, so the simulated total may be more or less.
    pub fair_bytes_per_s: Rate,
    /// The start and end of the span in which rates were measured: all streams run in it, and starts and ends of
    /// streams are left out. Absent if the streams overlap too little; then each stream's bytes are taken over its
    /// own time, and all bytes over all time.
    pub measured_s: Option<[Seconds; 2]>,
    /// From the first start to the last byte.
    pub simulated_s: Seconds,
    /// Each stream.
    pub streams: Vec<StreamOutcome>,
    /// Each link and direction that carried something, and memories with a rate.
    pub links: Vec<LinkOutcome>,
    /// The bottleneck that limits the most traffic.
    pub bottleneck: Bottleneck,
    /// The conservation counters.
    pub audit: Audit,
    /// Known reasons why the rates may be wrong.
    pub warnings: Vec<String>,
    /// The hosts that the model is for.
    pub valid_for: &'static str,
    /// Formulas, constants and corrections.
    pub basis: Basis,
}

/// The result of one stream.
#[derive(Clone, Debug, Serialize)]
pub struct StreamOutcome {
    /// `from → to`.
    pub name: String,
    /// The side that moved the data.
    pub mode: Mode,
    /// Bytes moved.
    pub bytes: u64,
    /// The rate within [`PcieOutcome::measured_s`].
    pub bytes_per_s: Rate,
    /// The rate from its start to its last byte.
    pub overall_bytes_per_s: Rate,
    /// Its even share by the analytic model; not a bound.
    pub fair_bytes_per_s: Rate,
    /// I/Os per second, by the rate above.
    pub ios_per_s: f64,
    /// The latency of I/Os.
    pub latency: IoLatency,
    /// The number of ordering fences.
    pub fences: u64,
    /// The time spent waiting for fences.
    pub fence_wait_s: Seconds,
    /// The mean time of a fence.
    pub fence_mean_s: Option<Seconds>,
    /// The bottleneck of the stream.
    pub limit: Bottleneck,
}

/// The latency of I/Os, from issue to the last byte.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IoLatency {
    /// The mean.
    pub mean_s: Seconds,
    /// The 50th percentile.
    pub median_s: Seconds,
    /// The 99th percentile.
    pub p99_s: Seconds,
    /// The 99.9th percentile.
    pub p999_s: Seconds,
    /// The maximum.
    pub max_s: Seconds,
}

/// The load of one link in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct LinkOutcome {
    /// `from → to`.
    pub name: String,
    /// Generation and width, if it is a PCIe link.
    pub width: Option<String>,
    /// The capacity, headers included.
    pub capacity_bytes_per_s: Rate,
    /// The share of the time it was sending.
    pub utilisation: f64,
    /// Bytes carried, headers included.
    pub wire_bytes: u64,
    /// Payload bytes carried.
    pub payload_bytes: u64,
    /// Packets.
    pub tlps: u64,
    /// The share of the time in which a TLP was ready and the receiver had no credits.
    pub starved: f64,
}

/// Conservation counters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Bytes that the streams sent or requested.
    pub injected_bytes: u64,
    /// Bytes that arrived.
    pub delivered_bytes: u64,
    /// Credits and tags that were never returned.
    pub credits_missing: u64,
    /// Packets, each counted once however many links it crossed.
    pub tlps: u64,
    /// The sum over all packets of the links that each crossed.
    pub hops: u64,
    /// Events that the simulator processed.
    pub events: u64,
}

/// A picosecond in seconds.
const PS: f64 = 1e-12;

/// Builds the result of a finished run.
pub(super) fn outcome(scenario: &PcieScenario, topology: &PcieTopology, run: &Finished) -> PcieOutcome {
    let first = run.streams.iter().map(|s| s.start).min().unwrap_or(0);
    let last = run.streams.iter().map(|s| s.last).max().unwrap_or(0);
    let simulated_s = (last.saturating_sub(first)).max(1) as f64 * PS;
    let links = links(topology, run, simulated_s);
    let costs: Vec<_> = topology.streams.iter().map(|s| costs(topology, s)).collect();
    let measured = measure(topology, run, &costs);
    let limits = bottleneck::limits(topology, run, &costs, &measured, simulated_s);
    let fair = fair_shares(topology);
    let streams: Vec<StreamOutcome> = run
        .streams
        .iter()
        .enumerate()
        .map(|(i, progress)| StreamOutcome {
            fair_bytes_per_s: Rate(fair[i].bytes_per_s),
            limit: limits[i].limit.clone(),
            ..stream(topology, i, progress, measured.stream_bytes_per_s[i])
        })
        .collect();
    let rates: f64 = streams.iter().map(|s| s.bytes_per_s.0).sum();
    let delivered: u64 = run.streams.iter().map(|s| s.delivered_bytes).sum();
    let has_total = measured.span.is_some() || streams.len() == 1;
    let mut outcome = PcieOutcome {
        title: scenario.title.clone(),
        seed: scenario.seed,
        total_bytes_per_s: has_total.then_some(Rate(measured.total_bytes_per_s)),
        steady_bytes_per_s: measured.span.map(|_| Rate(measured.total_bytes_per_s)),
        mean_bytes_per_s: has_total.then_some(Rate(rates / streams.len() as f64)),
        ios_per_s: ios_per_s(&measured, run),
        overall_bytes_per_s: Rate(delivered as f64 / simulated_s),
        fair_bytes_per_s: Rate(fair.iter().map(|f| f.bytes_per_s).sum()),
        measured_s: measured
            .span
            .map(|(from, to)| [from, to].map(|at| Seconds(at as f64 * PS))),
        simulated_s: Seconds(simulated_s),
        bottleneck: bottleneck::bottleneck(topology, &limits, &measured),
        streams,
        audit: Audit {
            injected_bytes: run.streams.iter().map(|s| s.sent_bytes).sum(),
            delivered_bytes: delivered,
            credits_missing: run.credits_missing,
            tlps: run.tlps,
            hops: links.iter().map(|l| l.tlps).sum(),
            events: run.events,
        },
        links,
        warnings: scenario.warnings(),
        valid_for: VALID_FOR,
        basis: basis(scenario, topology),
    };
    let answer = serde_json::to_value(&outcome).expect("an outcome is plain data");
    let judged = scenario.claims.iter().filter_map(|claim| claim.judge(&answer));
    outcome.basis.corrections = judged.collect();
    if let Some(article) = scenario.article {
        outcome.basis.corrections.extend(article::corrections(article));
    }
    outcome
}

/// I/Os per second of all streams, over the measured time.
fn ios_per_s(measured: &Measured, run: &Finished) -> f64 {
    let of = |(progress, rate): (&Progress, &f64)| rate * progress.ios as f64 / progress.size_bytes as f64;
    if measured.span.is_some() {
        let rates = &measured.stream_bytes_per_s;
        return run.streams.iter().zip(rates).map(of).sum();
    }
    let ios: u64 = run.streams.iter().map(|s| s.ios).sum();
    let bytes: u64 = run.streams.iter().map(|s| s.size_bytes).sum();
    measured.total_bytes_per_s * ios as f64 / bytes as f64
}

fn stream(topology: &PcieTopology, number: usize, progress: &Progress, bytes_per_s: f64) -> StreamOutcome {
    let spec = &topology.streams[number];
    let latency = &progress.latency;
    let quantile = |q: f64| Seconds(latency.value_at_quantile(q) as f64 * PS);
    StreamOutcome {
        name: spec.name.clone(),
        mode: spec.mode,
        bytes: progress.size_bytes,
        bytes_per_s: Rate(bytes_per_s),
        overall_bytes_per_s: Rate(progress.overall_bytes_per_s()),
        fair_bytes_per_s: Rate(0.0),
        ios_per_s: bytes_per_s * progress.ios as f64 / progress.size_bytes as f64,
        latency: IoLatency {
            mean_s: Seconds(latency.mean() * PS),
            median_s: quantile(0.5),
            p99_s: quantile(0.99),
            p999_s: quantile(0.999),
            max_s: quantile(1.0),
        },
        fences: progress.fences,
        fence_wait_s: Seconds(progress.fence_wait as f64 * PS),
        fence_mean_s: (progress.fences > 0).then(|| Seconds(progress.fence_wait as f64 * PS / progress.fences as f64)),
        limit: Bottleneck {
            what: String::new(),
            why: String::new(),
        },
    }
}

fn links(topology: &PcieTopology, run: &Finished, seconds: f64) -> Vec<LinkOutcome> {
    let used = run.ports.iter().filter(|(_, tally)| tally.tlps > 0);
    used.map(|(port, tally)| {
        let (capacity, width) = topology.port_rate(*port);
        let is_link = matches!(port, PortName::Up(_) | PortName::Down(_));
        LinkOutcome {
            name: topology.port_label(*port),
            width: width.filter(|_| is_link).map(|w| w.to_string()),
            capacity_bytes_per_s: Rate(capacity),
            utilisation: tally.busy as f64 * PS / seconds,
            wire_bytes: tally.wire_bytes,
            payload_bytes: tally.payload_bytes,
            tlps: tally.tlps,
            starved: tally.starved as f64 * PS / seconds,
        }
    })
    .collect()
}

fn basis(scenario: &PcieScenario, topology: &PcieTopology) -> Basis {
    let mut basis = Basis::of(&FORMULAS);
    topology.assume(&mut basis);
    let settings = &scenario.pcie;
    let given = Citation::quoted(
        "PCI Express base specification",
        "values that current machines train to",
    );
    basis.parameter("pcie.mps", "largest payload", settings.mps.0 as f64, "B", given);
    basis.parameter("pcie.mrrs", "largest read request", settings.mrrs.0 as f64, "B", given);
    basis.parameter(
        "pcie.link_latency",
        "link latency",
        settings.link_latency.0 * 1e9,
        "ns",
        given,
    );
    if let Some(machine) = &scenario.machine {
        machine.assume_efficiency(&mut basis, "machine");
    }
    basis
}
