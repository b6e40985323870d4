//! Cells shared by the pages.

use straightway_core::{Rate, Seconds};
use straightway_report::{Cell, Unit};

/// A rate.
pub(crate) fn rate(bytes_per_s: f64) -> Cell {
    Rate(bytes_per_s).into()
}

/// A time.
pub(crate) fn time(seconds: f64) -> Cell {
    Seconds(seconds).into()
}

/// A time that may be missing.
pub(crate) fn maybe_time(seconds: Option<f64>) -> Cell {
    seconds.map_or(Cell::Missing, time)
}

/// A size. A model may compute a fraction of a byte.
pub(crate) fn bytes(bytes: f64) -> Cell {
    Cell::number(bytes, Unit::Bytes)
}

/// A number as text, as tables show it: `12,481`.
pub(crate) fn count(number: f64) -> String {
    Cell::count(number).show()
}

/// Yes or no.
pub(crate) fn yes(yes: bool) -> Cell {
    if yes { "yes" } else { "no" }.into()
}

/// `share` as text: `93.5 %`.
pub(crate) fn percent(share: f64) -> String {
    Cell::share(share).show()
}

/// The names of all entries with the highest worth, within a millionth, and the first of those entries.
pub(crate) fn leaders<'a, T>(all: &[(&'a str, &'a T)], worth: impl Fn(&T) -> f64) -> (Vec<&'a str>, Option<&'a T>) {
    let most = all.iter().map(|(_, one)| worth(one)).fold(f64::NEG_INFINITY, f64::max);
    let level = |one: &T| worth(one) >= most - 1e-6 * most.abs();
    let first: Vec<_> = all.iter().filter(|(_, one)| level(one)).collect();
    (
        first.iter().map(|(name, _)| *name).collect(),
        first.first().map(|(_, one)| *one),
    )
}

/// `a, b and c`.
pub(crate) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A link's rate in the unit its vendor uses: bits, not bytes.
pub(crate) fn gbit(rate: Rate) -> Cell {
    Cell::number(rate.as_gbit(), Unit::named("Gb/s"))
}

/// Joins the lines of each paragraph of a text.
pub(crate) fn paragraphs(text: &str) -> String {
    let joined = text
        .split("\n\n")
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    joined.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}
