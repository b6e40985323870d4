//! The page of a registration, with its surface over buffer, I/Os and link.

use straightway_model::registration::{Answer, Cost};
use straightway_report::{
    Axis, Block, Cell, Chart, Column, Page, Series, Surface, Table, Tone, Unit,
};

use super::shared::{bytes, percent, time};

/// Fills it.
pub(super) fn fill(page: Page, answer: &Answer) -> Page {
    let each = answer.efficiency.per_io;
    let tone = if each >= 0.9 {
        Tone::Good
    } else {
        Tone::Caution
    };
    let crossover = answer
        .crossover
        .map_or("never".to_owned(), |n| format!("at I/O {n}"));
    page.verdict(
        tone,
        format!(
            "Registering for every I/O leaves {} of the time for transfer; registering once, {}. \
             GDS overtakes registering for every I/O {crossover}.",
            percent(each),
            percent(answer.efficiency.persistent)
        ),
    )
    .figure("transfer", time(answer.transfer_s), "one I/O over the link")
    .figure(
        "registration",
        time(answer.register.seconds),
        format!("{} pages", answer.register.pages),
    )
    .figure(
        "registration over transfer",
        Cell::count(answer.register_over_transfer),
        "",
    )
    .figure(
        "translation cache reach",
        bytes(answer.cache.reach_bytes),
        format!("{} of operations hit", percent(answer.cache.hits)),
    )
    .section(
        "Registering",
        [costs(answer).into(), efficiencies(answer).into()],
    )
    .section("Over buffer size, I/Os and link", surfaces(answer))
    .section("Translation cache", [cache(answer).into()])
}

fn costs(answer: &Answer) -> Table {
    let columns = [
        Column::text("pages of"),
        Column::new("pages", Unit::Count),
        Column::new("registration", Unit::Seconds),
    ];
    let mut table = Table::new("", columns);
    let mut row =
        |name: &str, cost: &Cost| table.push([name.into(), cost.pages.into(), time(cost.seconds)]);
    row("host memory", &answer.register);
    row("huge pages", &answer.register_huge);
    row("GPU memory", &answer.register_gpu_pages);
    table
}

fn efficiencies(answer: &Answer) -> Table {
    let columns = [
        Column::text("registered"),
        Column::new("share that is transfer", Unit::Share),
    ];
    let mut table = Table::new("", columns);
    let efficiency = &answer.efficiency;
    for (name, share) in [
        ("for each I/O", efficiency.per_io),
        ("for each I/O, huge pages", efficiency.per_io_huge),
        ("once", efficiency.persistent),
        ("once, as GDS claims", efficiency.gds),
    ] {
        table.push([name.into(), Cell::share(share)]);
    }
    table
}

/// Efficiency over buffer and I/Os at three links, and the frontier over buffer and link.
fn surfaces(answer: &Answer) -> Vec<Block> {
    let mut links: Vec<f64> = answer
        .surface
        .iter()
        .map(|cell| cell.link_bytes_per_s)
        .collect();
    links.sort_by(f64::total_cmp);
    links.dedup();
    let buffers = distinct(answer.surface.iter().map(|cell| cell.buffer_bytes as f64));
    let counts = distinct(answer.surface.iter().map(|cell| cell.ios as f64));
    let at = |buffer: f64, ios: f64, link: f64| {
        answer.surface.iter().find(|cell| {
            same(cell.buffer_bytes as f64, buffer)
                && same(cell.ios as f64, ios)
                && same(cell.link_bytes_per_s, link)
        })
    };
    let middle = [links.first(), links.get(links.len() / 2), links.last()];
    let mut blocks: Vec<Block> = Vec::new();
    for &link in middle.into_iter().flatten() {
        let surface = Surface::new(
            format!(
                "Share of time that is transfer, at {:.0} Gb/s",
                link * 8.0 / 1e9
            ),
            (Axis::log2("buffer", Unit::Bytes), buffers.clone()),
            (Axis::log2("I/Os", Unit::Count), counts.clone()),
            Axis::linear("share", Unit::Share),
        )
        .with("registered for each I/O", |x, y| {
            at(x, y, link).map_or(f64::NAN, |cell| cell.per_io)
        })
        .with("registered once", |x, y| {
            at(x, y, link).map_or(f64::NAN, |cell| cell.persistent)
        });
        blocks.push(surface.into());
    }
    let frontier = Surface::new(
        "I/Os until registering once has paid off",
        (Axis::log2("buffer", Unit::Bytes), buffers),
        (Axis::log2("link", Unit::Rate), links),
        Axis::log10("I/Os", Unit::Count),
    )
    .with("host memory, once", |x, y| {
        let found = answer
            .frontier
            .iter()
            .find(|at| same(at.buffer_bytes as f64, x) && same(at.link_bytes_per_s, y));
        found.map_or(f64::NAN, |at| at.ios_persistent)
    })
    .with("GDS, once", |x, y| {
        let found = answer
            .frontier
            .iter()
            .find(|at| same(at.buffer_bytes as f64, x) && same(at.link_bytes_per_s, y));
        found.map_or(f64::NAN, |at| at.ios_gds)
    });
    blocks.push(frontier.into());
    blocks
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

fn distinct(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn cache(answer: &Answer) -> Chart {
    let points = answer
        .cache
        .curve
        .iter()
        .map(|p| (p.working_set_bytes as f64, p.operations_per_s));
    Chart::new(
        "Operations by working set",
        Axis::log2("working set", Unit::Bytes),
        Axis::linear("operations a second", Unit::Count),
    )
    .with(Series::new("through the cache", points))
}
