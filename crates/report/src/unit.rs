//! What a number counts, and how it is written for people and for programs.
//!
//! An axis and a table column each carry a [`Unit`]; the numbers themselves stay plain `f64` in
//! the base unit. People get `3.21 GB/s`, as `straightway_core` prints it; programs get
//! `3210000000` under a name that ends in `_bytes_per_s`. There is no second table of suffixes
//! here: where an axis needs more digits than the quantity shows by itself, the suffix that the
//! quantity chose is read back for its size.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::terminal::clean;

/// What a number counts. The number itself is always in the base unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A bare number: a count, a factor, a depth.
    #[default]
    Count,
    /// Bytes, shown as `4 MiB`.
    Bytes,
    /// Bytes per second, shown as `3.2 GB/s`.
    Rate,
    /// Seconds, shown as `42 µs`.
    Seconds,
    /// A fraction of one, shown as a percentage.
    Share,
    /// Anything else, by the name of its unit: `W`, `IOPS`, `$/month`.
    Named(String),
}

/// What is written where there is no number.
pub(crate) const MISSING: &str = "–";

/// More decimals than this tell nothing apart that a double could hold.
const DECIMALS_MAX: usize = 12;

impl Unit {
    /// A unit that is not one of the common ones.
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named(name.into())
    }

    /// The unit that goes by `name`: `B`, `B/s` and `s` are those every room counts in, nothing or
    /// `1` is a bare number, and any other name is its own.
    pub fn of(name: &str) -> Self {
        match name {
            "" | "1" => Self::Count,
            "B" | "bytes" => Self::Bytes,
            "B/s" | "bytes/s" => Self::Rate,
            "s" => Self::Seconds,
            "share" | "fraction" => Self::Share,
            name => Self::named(name),
        }
    }

    /// `value` as people read it, with three significant digits and its unit.
    pub fn show(&self, value: f64) -> String {
        if !value.is_finite() {
            return match value {
                f64::INFINITY => "∞".to_owned(),
                f64::NEG_INFINITY => "−∞".to_owned(),
                _ => MISSING.to_owned(),
            };
        }
        if value < 0.0 {
            return format!("−{}", self.show(-value));
        }
        match self {
            Self::Count => number(value),
            Self::Bytes => bytes(value),
            Self::Rate => Rate(value).to_string(),
            Self::Seconds => Seconds(value).to_string(),
            Self::Share => share(value),
            Self::Named(name) => format!("{} {}", number(value), clean(name)),
        }
    }

    /// Labels for the ticks of an axis: as short as tells them apart, and a bare `0` for zero.
    pub fn labels(&self, ticks: &[f64]) -> Vec<String> {
        let plain: Vec<_> = ticks.iter().map(|&tick| self.tick(tick, None)).collect();
        let distinct = |labels: &[String]| labels.windows(2).all(|pair| pair[0] != pair[1]);
        if distinct(&plain) {
            return plain;
        }
        (1..=DECIMALS_MAX)
            .map(|decimals| {
                ticks
                    .iter()
                    .map(|&t| self.tick(t, Some(decimals)))
                    .collect()
            })
            .find(|labels: &Vec<String>| distinct(labels))
            .unwrap_or(plain)
    }

    /// The end of a machine-readable name: `_bytes_per_s`, or nothing for a bare number.
    pub fn suffix(&self) -> String {
        match self {
            Self::Count => String::new(),
            Self::Bytes => "_bytes".to_owned(),
            Self::Rate => "_bytes_per_s".to_owned(),
            Self::Seconds => "_s".to_owned(),
            Self::Share => "_fraction".to_owned(),
            Self::Named(name) => match slug(name).as_str() {
                "" => String::new(),
                slug => format!("_{slug}"),
            },
        }
    }

    /// One tick's label; `decimals` says how many digits stand after the point.
    fn tick(&self, value: f64, decimals: Option<usize>) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        let short = self.show(value);
        let Some(decimals) = decimals else {
            return short;
        };
        let (digits, suffix) = short.split_once(' ').unwrap_or((&short, ""));
        // A bare number brings its own letter (`1.2M`), which no quantity can read back.
        let size = match self {
            Self::Bytes => one(suffix).map(|Bytes(size)| size as f64),
            Self::Rate => one(suffix).map(|Rate(size)| size),
            Self::Seconds => one(suffix).map(|Seconds(size)| size),
            Self::Share => Some(0.01),
            Self::Count | Self::Named(_) => Some(1.0),
        };
        match size {
            Some(size) if digits != MISSING => format!("{:.decimals$} {suffix}", value / size)
                .trim_end()
                .replace('-', "−"),
            _ => short,
        }
    }
}

/// One of what a suffix stands for: `GB/s` is `Rate(1e9)`.
fn one<Q: FromStr>(suffix: &str) -> Option<Q> {
    format!("1{suffix}").parse().ok()
}

/// A bare number with three significant digits; whole numbers below a million are exact.
fn number(value: f64) -> String {
    const LARGE: [(f64, &str); 5] = [
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
    ];
    // Rounds 999 999.6 up before its size is looked at, or it would print as `1,000,000`.
    let rounded = if value >= 99.95 { value.round() } else { value };
    if rounded >= 1e21 {
        return format!("{value:.2e}");
    }
    if let Some((size, letter)) = LARGE.into_iter().find(|(size, _)| rounded >= *size) {
        return format!("{}{letter}", significant(value / size));
    }
    if rounded >= 1000.0 {
        let text = format!("{rounded:.0}");
        let (head, tail) = text.split_at(text.len() - 3);
        return format!("{head},{tail}");
    }
    if value > 0.0 && value < 1e-4 {
        return format!("{value:.1e}");
    }
    significant(value)
}

/// A percentage. What is nearly all is not shown as all, nor what is as good as nothing as an
/// answer: nobody means a share of 10⁻³⁸.
fn share(value: f64) -> String {
    const LEAST: f64 = 1e-8;
    let percent = value * 100.0;
    if value > 0.0 && value < LEAST {
        return "0 %".to_owned();
    }
    let nearly_all = value < 1.0 && number(percent) == "100";
    if !nearly_all {
        return format!("{} %", number(percent));
    }
    // As many nines as it takes, and one digit that is none.
    let shown = (1..=6).map(|decimals| format!("{percent:.decimals$}"));
    let shown = shown.into_iter().find(|text| !text.starts_with("100"));
    format!("{} %", shown.unwrap_or_else(|| "100".to_owned()))
}

/// Three significant digits, without trailing zeros after the point.
fn significant(value: f64) -> String {
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.995 || v == 0.0 => 2,
        v if v >= 0.0995 => 3,
        v if v >= 0.00995 => 4,
        _ => 6,
    };
    let text = format!("{value:.decimals$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

/// Bytes are whole everywhere but between the ticks of an axis.
fn bytes(value: f64) -> String {
    if value < 1024.0 && value.fract() != 0.0 {
        return format!("{} B", significant(value));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative here, and beyond 2^64 the largest size is the nearest true answer"
    )]
    Bytes(value.round() as u64).to_string()
}

/// A name for programs: lower case, with underscores for whatever is neither letter nor digit.
pub(crate) fn slug(text: &str) -> String {
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_shown_with_three_digits_and_their_unit() {
        for (unit, value, text) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 65_536.0, "65,536"),
            (Unit::Count, 999_999.6, "1M"),
            (Unit::Count, 0.001_234, "0.001234"),
            (Unit::Count, 1e-9, "1.0e-9"),
            (Unit::Bytes, 4_194_304.0, "4 MiB"),
            (Unit::Bytes, 0.5, "0.5 B"),
            (Unit::Rate, 3.214e9, "3.21 GB/s"),
            (Unit::Seconds, 42.1e-6, "42.1 µs"),
            (Unit::Share, 0.934, "93.4 %"),
            (Unit::Share, 0.999_94, "99.99 %"),
            (Unit::Share, 0.999_999_9, "99.99999 %"),
            (Unit::Share, 1.0, "100 %"),
            (Unit::Share, 2.5e-38, "0 %"),
            (Unit::Share, 2.5e-7, "2.5e-5 %"),
            (Unit::named("W"), 700.0, "700 W"),
            (Unit::Seconds, -0.003, "−3 ms"),
            (Unit::Rate, f64::NAN, "–"),
            (Unit::Rate, f64::INFINITY, "∞"),
        ] {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn ticks_too_close_for_three_digits_get_more() {
        let labels = Unit::Rate.labels(&[1.000e9, 1.001e9, 1.002e9]);
        assert_eq!(labels, ["1.000 GB/s", "1.001 GB/s", "1.002 GB/s"]);
        assert_eq!(Unit::Share.labels(&[0.0, 0.5, 1.0]), ["0", "50 %", "100 %"]);
    }

    #[test]
    fn the_units_every_room_counts_in_are_known_by_name() {
        assert_eq!(Unit::of("B/s"), Unit::Rate);
        assert_eq!(Unit::of("ns"), Unit::named("ns"));
    }

    #[test]
    fn names_for_programs_end_in_the_unit() {
        assert_eq!(Unit::Rate.suffix(), "_bytes_per_s");
        assert_eq!(Unit::named("$/month").suffix(), "_month");
        assert_eq!(slug("p99 latency, worst"), "p99_latency_worst");
    }

    proptest! {
        #[test]
        fn any_number_can_be_shown(value in any::<f64>()) {
            for unit in [Unit::Count, Unit::Bytes, Unit::Rate, Unit::Seconds, Unit::Share] {
                prop_assert!(!unit.show(value).is_empty());
                prop_assert_eq!(unit.labels(&[value, value]).len(), 2);
            }
        }
    }
}
