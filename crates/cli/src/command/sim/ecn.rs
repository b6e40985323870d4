//! `straightway sim ecn`: where DCQCN settles, whether it stays there, and which thresholds are better.

use std::process::ExitCode;

use clap::ValueEnum;
use straightway_core::{Bytes, Rate, Seconds};
use straightway_model::{
    check::checked,
    dcqcn::{Ecn, ParameterSet},
    fluid::{Choice, Fluid, SETTLE, Settled, Tuned, tune},
};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use super::gbit;
use crate::command::{output::Output, plan::page::with_basis};

/// Tune ECN thresholds by DCQCN's fluid model: fixed point, stability, and what others would give
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many long flows share the link
    #[arg(long, default_value_t = 10)]
    flows: u32,

    /// The link's rate
    #[arg(long, default_value = "400Gb/s")]
    rate: Rate,

    /// Bytes of a packet
    #[arg(long, default_value = "4096")]
    packet: Bytes,

    /// The way back of a notification; half the notification interval comes on top
    #[arg(long, value_name = "TIME", default_value = "4us")]
    way_back: Seconds,

    /// The published constants to start from
    #[arg(long, value_enum, default_value_t = Set::Paper)]
    parameters: Set,

    /// Marking starts at this queue, instead of the set's
    #[arg(long, value_name = "SIZE")]
    kmin: Option<Bytes>,

    /// Everything is marked above this queue
    #[arg(long, value_name = "SIZE")]
    kmax: Option<Bytes>,

    /// The share marked just below kmax
    #[arg(long, value_name = "SHARE")]
    pmax: Option<f64>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// The published sets
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Set {
    /// SIGCOMM 2015
    Paper,
    /// `ConnectX` defaults
    Connectx,
    /// HPCC's simulation
    Hpcc,
    /// `SimAI` at 400 Gb/s
    Simai,
}

/// Answers with the fixed point and a table of choices.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fluid = fluid(args);
    checked(&fluid)?;
    let choice = fluid.choice();
    let settled = fluid.settle(SETTLE);
    let tuned = tune(&fluid);
    let Tuned { choices, best, .. } = &tuned;
    let mut table = Table::new("", columns());
    table.push(row("as given", &choice));
    if let Some(best) = best {
        table.push(row("best found", &choices[*best]));
    }
    let mut tried = Table::new("", columns());
    for (i, choice) in choices.iter().enumerate() {
        tried.push(row(if Some(i) == *best { "best" } else { "" }, choice));
    }
    let (tone, text) = verdict(&fluid, &choice, &settled);
    let swing = format!(
        "Moved a tenth from there and left alone, the queue lies between {} and {}, {} on average, \
         and each flow gets {} of the {} that are its share.",
        settled.queue_min,
        settled.queue_max,
        settled.queue_mean,
        settled.rate_mean,
        choice.fixed.rate
    );
    let title = format!(
        "{} DCQCN flows through {}",
        args.flows,
        gbit(fluid.rate).show()
    );
    let page = Page::new(title)
        .verdict(tone, text)
        .section("", [table.into(), swing.into(), rule(&tuned).into()])
        .section("Thresholds tried", [tried.into()]);
    let basis = fluid.basis();
    let page = with_basis(page, &basis, args.basis || args.output.is_html());
    let json = serde_json::json!({
        "fluid": fluid, "choice": choice, "settled": settled,
        "tried": choices, "best": best, "best_settled": tuned.settled, "basis": basis,
    });
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
}

fn fluid(args: &Args) -> Fluid {
    let set = match args.parameters {
        Set::Paper => ParameterSet::Paper,
        Set::Connectx => ParameterSet::Connectx,
        Set::Hpcc => ParameterSet::Hpcc,
        Set::Simai => ParameterSet::Simai,
    };
    let interval = set.dcqcn(args.rate).cnp_interval.0;
    let delay = Seconds(args.way_back.0 + interval / 2.0);
    let fluid = Fluid::new(set, args.flows, args.rate, args.packet, delay);
    let ecn = Ecn {
        kmin: args.kmin.unwrap_or(fluid.ecn.kmin),
        kmax: args.kmax.unwrap_or(fluid.ecn.kmax),
        pmax: args.pmax.unwrap_or(fluid.ecn.pmax),
    };
    Fluid { ecn, ..fluid }
}

/// By what rule a choice is the best, and what it does.
fn rule(tuned: &Tuned) -> String {
    let rule = format!(
        "the shortest queue, of {} tried, that stays within a tenth of where it stands {SETTLE} after \
         it was moved",
        tuned.choices.len()
    );
    match tuned.settled {
        Some(settled) => format!(
            "Best is {rule}: between {} and {}.",
            settled.queue_min, settled.queue_max
        ),
        None => format!("None is best: there is none like {rule}."),
    }
}

fn verdict(fluid: &Fluid, choice: &Choice, settled: &Settled) -> (Tone, String) {
    let fixed = &choice.fixed;
    match choice.margin_deg {
        None => (
            Tone::Bad,
            format!(
                "{} flows need {:.2} % of packets marked and pmax is {:.2} %: the queue swings about \
                 kmax, {}. Raise pmax.",
                fluid.flows,
                fixed.marked * 100.0,
                fluid.ecn.pmax * 100.0,
                fluid.ecn.kmax
            ),
        ),
        Some(margin) if !settled.is_still(fixed) => (
            Tone::Caution,
            format!(
                "The queue would settle at {}, but {margin:.1}° of phase margin do not hold it there: \
                 it swings between {} and {}.",
                fixed.queue, settled.queue_min, settled.queue_max
            ),
        ),
        Some(margin) => (
            Tone::Good,
            format!(
                "The queue settles at {}, {} of delay, with {margin:.1}° of phase margin.",
                fixed.queue, choice.queue_delay
            ),
        ),
    }
}

fn columns() -> [Column; 8] {
    [
        Column::text("thresholds"),
        Column::new("kmin", Unit::Bytes),
        Column::new("kmax", Unit::Bytes),
        Column::new("pmax", Unit::Share),
        Column::new("marked", Unit::Share),
        Column::new("queue", Unit::Bytes),
        Column::new("delay", Unit::Seconds),
        Column::new("margin", Unit::named("°")),
    ]
}

fn row(name: &str, choice: &Choice) -> [Cell; 8] {
    let margin = choice.margin_deg;
    [
        Cell::from(name),
        choice.ecn.kmin.into(),
        choice.ecn.kmax.into(),
        Cell::share(choice.ecn.pmax),
        Cell::share(choice.fixed.marked),
        choice.fixed.queue.into(),
        choice.queue_delay.into(),
        margin.map_or(Cell::Missing, |m| Cell::number(m, Unit::named("°"))),
    ]
}
