//! DCQCN's fixed point and thresholds, as a page.

use straightway_fabric::{
    beside::Played,
    fluid::{Choice, DELAY_FACTOR, Fluid, SETTLE, Settled, Tuned},
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
    let (tone, text) = verdict(fluid, choice, settled);
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
        fluid.flows,
        gbit(fluid.rate).show()
    );
    Page::new(title)
        .verdict(tone, text)
        .section("", [table.into(), swing.into(), rule(answer).into()])
        .section("Thresholds tried", [tried.into()])
}

/// By what rule a choice is the best, and what it does.
fn rule(answer: &Answer<'_>) -> String {
    let rule = format!(
        "the shortest queue, of {} tried, that would still be stable with {DELAY_FACTOR} times the feedback delay and \
         stays within a tenth of where it stands {SETTLE} after it was moved",
        answer.tuned.choices.len()
    );
    let best = match answer.tuned.settled {
        Some(settled) => {
            let (least, most) = (settled.queue_min, settled.queue_max);
            let packets = packets(answer.best_played);
            format!("Best is {rule}: between {least} and {most} in the fluid model{packets}.")
        }
        None => format!("None is recommended: there is none like {rule}."),
    };
    let given = packets(answer.played);
    let given = given
        .strip_prefix(", and ")
        .map_or_else(String::new, |says| {
            format!(" With the thresholds given it is {says}.")
        });
    format!("{best}{given}")
}

/// What the packet simulator's queue did, which packets make coarser than a fluid.
fn packets(played: Option<Played>) -> String {
    played.map_or_else(String::new, |played| {
        let Played {
            queue_min,
            queue_mean,
            queue_max,
        } = played;
        format!(", and {queue_min} to {queue_max} packet by packet, {queue_mean} on average")
    })
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
