//! The page of a registration, with its surfaces over buffer size, I/Os and link rate.

use straightway_core::Rate;
use straightway_planner::registration::{Cost, RegistrationAnswer};
use straightway_report::{Axis, Block, Cell, Chart, Column, Page, Series, Surface, Table, Tone, Unit};

use crate::cells::{bytes, percent, time};

use super::Shown;

impl Shown for RegistrationAnswer {
    const USUAL: &'static [(&'static str, &'static str)] = &[
        ("register.seconds", "registration"),
        ("register_untouched.seconds", "untouched"),
        ("register_gpu_pages.seconds", "GPU memory"),
        ("transfer_s", "transfer"),
        ("efficiency.per_io", "each I/O"),
        ("efficiency.persistent", "once"),
        ("efficiency.gds", "gds"),
        ("crossover", "crossover"),
    ];

    fn fill(&self, page: Page) -> Page {
        fill(page, self)
    }
}

fn fill(page: Page, answer: &RegistrationAnswer) -> Page {
    let each = answer.efficiency.per_io;
    let tone = if each >= 0.9 { Tone::Good } else { Tone::Caution };
    let each_io = "faster than registering for every I/O";
    let gds = match answer.crossover {
        Some(io) => format!("{each_io} from I/O {io} on"),
        None => format!("never {each_io}"),
    };
    page.verdict(
        tone,
        format!(
            "Registering for every I/O leaves {} of the time for transfer; registering once, {}. \
             GDS, with the cost of its GPU pages, is {gds}.",
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
    .section("Registering", [costs(answer).into(), efficiencies(answer).into()])
    .section("Over buffer size, I/Os and link", surfaces(answer))
    .section("Translation cache", [cache(answer).into()])
}

fn costs(answer: &RegistrationAnswer) -> Table {
    let columns = [
        Column::text("pages of"),
        Column::new("pages", Unit::Count),
        Column::new("registration", Unit::Seconds),
    ];
    let mut table = Table::new("", columns);
    let mut row = |name: &str, cost: &Cost| table.push([name.into(), cost.pages.into(), time(cost.seconds)]);
    row("host memory", &answer.register);
    row("huge pages", &answer.register_huge);
    row("GPU memory", &answer.register_gpu_pages);
    table
}

fn efficiencies(answer: &RegistrationAnswer) -> Table {
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

/// The surfaces. Registering for each I/O depends on buffer size and link rate; registering once, also on the I/Os.
fn surfaces(answer: &RegistrationAnswer) -> Vec<Block> {
    let buffers = distinct(answer.surface.iter().map(|cell| cell.buffer_bytes as f64));
    let counts = distinct(answer.surface.iter().map(|cell| cell.ios as f64));
    let links = distinct(answer.surface.iter().map(|cell| cell.link_bytes_per_s));
    let at = |buffer: f64, ios: f64, link: f64| {
        answer.surface.iter().find(|cell| {
            let here = same(cell.buffer_bytes as f64, buffer) && same(cell.ios as f64, ios);
            here && same(cell.link_bytes_per_s, link)
        })
    };
    let each = Surface::new(
        "Registered for each I/O: share of time that is transfer",
        (Axis::log2("buffer", Unit::Bytes), buffers.clone()),
        (Axis::log2("link", Unit::Rate), links.clone()),
        Axis::linear("share", Unit::Share),
    )
    .with("host memory", |x, y| {
        at(x, counts[0], y).map_or(f64::NAN, |cell| cell.per_io)
    });
    let mut once = Surface::new(
        "Registered once: share of time that is transfer",
        (Axis::log2("buffer", Unit::Bytes), buffers.clone()),
        (Axis::log2("I/Os", Unit::Count), counts.clone()),
        Axis::linear("share", Unit::Share),
    );
    for &link in [links.first(), links.get(links.len() / 2), links.last()]
        .into_iter()
        .flatten()
    {
        let name = format!("at {:.0} Gb/s", Rate(link).as_gbit());
        once = once.with(name, |x, y| at(x, y, link).map_or(f64::NAN, |cell| cell.persistent));
    }
    vec![each.into(), once.into(), frontier(answer, buffers, links).into()]
}

/// The I/Os until registering once reaches the required efficiency, by buffer size and link rate.
fn frontier(answer: &RegistrationAnswer, buffers: Vec<f64>, links: Vec<f64>) -> Surface {
    let at = |buffer: f64, link: f64| {
        let mut all = answer.frontier.iter();
        all.find(|at| same(at.buffer_bytes as f64, buffer) && same(at.link_bytes_per_s, link))
    };
    Surface::new(
        format!(
            "Registered once: I/Os until {} of the time is transfer",
            percent(answer.efficient)
        ),
        (Axis::log2("buffer", Unit::Bytes), buffers),
        (Axis::log2("link", Unit::Rate), links),
        Axis::log10("I/Os", Unit::Count),
    )
    .with("host memory", |x, y| at(x, y).map_or(f64::NAN, |at| at.ios_persistent))
    .with("GDS, with the cost of its GPU pages", |x, y| {
        at(x, y).map_or(f64::NAN, |at| at.ios_gds)
    })
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

fn cache(answer: &RegistrationAnswer) -> Chart {
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
