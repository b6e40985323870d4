//! What a simulation says: every figure with its unit in its name, ready for JSON.

use serde::Serialize;
use straightway_core::{Rate, Seconds};

use super::{
    article,
    bottleneck::{self, Limit},
    bound::{costs, fair_shares},
    engine::{Finished, Progress},
    link::FORMULAS,
    measure::{Measured, measure},
    scenario::{Mode, Scenario},
    topology::{PortName, Topology},
};
use straightway_scenario::{
    provenance::{Basis, Source},
    seed::Seed,
};

/// Everything one simulation found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// The seed it ran with.
    pub seed: Seed,
    /// All streams together, in the time that [`Self::measured_s`] names; without one, bytes over all time, which is
    /// no rate that the tree sustains.
    pub total_bytes_per_s: Rate,
    /// The same where all streams ran steadily at once, and nothing where they never did.
    pub steady_bytes_per_s: Option<Rate>,
    /// The average of the streams' rates.
    pub mean_bytes_per_s: Rate,
    /// I/Os a second of all streams together.
    pub ios_per_s: f64,
    /// All bytes over all time, start and end included.
    pub overall_bytes_per_s: Rate,
    /// What all streams get together if the analytic model shares every link out evenly. Streams
    /// that an arbiter prefers may get more of one link, and all together more or less.
    pub fair_bytes_per_s: Rate,
    /// From when to when the rates were measured: a time in which all streams run, without its start
    /// and end. Missing where they have too little in common; then each stream's bytes are taken
    /// over its own time, and all bytes over all time.
    pub measured_s: Option<[Seconds; 2]>,
    /// From the first start to the last byte.
    pub simulated_s: Seconds,
    /// Each stream.
    pub streams: Vec<StreamOutcome>,
    /// Each link and direction that carried something, and memories with a rate.
    pub links: Vec<LinkOutcome>,
    /// What holds back the most of what is moved.
    pub bottleneck: Limit,
    /// What was conserved.
    pub audit: Audit,
    /// Formulas, constants and corrections.
    pub basis: Basis,
}

/// What one stream got.
#[derive(Clone, Debug, Serialize)]
pub struct StreamOutcome {
    /// `from → to`.
    pub name: String,
    /// Who moved the data.
    pub mode: Mode,
    /// Bytes moved.
    pub bytes: u64,
    /// The rate in the time that [`Outcome::measured_s`] names.
    pub bytes_per_s: Rate,
    /// The rate from its start to its last byte.
    pub overall_bytes_per_s: Rate,
    /// Its even share by the analytic model; not a bound.
    pub fair_bytes_per_s: Rate,
    /// I/Os a second, by the rate above.
    pub ios_per_s: f64,
    /// How long an I/O took.
    pub latency: Latency,
    /// Ordering fences, and the time spent waiting for them.
    pub fences: u64,
    /// See [`Self::fences`].
    pub fence_wait_s: Seconds,
    /// How long one of them took.
    pub fence_mean_s: Option<Seconds>,
    /// What held it back.
    pub limit: Limit,
}

/// The latency of I/Os, from issue to the last byte.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean_s: Seconds,
    /// Half are faster.
    pub median_s: Seconds,
    /// 99 in 100 are faster.
    pub p99_s: Seconds,
    /// 999 in 1000 are faster.
    pub p999_s: Seconds,
    /// The slowest.
    pub max_s: Seconds,
}

/// What one link did in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct LinkOutcome {
    /// `from → to`.
    pub name: String,
    /// Generation and width, where it is a PCIe link.
    pub width: Option<String>,
    /// What it could carry, headers included.
    pub capacity_bytes_per_s: Rate,
    /// The share of the time it was sending.
    pub utilisation: f64,
    /// What it carried, headers included.
    pub wire_bytes: u64,
    /// What it carried, payload alone.
    pub payload_bytes: u64,
    /// Packets.
    pub tlps: u64,
    /// The share of the time something was ready and the far end had no room.
    pub starved: f64,
}

/// What went in and what came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Bytes the streams sent or asked for.
    pub injected_bytes: u64,
    /// Bytes that arrived.
    pub delivered_bytes: u64,
    /// Credits and tags that were never given back.
    pub credits_missing: u64,
    /// Packets, each counted once however many links it crossed.
    pub tlps: u64,
    /// Packets times the links each crossed.
    pub hops: u64,
    /// Events the simulator took for that.
    pub events: u64,
}

/// A picosecond in seconds.
const PS: f64 = 1e-12;

/// Puts a finished run into words and units.
pub(super) fn outcome(scenario: &Scenario, topology: &Topology, run: &Finished) -> Outcome {
    let first = run.streams.iter().map(|s| s.start).min().unwrap_or(0);
    let last = run.streams.iter().map(|s| s.last).max().unwrap_or(0);
    let simulated_s = (last.saturating_sub(first)).max(1) as f64 * PS;
    let links = links(topology, run, simulated_s);
    let costs: Vec<_> = topology
        .streams
        .iter()
        .map(|s| costs(topology, s))
        .collect();
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
    let mut outcome = Outcome {
        title: scenario.title.clone(),
        seed: scenario.seed,
        total_bytes_per_s: Rate(measured.total_bytes_per_s),
        steady_bytes_per_s: measured.span.map(|_| Rate(measured.total_bytes_per_s)),
        mean_bytes_per_s: Rate(rates / streams.len() as f64),
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
        basis: basis(scenario, topology),
    };
    let answer = serde_json::to_value(&outcome).expect("an outcome is plain data");
    let judged = scenario
        .claims
        .iter()
        .filter_map(|claim| claim.judge(&answer));
    outcome.basis.corrections = judged.collect();
    if let Some(article) = scenario.article {
        outcome
            .basis
            .corrections
            .extend(article::corrections(article));
    }
    outcome
}

/// I/Os a second of all streams: those of the time that was measured.
fn ios_per_s(measured: &Measured, run: &Finished) -> f64 {
    let of = |(progress, rate): (&Progress, &f64)| {
        rate * progress.ios as f64 / progress.size_bytes as f64
    };
    if measured.span.is_some() {
        let rates = &measured.stream_bytes_per_s;
        return run.streams.iter().zip(rates).map(of).sum();
    }
    let ios: u64 = run.streams.iter().map(|s| s.ios).sum();
    let bytes: u64 = run.streams.iter().map(|s| s.size_bytes).sum();
    measured.total_bytes_per_s * ios as f64 / bytes as f64
}

fn stream(
    topology: &Topology,
    number: usize,
    progress: &Progress,
    bytes_per_s: f64,
) -> StreamOutcome {
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
        latency: Latency {
            mean_s: Seconds(latency.mean() * PS),
            median_s: quantile(0.5),
            p99_s: quantile(0.99),
            p999_s: quantile(0.999),
            max_s: quantile(1.0),
        },
        fences: progress.fences,
        fence_wait_s: Seconds(progress.fence_wait as f64 * PS),
        fence_mean_s: (progress.fences > 0)
            .then(|| Seconds(progress.fence_wait as f64 * PS / progress.fences as f64)),
        limit: Limit {
            what: String::new(),
            why: String::new(),
        },
    }
}

fn links(topology: &Topology, run: &Finished, seconds: f64) -> Vec<LinkOutcome> {
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

fn basis(scenario: &Scenario, topology: &Topology) -> Basis {
    let mut basis = Basis::of(&FORMULAS);
    topology.assume(&mut basis);
    let settings = &scenario.pcie;
    let given = Source::quoted(
        "PCI Express base specification",
        "values that machines of today train to",
    );
    basis.parameter(
        "pcie.mps",
        "largest payload",
        settings.mps.0 as f64,
        "B",
        given,
    );
    basis.parameter(
        "pcie.mrrs",
        "largest read request",
        settings.mrrs.0 as f64,
        "B",
        given,
    );
    basis.parameter(
        "pcie.link_latency",
        "link latency",
        settings.link_latency.0 * 1e9,
        "ns",
        given,
    );
    basis
}
