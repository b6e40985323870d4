//! The page of a fabric simulation: the verdict, the flows, queues over time, pauses and their victims.

use straightway_core::{Bytes, Seconds};
use straightway_fabric::{FabricOutcome, FabricScenario, QueueSeries, TrafficOutcome};
use straightway_report::{self as report, Axis, Block, Cell, Chart, Column, Page, Table, Tone, Unit};

use crate::{
    basis::with_basis,
    cells::{count, gbit, paragraphs},
};

/// The most rows of a table, which has its worst row first.
const ROWS_MAX: usize = 8;

/// The mean number of packets per flow needed for a verdict. With fewer, queues have had no time to grow.
const PACKETS_MIN: u64 = 10;

/// The largest share of the sent bytes that may be in flight at the end of a run for a verdict. With more, queues were
/// still filling and their effect was not visible yet.
const IN_FLIGHT_MAX: f64 = 0.1;

/// The page of an outcome; `in_full` adds every formula and constant.
pub fn page(scenario: &FabricScenario, outcome: &FabricOutcome, in_full: bool) -> Page {
    with_basis(fill(scenario, outcome), &outcome.basis, in_full)
}

fn fill(scenario: &FabricScenario, outcome: &FabricOutcome) -> Page {
    let title = if outcome.title.is_empty() {
        "A fabric"
    } else {
        &outcome.title
    };
    let (tone, text) = verdict(scenario, outcome);
    let mut page = Page::new(title).verdict(tone, text);
    let about = paragraphs(&scenario.about);
    if !about.is_empty() {
        page = page.section("", [about.into()]);
    }
    page = page.section("Flows", [flows(outcome).into()]);
    if !outcome.series.is_empty() {
        page = page.section("Queues", queues(outcome));
    }
    page = page.section("Links, longest queue first", [links(outcome).into()]);
    if outcome.pauses.frames > 0 {
        page = page.section("Pauses", spreading(outcome));
    }
    page = page.section("Bytes", [ledger(outcome).into()]);
    page.fact("simulated", outcome.simulated.to_string())
        .fact("seed", outcome.seed.to_string())
}

fn verdict(scenario: &FabricScenario, outcome: &FabricOutcome) -> (Tone, String) {
    if let Some(deadlock) = &outcome.deadlock.happened {
        let cycle = deadlock.cycle.join(", ");
        let text = format!(
            "Deadlock, seen at {}: {cycle} wait for each other with {} in the buffers.",
            deadlock.seen,
            Bytes(deadlock.stuck_bytes)
        );
        return (Tone::Bad, text);
    }
    let dropped = outcome.ledger.dropped_packets;
    if dropped > 0 && scenario.switch.pfc.enabled {
        let dropped = count(dropped as f64);
        let text = format!("{dropped} packets were lost though the fabric is lossless: the headroom is too small.");
        return (Tone::Bad, text);
    }
    let flows: usize = outcome.traffic.iter().map(|t| t.flows).sum();
    if dropped == 0 && outcome.effort.packets < PACKETS_MIN * flows as u64 {
        let text = format!(
            "{} is too short for a verdict: {flows} flows sent {} packets, and {} flows finished.",
            outcome.simulated,
            count(outcome.effort.packets as f64),
            outcome.traffic.iter().map(|t| t.finished).sum::<usize>()
        );
        return (Tone::Neutral, text);
    }
    let innocent = outcome.spreading.innocent_flows;
    if innocent > 0 {
        let worst = &outcome.spreading.victims[0];
        let text = format!(
            "Congestion spread: {innocent} of {} flows were delayed by congestion that is not on \
             their path. {} was delayed longest and got {}.",
            outcome.traffic.iter().map(|t| t.flows).sum::<usize>(),
            worst.flow,
            worst.goodput
        );
        return (Tone::Caution, text);
    }
    if dropped > 0 {
        let text = format!("{} packets were lost and sent again.", count(dropped as f64));
        return (Tone::Caution, text);
    }
    let possible = match &outcome.deadlock.possible {
        Some(cycle) => format!(
            " A deadlock is possible: the paths form a cycle of {} buffers.",
            cycle.len()
        ),
        None => String::new(),
    };
    if let Some(text) = still_filling(outcome) {
        return (Tone::Neutral, format!("{text}{possible}"));
    }
    let tone = if possible.is_empty() { Tone::Good } else { Tone::Caution };
    let text = format!("Nothing was lost, and no flow was delayed by congestion off its path.{possible}");
    (tone, text)
}

/// The reason why a run without findings gives no verdict: its queues were still filling when it ended. In a run that
/// is long enough most of the sent bytes have arrived.
fn still_filling(outcome: &FabricOutcome) -> Option<String> {
    let ledger = &outcome.ledger;
    let share = ledger.in_flight_bytes as f64 / ledger.injected_bytes.max(1) as f64;
    (share > IN_FLIGHT_MAX).then(|| {
        format!(
            "Nothing was lost so far, but {} is too short for a verdict: {:.0} % of the sent bytes are still \
             in flight.",
            outcome.simulated,
            share * 100.0
        )
    })
}

fn flows(outcome: &FabricOutcome) -> Table {
    let columns = [
        Column::text("traffic"),
        Column::text("finished"),
        Column::new("p50", Unit::Seconds),
        Column::new("p99", Unit::Seconds),
        Column::new("max", Unit::Seconds),
        Column::new("slowdown p50", Unit::Count),
        Column::new("max ×", Unit::Count),
        Column::new("goodput each", Unit::Rate),
        Column::new("lowest", Unit::Rate),
    ];
    let mut table = Table::new("", columns);
    for group in outcome.traffic.iter().take(ROWS_MAX * 2) {
        table.push(flow_row(group));
    }
    table
}

fn flow_row(group: &TrafficOutcome) -> [Cell; 9] {
    let time = |value: Option<f64>| value.map_or(Cell::Missing, |s| Seconds(s).into());
    let times = |value: Option<f64>| value.map_or(Cell::Missing, Cell::count);
    [
        Cell::from(group.label.as_str()),
        format!("{} of {}", group.finished, group.flows).into(),
        time(group.completion.map(|c| c.p50)),
        time(group.completion.map(|c| c.p99)),
        time(group.completion.map(|c| c.max)),
        times(group.slowdown.map(|s| s.p50)),
        times(group.slowdown.map(|s| s.max)),
        group.goodput_mean.into(),
        group.goodput_min.into(),
    ]
}

fn queues(outcome: &FabricOutcome) -> Vec<Block> {
    let mut chart = Chart::new(
        "Recorded queues over time",
        Axis::linear("time", Unit::Seconds),
        Axis::linear("longest queue", Unit::Bytes),
    );
    for series in &outcome.series {
        chart = chart.with(report::Series::new(series.link.clone(), points(series)));
    }
    let paused = |series: &QueueSeries| {
        let ns: u64 = series.paused_ns.iter().sum();
        (ns > 0).then(|| format!("{} was paused for {}", series.link, Seconds(ns as f64 / 1e9)))
    };
    let paused: Vec<String> = outcome.series.iter().filter_map(paused).collect();
    let span = outcome.series.first().map_or(0, |s| s.span_ns);
    let mut text = format!(
        "The longest length of each queue in every interval of {}.",
        Seconds(span as f64 / 1e9)
    );
    if !paused.is_empty() {
        text = format!("{text} {}.", paused.join("; "));
    }
    let is_recorded = |link: &str| outcome.series.iter().any(|series| series.link == link);
    if let Some(longest) = outcome.links.first().filter(|link| !is_recorded(&link.link)) {
        let bytes = Bytes(longest.queue_max);
        text = format!(
            "{text} The longest queue of all, {bytes} at {}, was not recorded: name that link in `watch` to see it.",
            longest.link
        );
    }
    vec![chart.into(), text.into()]
}

fn points(series: &QueueSeries) -> impl Iterator<Item = (f64, f64)> + '_ {
    let span_s = series.span_ns as f64 / 1e9;
    let points = series.queue_max.iter().enumerate();
    points.map(move |(i, bytes)| (i as f64 * span_s, *bytes as f64))
}

fn links(outcome: &FabricOutcome) -> Table {
    let columns = [
        Column::text("link"),
        Column::new("rate", Unit::named("Gb/s")),
        Column::new("used", Unit::Share),
        Column::new("longest queue", Unit::Bytes),
        Column::new("paused", Unit::Seconds),
        Column::new("marked", Unit::Count),
        Column::new("dropped", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for link in outcome.links.iter().take(ROWS_MAX) {
        table.push([
            Cell::from(link.link.as_str()),
            gbit(link.rate),
            Cell::share(link.utilisation),
            Bytes(link.queue_max).into(),
            link.paused.into(),
            Cell::count(link.marked_packets as f64),
            Cell::count(link.dropped_packets as f64),
        ]);
    }
    table
}

fn spreading(outcome: &FabricOutcome) -> Vec<Block> {
    let pauses = &outcome.pauses;
    let first = pauses.first.unwrap_or_default();
    let text = format!(
        "{} pause frames on {} links, {} of them links of hosts; the first took effect after {first}, the \
         longest pause lasted {}. {} congestion notifications.",
        count(pauses.frames as f64),
        count(pauses.links as f64),
        count(pauses.hosts as f64),
        pauses.longest,
        count(pauses.notifications as f64)
    );
    let columns = [
        Column::text("congested egress"),
        Column::new("paused others for", Unit::Seconds),
    ];
    let mut roots = Table::new("", columns);
    for root in outcome.spreading.roots.iter().take(ROWS_MAX) {
        roots.push([Cell::from(root.link.as_str()), root.silenced.into()]);
    }
    let mut blocks = vec![text.into(), roots.into()];
    if outcome.spreading.innocent_flows > 0 {
        blocks.push(victims(outcome).into());
    }
    blocks
}

fn victims(outcome: &FabricOutcome) -> Table {
    let columns = [
        Column::text("delayed flow"),
        Column::new("delay, all hops", Unit::Seconds),
        Column::new("goodput", Unit::Rate),
        Column::new("slowdown", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for victim in outcome.spreading.victims.iter().take(ROWS_MAX) {
        table.push([
            Cell::from(victim.flow.as_str()),
            victim.innocent.into(),
            victim.goodput.into(),
            victim.slowdown.map_or(Cell::Missing, Cell::count),
        ]);
    }
    table
}

fn ledger(outcome: &FabricOutcome) -> Table {
    let ledger = &outcome.ledger;
    let mut table = Table::new("", [Column::text("on the wire"), Column::new("bytes", Unit::Bytes)]);
    for (what, bytes) in [
        ("sent", ledger.injected_bytes),
        ("delivered", ledger.delivered_bytes),
        ("dropped by switches", ledger.dropped_bytes),
        ("discarded by receivers", ledger.discarded_bytes),
        ("in flight at the end", ledger.in_flight_bytes),
        ("peak use of a shared buffer", outcome.buffer.shared_peak_bytes),
        ("size of a shared buffer", outcome.buffer.shared_bytes),
        ("peak use of a port's headroom", outcome.buffer.headroom_peak_bytes),
    ] {
        table.push([Cell::from(what), Bytes(bytes).into()]);
    }
    table
}
