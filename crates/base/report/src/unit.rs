//! Units of numbers, and their formats for people and for programs.
//!
//! An axis and a table column each have a [`Unit`]; the numbers are plain `f64` in the base unit. People get `3.21
//! GB/s`, as `straightway_core` prints it; programs get `3210000000` under a name that ends in `_bytes_per_s`. There is
//! no second table of suffixes here: if an axis needs more digits than the default format, the suffix chosen by
//! `straightway_core` is parsed back to get its size.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::terminal::clean;

/// The unit of a number. The number itself is always in the base unit.
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

/// The text shown for a missing number.
pub(crate) const MISSING: &str = "–";

/// The most decimals of a tick label. More would exceed the precision of a double.
const DECIMALS_MAX: usize = 12;

impl Unit {
    /// A unit that is not one of the common ones.
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named(name.into())
    }

    /// The unit called `name`. `B`, `B/s` and `s` are the base units; an empty name or `1` is a bare number; any other
    /// name becomes [`Unit::Named`].
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

    /// Formats `value` for people, with three significant digits and its unit.
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

    /// Labels for the ticks of an axis: as few decimals as keep them distinct, and a bare `0` for zero.
    pub fn labels(&self, ticks: &[f64]) -> Vec<String> {
        let plain: Vec<_> = ticks.iter().map(|&tick| self.tick(tick, None)).collect();
        let distinct = |labels: &[String]| labels.windows(2).all(|pair| pair[0] != pair[1]);
        if distinct(&plain) {
            return plain;
        }
        (1..=DECIMALS_MAX)
            .map(|decimals| ticks.iter().map(|&t| self.tick(t, Some(decimals))).collect())
            .find(|labels: &Vec<String>| distinct(labels))
            .unwrap_or(plain)
    }

    /// The suffix of a machine-readable name: `_bytes_per_s`, or empty for a bare number.
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

    /// The label of one tick, with `decimals` digits after the point.
    fn tick(&self, value: f64, decimals: Option<usize>) -> String {
        if value == 0.0 {
            return "0".to_owned();
        }
        let short = self.show(value);
        let Some(decimals) = decimals else {
            return short;
        };
        let (digits, suffix) = short.split_once(' ').unwrap_or((&short, ""));
        // The letter of a bare number (`1.2M`) cannot be parsed as a unit.
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

/// The quantity that a suffix stands for: `GB/s` is `Rate(1e9)`.
fn one<Q: FromStr>(suffix: &str) -> Option<Q> {
    format!("1{suffix}").parse().ok()
}

/// A bare number with three significant digits; whole numbers below a million are exact.
fn number(value: f64) -> String {
    const LARGE: [(f64, &str); 5] = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    // Round 999 999.6 up before choosing the letter, or it would print as `1,000,000`.
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

/// Formats a percentage. A share slightly below one is not shown as 100 %, and a share below 10⁻⁸ is shown as 0 %.
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
    // Add decimals until the text no longer rounds to 100.
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

/// Formats bytes. Fractions of a byte occur only on axes.
fn bytes(value: f64) -> String {
    if value < 1024.0 && value.fract() != 0.0 {
        return format!("{} B", significant(value));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative here, and a size beyond 2^64 saturates"
    )]
    Bytes(value.round() as u64).to_string()
}

/// A machine-readable name: lower case, with underscores for everything that is neither letter nor digit.
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
    fn the_base_units_are_known_by_name() {
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
