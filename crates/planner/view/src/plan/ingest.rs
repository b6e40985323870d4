//! The page of an ingest.

use straightway_planner::ingest::{IngestAnswer, IngestOutcome};
use straightway_report::{Cell, Column, Page, Table, Tone};

use super::{
    checkpoint::{path_note, path_table},
    transport::wait,
};
use crate::cells::{percent, rate, time, yes};

use super::Shown;

impl Shown for IngestAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("all_bytes_per_s", "needed"),
        ("standard.utilisation", "AU standard"),
        ("direct.utilisation", "AU direct"),
        ("standard.per_gpu_bytes_per_s", "a GPU gets, standard"),
        ("direct.per_gpu_bytes_per_s", "a GPU gets, direct"),
        ("direct.gpus_at_target", "GPUs fed, direct"),
        ("metadata.load", "metadata load"),
    ];

    fn fill(&self, page: Page) -> Page {
        fill(page, self)
    }
}

fn fill(page: Page, answer: &IngestAnswer) -> Page {
    let (standard, direct) = (&answer.standard, &answer.direct);
    let tone = match (standard.target_met, direct.target_met) {
        (true, _) => Tone::Good,
        (false, true) => Tone::Caution,
        (false, false) => Tone::Bad,
    };
    page.verdict(
        tone,
        format!(
            "GPUs compute {} of the time by the standard path (bound by {}), \
             {} by the direct one (bound by {}).",
            percent(standard.utilisation),
            standard.bound_by,
            percent(direct.utilisation),
            direct.bound_by
        ),
    )
    .figure("one GPU takes", rate(answer.per_gpu_bytes_per_s), "when it never waits")
    .figure("all take", rate(answer.all_bytes_per_s), "")
    .figure(
        "one GPU needs",
        rate(answer.per_gpu_at_target_bytes_per_s),
        "for the target",
    )
    .figure(
        "lookups a second",
        Cell::count(answer.lookups_per_s),
        format!(
            "metadata servers {} busy, mean wait {}",
            percent(answer.metadata.load),
            wait(answer.metadata.mean_s)
        ),
    )
    .figure(
        "cores to decode",
        Cell::count(answer.decode_cores_per_node),
        "in each node",
    )
    .section("Paths", [paths(standard, direct).into()])
    .section(
        "The path of one node, by stage",
        [
            path_table(&standard.path, &direct.path).into(),
            path_note(&standard.path, &direct.path).into(),
        ],
    )
}

fn paths(standard: &IngestOutcome, direct: &IngestOutcome) -> Table {
    let columns = [Column::text("path"), Column::mixed("standard"), Column::mixed("direct")];
    let mut table = Table::new("", columns);
    let mut row = |name: &str, cell: &dyn Fn(&IngestOutcome) -> Cell| {
        table.push([name.into(), cell(standard), cell(direct)]);
    };
    row("one GPU gets", &|path| rate(path.per_gpu_bytes_per_s));
    row("reading a step", &|path| time(path.read_s));
    row("a step", &|path| time(path.step_s));
    row("utilisation", &|path| Cell::share(path.utilisation));
    row("target met", &|path| yes(path.target_met));
    row("bound by", &|path| path.bound_by.into());
    row("GPUs it can feed", &|path| Cell::count(path.gpus_at_target));
    table
}
