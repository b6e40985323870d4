//! The page of DCQCN's fixed point and thresholds.

use straightway_core::Bytes;
use straightway_fabric::{
    fluid::{DELAY_FACTOR, Fluid, GAIN_MARGIN_MIN, Margins, SETTLE, Settled, ThresholdChoice, Tuned},
    packet_check::QueueRange,
};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use crate::{basis::with_basis, cells::gbit};

/// The fluid model's answer about thresholds.
#[derive(Debug)]
pub struct EcnAnswer<'a> {
    /// The input.
    pub fluid: &'a Fluid,
    /// The given thresholds and their fixed point.
    pub choice: &'a ThresholdChoice,
    /// The queue after a disturbance, by the fluid model.
    pub settled: &'a Settled,
    /// The thresholds tried.
    pub tuned: &'a Tuned,
    /// The queue of the packet simulator with the given thresholds; `None` if there are too many flows.
    pub played: Option<QueueRange>,
    /// The queue of the packet simulator with the best thresholds.
    pub best_played: Option<QueueRange>,
}

/// The page of thresholds; `in_full` adds every formula and constant.
pub fn page(answer: &EcnAnswer<'_>, in_full: bool) -> Page {
    with_basis(fill(answer), &answer.fluid.basis(), in_full)
}

fn fill(answer: &EcnAnswer<'_>) -> Page {
    let EcnAnswer {
        fluid,
        choice,
        settled,
        tuned,
        ..
    } = answer;
    let Tuned { choices, best, .. } = tuned;
    let mut table = Table::new("", columns());
    table.push(row("as given", choice));
    if let Some(best) = best {
        table.push(row("best found", &choices[*best]));
    }
    let mut tried = Table::new("", columns());
    for (i, choice) in choices.iter().enumerate() {
        tried.push(row(if Some(i) == *best { "best" } else { "" }, choice));
    }
    let (tone, text) = verdict(answer);
    let rate = format!(
        "After a displacement by a tenth from the fixed point, each flow gets {} on average; its share is {}.",
        settled.rate_mean, choice.fixed.rate
    );
    let title = format!("{} DCQCN flows through {}", fluid.flows, gbit(fluid.rate).show());
    Page::new(title)
        .verdict(tone, text)
        .section("", [table.into(), rule(answer).into()])
        .section(
            "The queue by the fluid model and by the packet simulator",
            [queues(answer).into(), rate.into()],
        )
        .section("Thresholds tried", [tried.into()])
}

/// The rule by which thresholds are the best, as text.
fn rule(answer: &EcnAnswer<'_>) -> String {
    let rule = format!(
        "at least {:.0} dB of gain margin, is stable with {DELAY_FACTOR} times the feedback delay of {}, and is within \
         a tenth of its fixed point {SETTLE} after a displacement",
        decibels(GAIN_MARGIN_MIN),
        answer.fluid.delay
    );
    let tried = answer.tuned.choices.len();
    match answer.tuned.best {
        Some(_) => format!("Best of {tried} choices: the shortest queue that has {rule}."),
        None => format!("None is recommended: none of {tried} choices has {rule}."),
    }
}

/// The queue after a disturbance, by both models.
fn queues(answer: &EcnAnswer<'_>) -> Table {
    let columns = [
        Column::text("thresholds"),
        Column::new("fluid, min", Unit::Bytes),
        Column::new("mean", Unit::Bytes),
        Column::new("max", Unit::Bytes),
        Column::new("packets, min", Unit::Bytes),
        Column::new("mean", Unit::Bytes),
        Column::new("max", Unit::Bytes),
    ];
    let mut table = Table::new("", columns);
    let mut push = |name: &str, fluid: &Settled, played: Option<QueueRange>| {
        let packets =
            |pick: fn(&QueueRange) -> Bytes| played.as_ref().map_or(Cell::Missing, |played| pick(played).into());
        table.push([
            Cell::from(name),
            fluid.queue_min.into(),
            fluid.queue_mean.into(),
            fluid.queue_max.into(),
            packets(|p| p.queue_min),
            packets(|p| p.queue_mean),
            packets(|p| p.queue_max),
        ]);
    };
    push("as given", answer.settled, answer.played);
    if let Some(settled) = &answer.tuned.settled {
        push("best found", settled, answer.best_played);
    }
    table
}

/// Converts an amplitude ratio to decibels.
fn decibels(factor: f64) -> f64 {
    20.0 * factor.log10()
}

fn verdict(answer: &EcnAnswer<'_>) -> (Tone, String) {
    let EcnAnswer {
        fluid,
        choice,
        settled,
        played,
        ..
    } = answer;
    let fixed = &choice.fixed;
    let packets = played.map_or_else(String::new, |played| {
        let (least, most) = (played.queue_min, played.queue_max);
        format!(" In the packet simulator it ranges from {least} to {most}.")
    });
    match choice.margins.map(|margins| margins.phase_deg) {
        None => (
            Tone::Bad,
            format!(
                "{} flows need {:.2} % of packets marked and pmax is {:.2} %: the queue oscillates around \
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
                "The queue does not settle at its fixed point of {} (phase margin {margin:.1}°): it oscillates \
                 between {} and {}.",
                fixed.queue, settled.queue_min, settled.queue_max
            ),
        ),
        Some(margin) => (
            Tone::Good,
            format!(
                "The fluid queue settles at {}, {} of delay, with {margin:.1}° of phase margin; {:.2} % of packets are \
                 marked.{packets}",
                fixed.queue,
                choice.queue_delay,
                fixed.marked * 100.0
            ),
        ),
    }
}

fn columns() -> [Column; 9] {
    [
        Column::text(""),
        Column::new("kmin", Unit::Bytes),
        Column::new("kmax", Unit::Bytes),
        Column::new("pmax", Unit::Share),
        Column::new("queue", Unit::Bytes),
        Column::new("delay", Unit::Seconds),
        Column::new("phase margin", Unit::named("°")),
        Column::new("gain margin", Unit::named("dB")),
        Column::new("delay margin", Unit::Seconds),
    ]
}

fn row(name: &str, choice: &ThresholdChoice) -> [Cell; 9] {
    let margin = |pick: fn(&Margins) -> Cell| choice.margins.as_ref().map_or(Cell::Missing, pick);
    [
        Cell::from(name),
        choice.ecn.kmin.into(),
        choice.ecn.kmax.into(),
        Cell::share(choice.ecn.pmax),
        choice.fixed.queue.into(),
        choice.queue_delay.into(),
        margin(|m| Cell::number(m.phase_deg, Unit::named("°"))),
        margin(|m| Cell::number(decibels(m.gain), Unit::named("dB"))),
        margin(|m| m.delay.into()),
    ]
}
