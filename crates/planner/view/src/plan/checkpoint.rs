//! The page of a checkpoint.

use straightway_core::Seconds;
use straightway_planner::{
    checkpoint::{CheckpointAnswer, CheckpointOutcome, GoodputPoint, SimulatedGoodput},
    path::PathEstimate,
};
use straightway_report::{Axis, Cell, Chart, Column, Page, Series, Table, Tone, Unit};
use straightway_scenario::provenance::Assumption;

use crate::cells::{bytes, leaders, listed, maybe_time, percent, rate, time, yes};

use super::Shown;

impl Shown for CheckpointAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("ways.standard.durable_s", "standard"),
        ("ways.direct.durable_s", "direct"),
        ("gain", "gain"),
        ("ways.asynchronous.stop_s", "async stop"),
        ("ways.standard.rate_bytes_per_s", "rate standard"),
        ("ways.direct.rate_bytes_per_s", "rate direct"),
        ("ways.direct.restore_s", "read back direct"),
        ("ways.direct.recovery_s", "recovery direct"),
        ("ways.standard.goodput", "goodput standard"),
        ("ways.direct.goodput", "goodput direct"),
        ("ways.asynchronous.goodput", "goodput async"),
    ];

    fn fill(&self, page: Page) -> Page {
        fill(page, self)
    }
}

fn fill(page: Page, answer: &CheckpointAnswer) -> Page {
    let ways = &answer.ways;
    let (tone, says) = verdict(answer);
    page.verdict(tone, says)
        .figure(
            "checkpoint",
            bytes(answer.size_bytes),
            format!("{} bytes a parameter", Cell::count(answer.bytes_per_parameter).show()),
        )
        .figure(
            "by the standard path",
            time(ways.standard.durable_s),
            rate(ways.standard.rate_bytes_per_s).show(),
        )
        .figure(
            "by the direct path",
            time(ways.direct.durable_s),
            rate(ways.direct.rate_bytes_per_s).show(),
        )
        .figure("gain", Cell::count(answer.gain), bounds(answer))
        .figure(
            "asynchronous stop",
            maybe_time(ways.asynchronous.as_ref().map(|way| way.stop_s)),
            "barrier, plan, pinning, serialising and the copy to host memory",
        )
        .figure(
            "failure every",
            time(answer.mtbf_s),
            "mean time between failures of the job",
        )
        .figure(
            "rate for the target availability",
            answer.rate_for_target_bytes_per_s.map_or(Cell::Missing, rate),
            "with training stopped",
        )
        .section(
            "Ways to save",
            [ways_table(answer).into(), recovery(answer).into(), curve(answer).into()],
        )
        .section(
            "The path of one node, by stage",
            [
                path_table(&answer.standard, &answer.direct).into(),
                path_note(&answer.standard, &answer.direct).into(),
            ],
        )
}

/// The verdict: the way with the highest goodput, of those that complete before the next save.
fn verdict(answer: &CheckpointAnswer) -> (Tone, String) {
    let ways = &answer.ways;
    let stopped = [("through host memory", &ways.standard), ("directly", &ways.direct)];
    let behind = ways.asynchronous.iter().map(|way| ("asynchronously", way));
    let all: Vec<(&str, &CheckpointOutcome)> = stopped.into_iter().chain(behind).collect();
    let fastest_s = all.iter().map(|(_, way)| way.durable_s).fold(f64::MAX, f64::min);
    let fitting: Vec<_> = all.into_iter().filter(|(_, way)| way.fits).collect();
    let (names, best) = leaders(&fitting, |way| way.goodput);
    // A goodput below a millionth counts as no training.
    let Some(best) = best.filter(|way| way.goodput >= 1e-6) else {
        return (Tone::Bad, hopeless(answer, fastest_s));
    };
    let tone = if best.goodput >= 0.95 {
        Tone::Good
    } else {
        Tone::Caution
    };
    let best_way = if names.len() == 1 {
        format!("Saving {} has the highest goodput", names[0])
    } else {
        format!("Saving {} has the same goodput", listed(&names))
    };
    let kept = percent(best.goodput);
    let every = Seconds(best.interval_s);
    let says = format!("{best_way}: {kept} of the time is training that is kept, with a checkpoint every {every}.");
    (tone, says)
}

/// The reason why nothing is kept: the storage is too slow, or the job fails too often even for fast storage.
fn hopeless(answer: &CheckpointAnswer, fastest_s: f64) -> String {
    let (fails, stored) = (Seconds(answer.mtbf_s), Seconds(fastest_s));
    // Even with instant storage the restart must complete before the next failure.
    let way = &answer.ways.direct;
    let restarts = answer.mtbf_s > way.recovery_s - way.restore_s;
    if restarts && fastest_s > answer.mtbf_s / 10.0 {
        format!(
            "Storing one checkpoint takes {stored}, and the job fails every {fails}: the storage is too slow, \
             and none of its training is kept."
        )
    } else {
        format!("The job fails every {fails}, too often for any way of saving: none of its training is kept.")
    }
}

/// The bottleneck of each path, which explains the gain.
fn bounds(answer: &CheckpointAnswer) -> String {
    let (standard, direct) = (&answer.ways.standard.bound_by, &answer.ways.direct.bound_by);
    if standard == direct {
        format!("both are bound by {standard}")
    } else {
        format!("standard is bound by {standard}, direct by {direct}")
    }
}

/// What recovery consists of, which constant decides its range, and how to measure it.
fn recovery(answer: &CheckpointAnswer) -> String {
    let way = &answer.ways.direct;
    let restart = Seconds((way.recovery_s - way.restore_s).max(0.0));
    let read = Seconds(way.restore_s);
    let restart_of = |a: &&Assumption| a.path.as_deref() == Some("schedule.restart");
    let range = answer.basis.assumptions.iter().find(restart_of).and_then(|a| a.band);
    let decides = match range {
        Some(band) => format!(
            "schedule.restart decides its range: it is assumed, and {} to {} are plausible",
            Seconds(band.low),
            Seconds(band.high)
        ),
        None => "schedule.restart was given, so it has no range".to_owned(),
    };
    format!(
        "Recovery is {restart} from the failure until the read, and {read} of reading. {decides}. To measure it, kill one \
         rank of a running job, take the time until the restarted job reads its first byte, and set schedule.restart."
    )
}

fn ways_table(answer: &CheckpointAnswer) -> Table {
    let ways = &answer.ways;
    let all: Vec<&CheckpointOutcome> = ways.all().collect();
    let columns = ["standard", "direct", "asynchronous"].map(Column::mixed);
    let columns = columns.into_iter().take(all.len());
    let mut table = Table::new("", [Column::text("way")].into_iter().chain(columns));
    let mut row = |name: &str, cell: &dyn Fn(&CheckpointOutcome) -> Cell| {
        let cells = all.iter().map(|way| cell(way));
        table.push([Cell::from(name)].into_iter().chain(cells));
    };
    row("stored after", &|way| time(way.durable_s));
    row("training stops", &|way| time(way.stop_s));
    row("read back in", &|way| time(way.restore_s));
    row("recovery from a failure", &|way| time(way.recovery_s));
    row("best interval (Young)", &|way| time(way.young_s));
    row("best interval (Daly)", &|way| time(way.daly_s));
    row("interval used", &|way| time(way.interval_s));
    row("done before the next save", &|way| yes(way.fits));
    row("availability", &|way| Cell::share(way.availability));
    row("goodput with failures", &|way| Cell::share(way.goodput));
    // Runs without failures say nothing about failures.
    let played = |way: &CheckpointOutcome, of: fn(&SimulatedGoodput) -> f64| {
        let played = way.played.as_ref().filter(|played| played.failures > 0.0);
        played.map_or(Cell::Missing, |played| Cell::share(of(played)))
    };
    row("  simulated", &|way| played(way, |p| p.goodput));
    row("  simulated, 5th percentile", &|way| played(way, |p| p.goodput_p5));
    row("  simulated, 95th percentile", &|way| played(way, |p| p.goodput_p95));
    row("rate the flush needs", &|way| {
        // A save that stops training until it is durable has no flush.
        let flushes = way.stop_s < way.durable_s;
        let needed = flushes.then_some(way.rate_needed_bytes_per_s);
        needed.map_or(Cell::Missing, rate)
    });
    row("GPU hours lost a day", &|way| Cell::count(way.lost_gpu_hours_per_day));
    row("money lost a day (currency of gpu_hour_cost)", &|way| {
        Cell::count(way.lost_cost_per_day)
    });
    row("mean power wasted", &|way| Cell::number(way.wasted_w, Unit::named("W")));
    table
}

fn curve(answer: &CheckpointAnswer) -> Chart {
    let line = |of: &dyn Fn(&GoodputPoint) -> Option<f64>| {
        answer
            .curve
            .iter()
            .filter_map(|point| Some((point.interval_s, of(point)?)))
            .collect::<Vec<_>>()
    };
    Chart::new(
        "Goodput by interval",
        Axis::log10("interval", Unit::Seconds),
        Axis::linear("goodput", Unit::Share).fitted(),
    )
    .with(Series::new("standard", line(&|point| Some(point.standard))))
    .with(Series::new("direct", line(&|point| Some(point.direct))))
    .with(Series::new("asynchronous", line(&|point| point.asynchronous)))
}

/// The bottleneck of each path, and the cores it uses.
pub(super) fn path_note(standard: &PathEstimate, direct: &PathEstimate) -> String {
    let of = |name: &str, path: &PathEstimate| {
        let cores = path.cores_busy;
        format!("{name} is bound by {} and keeps {cores:.1} cores busy", path.bound_by)
    };
    format!("{}; {}.", of("Standard", standard), of("direct", direct))
}

/// Both paths, stage by stage.
pub(super) fn path_table(standard: &PathEstimate, direct: &PathEstimate) -> Table {
    let columns = [
        Column::text("stage"),
        Column::new("standard, one I/O", Unit::Seconds),
        Column::new("standard, at most", Unit::Rate),
        Column::new("direct, one I/O", Unit::Seconds),
        Column::new("direct, at most", Unit::Rate),
    ];
    let mut table = Table::new("", columns);
    let mut names: Vec<&str> = Vec::new();
    for stage in standard.stages.iter().chain(&direct.stages) {
        if !names.contains(&stage.stage) {
            names.push(stage.stage);
        }
    }
    let of = |path: &PathEstimate, name: &str| {
        let stage = path.stages.iter().find(|stage| stage.stage == name);
        (
            // A stage that adds nothing to one I/O has no time to show.
            maybe_time(stage.map(|s| s.latency_s).filter(|s| *s > 1e-9)),
            stage
                .filter(|s| s.rate_bytes_per_s < 1e17)
                .map_or(Cell::Missing, |s| rate(s.rate_bytes_per_s)),
        )
    };
    for name in names {
        let ((latency, limit), (direct_latency, direct_limit)) = (of(standard, name), of(direct, name));
        table.push([name.into(), latency, limit, direct_latency, direct_limit]);
    }
    table.push([
        "whole path".into(),
        time(standard.latency_s),
        rate(standard.rate_bytes_per_s),
        time(direct.latency_s),
        rate(direct.rate_bytes_per_s),
    ]);
    table
}
