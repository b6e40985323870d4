//! Writes a page with everything on it: `cargo run -p straightway-report --example pages > page.html`.
//!
//! Its numbers are made up to try the renderers. `-- text 120` shows the page in the terminal.
#![expect(clippy::print_stdout, reason = "an example's output is its purpose")]

use straightway_core::{Bytes, Rate, Seconds};
use straightway_report::{
    Axis, Cell, Chart, Column, Page, PageAssumption, PageConfidence, Series, Surface, Table, Terminal, Tone, Unit,
};

fn main() {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next().and_then(|n| n.parse().ok())) {
        (Some("text"), columns) => {
            let columns = columns.unwrap_or(80);
            println!(
                "{}",
                page().to_text(Terminal {
                    columns,
                    colour: args.next().is_some()
                })
            );
        }
        _ => println!("{}", page().to_html()),
    }
}

fn page() -> Page {
    Page::new("Can eight nodes save a 1.4 TB checkpoint within a minute?")
        .verdict(
            Tone::Caution,
            "Yes, in 41 s, but only while the rebuild of a failed drive is not running.",
        )
        .figure("time to save", Seconds(41.3), "of 60 s allowed")
        .figure("from each node", Rate(4.3e9), "of 6.9 GB/s the drives take")
        .figure("CPU", Cell::share(0.062), "of one socket")
        .figure("what binds", "drives", "then the network, at 1.6×")
        .section(
            "Throughput by block size",
            [
                "Larger blocks help until the drives are full. The knee is where doubling the block \
                 gains less than five percent.\n\nDepth 32 reaches it with blocks a quarter the size."
                    .into(),
                throughput().into(),
                table().into(),
            ],
        )
        .section(
            "A day in the queue",
            [
                "Every sample is in the picture, and so is the one stall at noon.".into(),
                queue().into(),
            ],
        )
        .section("When registering a buffer pays", [efficiency().into()])
        .assume(PageAssumption {
            what: "checkpoint".into(),
            value: Bytes(1_400_000_000_000).into(),
            formula: "100e9 parameters × 14 B".into(),
            source: "mixed precision with Adam: 2 + 4 + 4 + 4 bytes".into(),
            confidence: PageConfidence::Computed,
        })
        .assume(PageAssumption {
            what: "drive, sequential write".into(),
            value: Rate(6.9e9).into(),
            formula: String::new(),
            source: "data sheet of the drive, table 3".into(),
            confidence: PageConfidence::Read,
        })
        .assume(PageAssumption {
            what: "share of time spent rebuilding".into(),
            value: Cell::share(0.02),
            formula: "drives × failures per year × hours per rebuild ÷ 8766 h".into(),
            source: "a guess; replace it by your own failure log".into(),
            confidence: PageConfidence::Guessed,
        })
        .fact("machine", "2 × 32 cores, 512 GiB, 4 × NVMe, Linux 6.8")
        .fact("made by", "straightway plan checkpoint, seed 7")
}

fn throughput() -> Chart {
    let mut chart = Chart::new(
        "Read throughput by block size and depth",
        Axis::log2("block size", Unit::Bytes),
        Axis::linear("throughput", Unit::Rate),
    )
    .limit(7.0e9, "drive limit");
    for (depth, knee) in [(1.0, 13), (4.0, 11), (8.0, 10), (32.0, 8)] {
        let at = |step: i32| {
            let block = 4096.0 * 2f64.powi(step);
            (block, 1.0 / (1.0 / 6.9e9 + 80e-6 / (depth * block)))
        };
        let mut series = Series::new(format!("depth {depth}"), (0..=14).map(at));
        if depth > 4.0 {
            let (x, y) = at(knee);
            series = series.mark(x, y, format!("knee {}", Unit::Bytes.show(x)));
        }
        chart = chart.with(series);
    }
    let model = (0..=14)
        .map(|i| 4096.0 * 2f64.powi(i))
        .map(|b| (b, (b / 60e-6).min(6.9e9)));
    chart.with(Series::new("predicted", model).dashed())
}

fn table() -> Table {
    let mut table = Table::new(
        "The same in numbers",
        [
            Column::new("block", Unit::Bytes),
            Column::new("depth", Unit::Count),
            Column::new("throughput", Unit::Rate),
            Column::new("p99 latency", Unit::Seconds),
            Column::new("CPU", Unit::Share),
            Column::text("bound by"),
        ],
    );
    for step in [0u32, 4, 8, 10] {
        let block = Bytes::kib(4 << step);
        let rate = 1.0 / (1.0 / 6.9e9 + 80e-6 / (8.0 * block.0 as f64));
        let p99 = (step != 10).then(|| Seconds(80e-6 * f64::from(step + 1)));
        let bound = if step < 8 { "latency" } else { "drive" };
        let cpu = Cell::share(0.08 / f64::from(step + 1));
        table.push([
            block.into(),
            8u32.into(),
            Rate(rate).into(),
            p99.into(),
            cpu,
            bound.into(),
        ]);
    }
    table
}

fn queue() -> Chart {
    let samples = 400_000u32;
    let depth = |i: u32| {
        let noise = f64::from(i.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
        let stall = if i == samples / 2 { 90.0 } else { 0.0 };
        let hour = f64::from(i) / f64::from(samples) * std::f64::consts::TAU;
        12.0 - 9.0 * hour.cos() + 14.0 * noise.powi(6) + stall
    };
    let day = 86_400.0;
    let points = (0..samples).map(|i| (f64::from(i) * day / f64::from(samples), depth(i)));
    Chart::new(
        "Requests waiting",
        Axis::linear("time of day", Unit::Seconds),
        Axis::linear("requests", Unit::Count),
    )
    .with(Series::new("queue", points))
}

fn efficiency() -> Surface {
    let xs = (0..=16).map(|i| 65_536.0 * 2f64.powi(i)).collect();
    let ys = (0..=12).map(|i| 2f64.powi(i)).collect();
    let mut surface = Surface::new(
        "Share of the time that moves bytes",
        (Axis::log2("buffer", Unit::Bytes), xs),
        (Axis::log2("I/Os per registration", Unit::Count), ys),
        Axis::linear("efficiency", Unit::Share),
    );
    for gbit in [100.0, 400.0] {
        let rate = Rate::gbit(gbit).0;
        surface = surface.with(format!("{gbit} Gb/s"), move |bytes, uses| {
            let moving = uses * bytes / rate;
            moving / (moving + 250e-6 + bytes / 20e9)
        });
    }
    surface
}
