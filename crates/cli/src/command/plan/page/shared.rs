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
