//! Cells that every page uses.

use straightway_core::{Rate, Seconds};
use straightway_report::{Cell, Unit};

/// Bytes a second.
pub(super) fn rate(bytes_per_s: f64) -> Cell {
    Rate(bytes_per_s).into()
}

/// A time.
pub(super) fn time(seconds: f64) -> Cell {
    Seconds(seconds).into()
}

/// A time that may not be.
pub(super) fn maybe_time(seconds: Option<f64>) -> Cell {
    seconds.map_or(Cell::Missing, time)
}

/// A size, which a model may give as a fraction of a byte.
pub(super) fn bytes(bytes: f64) -> Cell {
    Cell::number(bytes, Unit::Bytes)
}

/// Yes or no.
pub(super) fn yes(yes: bool) -> Cell {
    if yes { "yes" } else { "no" }.into()
}

/// `share` in words: `93.5 %`.
pub(super) fn percent(share: f64) -> String {
    Cell::share(share).show()
}

/// The names of all that come to the most, and the first of them: who is level with the best has
/// not lost to it.
pub(super) fn leaders<'a, T>(
    all: &[(&'a str, &'a T)],
    worth: impl Fn(&T) -> f64,
) -> (Vec<&'a str>, Option<&'a T>) {
    let most = all
        .iter()
        .map(|(_, one)| worth(one))
        .fold(f64::NEG_INFINITY, f64::max);
    let level = |one: &T| worth(one) >= most - 1e-6 * most.abs();
    let first: Vec<_> = all.iter().filter(|(_, one)| level(one)).collect();
    (
        first.iter().map(|(name, _)| *name).collect(),
        first.first().map(|(_, one)| *one),
    )
}

/// `a, b and c`.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
