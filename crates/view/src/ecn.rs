//! DCQCN's fixed point and thresholds, as a page.

use straightway_core::Bytes;
use straightway_fabric::{
    beside::Played,
    fluid::{Choice, DELAY_FACTOR, Fluid, GAIN_MARGIN_MIN, Margins, SETTLE, Settled, Tuned},
};
use straightway_report::{Cell, Column, Page, Table, Tone, Unit};

use crate::{basis::with_basis, cells::gbit};

/// What the fluid model says of thresholds.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The model as asked.
    pub fluid: &'a Fluid,
    /// Its thresholds and where they settle.
    pub choice: &'a Choice,
    /// What the queue does after it was moved.
    pub settled: &'a Settled,
    /// The thresholds tried.
    pub tuned: &'a Tuned,
    /// What the packet simulator's queue does with the thresholds given; none where there are too many flows.
    pub played: Option<Played>,
    /// The same with the best found.
    pub best_played: Option<Played>,
}

/// The page of thresholds; `in_full` adds every formula and constant.
pub fn page(answer: &Answer<'_>, in_full: bool) -> Page {
    with_basis(fill(answer), &answer.fluid.basis(), in_full)
}

fn fill(answer: &Answer<'_>) -> Page {
    let Answer {
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
        "Moved a tenth from its fixed point and left alone, each flow gets {} of the {} that are its share.",
        settled.rate_mean, choice.fixed.rate
    );
    let title = format!(
        "{} DCQCN flows through {}",
        fluid.flows,
        gbit(fluid.rate).show()
    );
    Page::new(title)
        .verdict(tone, text)
        .section("", [table.into(), rule(answer).into()])
        .section(
            "The queue, as a fluid and packet by packet",
            [queues(answer).into(), rate.into()],
        )
        .section("Thresholds tried", [tried.into()])
}

/// By what rule a choice is the best.
fn rule(answer: &Answer<'_>) -> String {
    let rule = format!(
        "the shortest queue, of {} tried, that has at least {:.0} dB of gain margin, stays stable with {DELAY_FACTOR} \
         times the feedback delay of {}, and stays within a tenth of where it stands {SETTLE} after it was moved",
        answer.tuned.choices.len(),
        decibels(GAIN_MARGIN_MIN),
        answer.fluid.delay
    );
    match answer.tuned.best {
        Some(_) => format!("Best is {rule}."),
        None => format!("None is recommended: there is none like {rule}."),
    }
}

/// What the queue does after it was moved, by both models.
fn queues(answer: &Answer<'_>) -> Table {
    let columns = [
        Column::text("thresholds"),
        Column::new("fluid, least", Unit::Bytes),
        Column::new("mean", Unit::Bytes),
        Column::new("most", Unit::Bytes),
        Column::new("packets, least", Unit::Bytes),
        Column::new("mean", Unit::Bytes),
        Column::new("most", Unit::Bytes),
    ];
    let mut table = Table::new("", columns);
    let mut push = |name: &str, fluid: &Settled, played: Option<Played>| {
        let packets = |pick: fn(&Played) -> Bytes| {
            played
                .as_ref()
                .map_or(Cell::Missing, |played| pick(played).into())
        };
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

/// A factor of amplitude in decibels.
fn decibels(factor: f64) -> f64 {
    20.0 * factor.log10()
}

fn verdict(answer: &Answer<'_>) -> (Tone, String) {
    let Answer {
        fluid,
        choice,
        settled,
        played,
        ..
    } = answer;
    let fixed = &choice.fixed;
    let packets = played.map_or_else(String::new, |played| {
        let (least, most) = (played.queue_min, played.queue_max);
        format!(" Packet by packet it ranges from {least} to {most}.")
    });
    match choice.margins.map(|margins| margins.phase_deg) {
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

fn row(name: &str, choice: &Choice) -> [Cell; 9] {
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
