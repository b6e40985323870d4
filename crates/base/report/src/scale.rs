//! The scale of an axis: the position of values and ticks.
//!
//! A [`Scale`] maps a [`ValueRange`] onto 0…1; a renderer maps that onto its dots or pixels. Ticks are chosen by unit:
//! time is divided into minutes, hours and days, bytes by powers of two, all else by one, two and five. Ticks are in
//! the range and increasing, and there are never more than requested.

use serde::{Deserialize, Serialize};

use crate::Unit;

/// The mapping of values to positions on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Equal differences take equal space.
    #[default]
    Linear,
    /// Each doubling takes equal space, as for block sizes and depths.
    Log2,
    /// Each factor of ten takes equal space, as for latencies and rates over decades.
    Log10,
}

/// The range of an axis: finite, and `lo < hi`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueRange {
    lo: f64,
    hi: f64,
}

impl ValueRange {
    /// The lower end.
    pub fn lo(self) -> f64 {
        self.lo
    }

    /// The upper end.
    pub fn hi(self) -> f64 {
        self.hi
    }

    /// Whether `value` is in the range, including its ends.
    pub fn contains(self, value: f64) -> bool {
        (self.lo..=self.hi).contains(&value)
    }
}

impl Scale {
    /// Whether the axis can show `value`: it must be finite, and positive on a logarithmic axis.
    pub fn admits(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }

    /// The range of the values that can be shown; `None` if there are none.
    ///
    /// If all values are equal, the range is centred on them.
    pub fn range(self, values: impl IntoIterator<Item = f64>) -> Option<ValueRange> {
        let (lo, hi) = values
            .into_iter()
            .filter(|&value| self.admits(value))
            .fold(None, |span: Option<(f64, f64)>, v| {
                Some(span.map_or((v, v), |(lo, hi)| (lo.min(v), hi.max(v))))
            })?;
        if lo < hi {
            return Some(ValueRange { lo, hi });
        }
        let (below, above) = match self {
            Self::Linear if lo == 0.0 => (-1.0, 1.0),
            Self::Linear => (lo - lo.abs() / 2.0, lo + lo.abs() / 2.0),
            Self::Log2 => (lo / 2.0, lo * 2.0),
            Self::Log10 => (lo / 10.0, lo * 10.0),
        };
        // At the limits of `f64`, use the neighbouring double.
        let lo = if self.admits(below) && below < lo {
            below
        } else {
            lo.next_down()
        };
        let hi = if above.is_finite() && above > hi {
            above
        } else {
            hi.next_up()
        };
        let fits = self.admits(lo) && hi.is_finite();
        Some(if fits {
            ValueRange { lo, hi }
        } else {
            ValueRange {
                lo: f64::MIN_POSITIVE,
                hi: f64::MAX,
            }
        })
    }

    /// The position of `value`: 0 at the lower end, 1 at the upper; outside of 0…1 beyond them.
    pub fn place(self, range: ValueRange, value: f64) -> f64 {
        match self {
            // Halve first: the width of the widest range overflows a double.
            Self::Linear => (value / 2.0 - range.lo / 2.0) / (range.hi / 2.0 - range.lo / 2.0),
            Self::Log2 | Self::Log10 => (value.log2() - range.lo.log2()) / (range.hi.log2() - range.lo.log2()),
        }
    }

    /// At most `count` ticks in `range`, in increasing order.
    pub fn ticks(self, unit: &Unit, range: ValueRange, count: usize) -> Vec<f64> {
        if count == 0 {
            return Vec::new();
        }
        let ticks = match self {
            Self::Linear => linear(unit, range, count),
            Self::Log2 => powers_of_two(range, count),
            Self::Log10 => decades(unit, range, count),
        };
        // A narrow range contains too few powers; use even steps.
        if ticks.len() < 2.min(count) && self != Self::Linear {
            return linear(unit, range, count);
        }
        ticks
    }

    /// Widens the range to the next tick, so that a curve does not touch the edge.
    pub fn widen(self, unit: &Unit, range: ValueRange, count: usize) -> ValueRange {
        let (lo, hi) = match self {
            Self::Linear => {
                let step = step(unit, (range.hi - range.lo) / count.max(1) as f64);
                ((range.lo / step).floor() * step, (range.hi / step).ceil() * step)
            }
            Self::Log10 if *unit != Unit::Seconds || range.hi <= 60.0 => round_decades(range, count),
            Self::Log2 | Self::Log10 => {
                let margin = (range.hi / range.lo).powf(0.04);
                (range.lo / margin, range.hi * margin)
            }
        };
        let fits = self.admits(lo) && hi.is_finite() && lo <= range.lo && hi >= range.hi;
        if fits { ValueRange { lo, hi } } else { range }
    }
}

/// The round numbers around a range of a logarithmic axis: one, two or five times a power of ten, or powers of ten if
/// there are more than `count` of the former. A tick is then at each end.
fn round_decades(range: ValueRange, count: usize) -> (f64, f64) {
    let around = |factors: &[f64]| {
        let floor = |value: f64| 10f64.powf(value.log10().floor());
        let below = |value: f64| factors.iter().map(|f| f * floor(value)).rfind(|&v| v <= value);
        let above = |value: f64| {
            let next = factors.iter().map(|f| f * floor(value)).find(|&v| v >= value);
            next.unwrap_or(10.0 * floor(value))
        };
        (below(range.lo).unwrap_or(range.lo), above(range.hi))
    };
    let fine = around(&[1.0, 2.0, 5.0]);
    let fine_ticks = 3.0 * (fine.1 / fine.0).log10() + 1.0;
    if fine_ticks <= count as f64 + 1.5 {
        fine
    } else {
        around(&[1.0])
    }
}

/// Multiples of a round step.
fn linear(unit: &Unit, range: ValueRange, count: usize) -> Vec<f64> {
    // A step of one part in `count` may fit if the ends of the range are not round.
    let fine = multiples(unit, range, count);
    if fine.len() <= count {
        return fine;
    }
    let mut coarse = multiples(unit, range, (count - 1).max(1));
    coarse.truncate(count);
    coarse
}

/// The multiples of the smallest round step that is at least one part in `parts` of the range.
fn multiples(unit: &Unit, range: ValueRange, parts: usize) -> Vec<f64> {
    let raw = range.hi / parts as f64 - range.lo / parts as f64;
    let step = step(unit, raw);
    let first = (range.lo / step).ceil();
    // In a range of a few neighbouring doubles all steps would round to one value.
    if !step.is_finite() || step <= 0.0 || first.abs() > 2f64.powi(52) {
        return vec![range.lo];
    }
    let mut ticks: Vec<f64> = (0..=parts + 1)
        .map(|i| (first + i as f64) * step)
        .filter(|&tick| range.contains(tick))
        .collect();
    ticks.dedup();
    ticks
}

/// The smallest round step that is not below `raw`.
fn step(unit: &Unit, raw: f64) -> f64 {
    // Clock steps: seconds, minutes, hours, days.
    const CLOCK: [f64; 18] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0,
        43_200.0, 86_400.0,
    ];
    const DAY: f64 = 86_400.0;
    match unit {
        Unit::Bytes if raw > 1.0 => raw.log2().ceil().exp2(),
        Unit::Seconds if raw > DAY => decimal_step(raw / DAY) * DAY,
        Unit::Seconds if raw > 1.0 => CLOCK.into_iter().find(|&step| step >= raw).unwrap_or(DAY),
        _ => decimal_step(raw),
    }
}

/// One, two, two and a half or five times a power of ten, not below `raw`.
fn decimal_step(raw: f64) -> f64 {
    let exponent = raw.log10().floor();
    // One over a whole power of ten is more accurate than a negative exponent.
    let power = if exponent < 0.0 {
        1.0 / 10f64.powf(-exponent)
    } else {
        10f64.powf(exponent)
    };
    // The tolerance accepts 2.0000000000000004 as two.
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let factor = steps.into_iter().find(|factor| factor * power >= raw * (1.0 - 1e-12));
    factor.unwrap_or(10.0) * power
}

/// Powers of two, every one or every few.
fn powers_of_two(range: ValueRange, count: usize) -> Vec<f64> {
    let (first, last) = (range.lo.log2(), range.hi.log2());
    // Every third is a factor of eight, every fourth of sixteen, every tenth from KiB to MiB to GiB.
    let strides = [
        1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0,
    ];
    strides
        .into_iter()
        .map(|stride| {
            let from = (first / stride).ceil();
            // One extra tick, because rounding may put one just outside of the range.
            (0..=count)
                .map(|i| ((from + i as f64) * stride).min(last + 1.0).exp2())
                .take_while(|&tick| tick <= range.hi)
                .filter(|&tick| range.contains(tick))
                .collect::<Vec<_>>()
        })
        .find(|ticks| ticks.len() <= count)
        .unwrap_or_default()
}

/// Powers of ten, with 2 and 5 between them if there is room; minutes, hours and days for long times.
fn decades(unit: &Unit, range: ValueRange, count: usize) -> Vec<f64> {
    const CLOCK: [f64; 7] = [60.0, 600.0, 3600.0, 36_000.0, 86_400.0, 864_000.0, 8_640_000.0];
    let clock = matches!(unit, Unit::Seconds);
    #[expect(clippy::cast_possible_truncation, reason = "the exponent of a double is below 400")]
    let (first, last) = (range.lo.log10().floor() as i32, range.hi.log10().ceil() as i32);
    let power = |exponent: i32| format!("1e{exponent}").parse().unwrap_or(f64::MAX);
    let decades = (first..=last).filter(|&e| !clock || e <= 1).map(power);
    let all: Vec<f64> = decades
        .chain(CLOCK.into_iter().filter(|_| clock))
        .filter(|&tick| range.contains(tick))
        .collect();
    let between: Vec<f64> = (first..=last)
        .filter(|_| !clock || range.hi <= 60.0)
        .flat_map(|e| [1.0, 2.0, 5.0].map(|factor| factor * power(e)))
        .filter(|&tick| range.contains(tick))
        .collect();
    if between.len() <= count && between.len() >= all.len() {
        return between;
    }
    let stride = all.len().div_ceil(count).max(1);
    all.into_iter().step_by(stride).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_logarithmic_axis_has_a_tick_above_its_highest_value() {
        for (lo, hi) in [(1.3e-4, 0.045), (0.012, 0.045), (3e-6, 45.0), (1.0, 10.0)] {
            let range = ValueRange { lo, hi };
            let wide = Scale::Log10.widen(&Unit::Seconds, range, 6);
            let ticks = Scale::Log10.ticks(&Unit::Seconds, wide, 8);
            assert!(
                ticks.last().is_some_and(|tick| *tick >= hi * 0.999),
                "{lo} to {hi}: {ticks:?}"
            );
            assert!(
                ticks.first().is_some_and(|tick| *tick <= lo * 1.001),
                "{lo} to {hi}: {ticks:?}"
            );
        }
    }

    fn range(scale: Scale, lo: f64, hi: f64) -> ValueRange {
        scale.range([lo, hi]).unwrap()
    }

    #[test]
    fn ticks_are_what_a_person_would_choose() {
        let ticks =
            |scale: Scale, unit: Unit, lo, hi| unit.labels(&scale.ticks(&unit, range(scale, lo, hi), 6)).join(" | ");
        let mib = 1_048_576.0;
        let cases = [
            (Scale::Linear, Unit::Rate, 0.0, 14e9),
            (Scale::Linear, Unit::Bytes, 0.0, 90.0 * mib),
            (Scale::Linear, Unit::Seconds, 0.0, 7000.0),
            (Scale::Linear, Unit::Seconds, 0.0, 86_400.0 * 40.0),
            (Scale::Linear, Unit::Share, 0.0, 1.0),
            (Scale::Linear, Unit::Count, -3.0, 3.0),
            (Scale::Log2, Unit::Bytes, 4096.0, 16.0 * mib),
            (Scale::Log2, Unit::Count, 1.0, 64.0),
            (Scale::Log2, Unit::Count, 5.0, 7.0),
            (Scale::Log10, Unit::Seconds, 20e-6, 0.05),
            (Scale::Log10, Unit::Seconds, 0.5, 90_000.0),
            (Scale::Log10, Unit::Rate, 2e8, 9e9),
        ];
        let shown: Vec<_> = cases.into_iter().map(|(s, u, lo, hi)| ticks(s, u, lo, hi)).collect();
        insta::assert_snapshot!(shown.join("\n"));
    }

    #[test]
    fn values_that_cannot_be_shown_have_no_range() {
        assert_eq!(Scale::Linear.range([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Scale::Log10.range([0.0, -1.0]), None);
    }

    #[test]
    fn equal_values_land_in_the_middle() {
        for scale in [Scale::Linear, Scale::Log2, Scale::Log10] {
            let range = scale.range([42.0, 42.0]).unwrap();
            assert!((scale.place(range, 42.0) - 0.5).abs() < 1e-9, "{scale:?}");
        }
    }

    fn any_scale() -> impl Strategy<Value = Scale> {
        prop_oneof![Just(Scale::Linear), Just(Scale::Log2), Just(Scale::Log10)]
    }

    fn any_unit() -> impl Strategy<Value = Unit> {
        prop_oneof![
            Just(Unit::Count),
            Just(Unit::Bytes),
            Just(Unit::Seconds),
            Just(Unit::Rate)
        ]
    }

    proptest! {
        #[test]
        fn ticks_lie_in_the_range_increase_and_are_few(
            scale in any_scale(), unit in any_unit(),
            a in any::<f64>(), b in any::<f64>(), count in 0usize..20,
        ) {
            if let Some(range) = scale.range([a, b]) {
                let ticks = scale.ticks(&unit, range, count);
                prop_assert!(ticks.len() <= count);
                prop_assert!(ticks.iter().all(|&t| range.contains(t)), "{ticks:?} {range:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
            }
        }

        #[test]
        fn an_ordinary_range_has_at_least_two_ticks(
            scale in any_scale(), unit in any_unit(),
            lo in 1e-9f64..1e12, factor in 1.1f64..1e9, count in 6usize..12,
        ) {
            let ticks = scale.ticks(&unit, range(scale, lo, lo * factor), count);
            prop_assert!(ticks.len() >= 2, "{ticks:?}");
        }

        #[test]
        fn values_are_placed_between_zero_and_one_in_order(
            scale in any_scale(), values in prop::collection::vec(any::<f64>(), 1..9),
        ) {
            if let Some(range) = scale.range(values.iter().copied()) {
                let wide = scale.widen(&Unit::Count, range, 5);
                prop_assert!(wide.lo() <= range.lo() && wide.hi() >= range.hi());
                let mut shown: Vec<_> =
                    values.into_iter().filter(|&v| scale.admits(v)).collect();
                shown.sort_by(f64::total_cmp);
                let places: Vec<_> = shown.iter().map(|&v| scale.place(range, v)).collect();
                prop_assert!(places.iter().all(|p| (0.0..=1.0).contains(p)), "{places:?}");
                prop_assert!(places.windows(2).all(|pair| pair[0] <= pair[1]));
            }
        }
    }
}
