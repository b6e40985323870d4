//! Sweeps: one question over many values of any parameters.
//!
//! `cluster.gpus=512,1024,2048`, `node.host.cores=2..64:6:log` and `link=100Gb/s..800Gb/s:8` name a parameter and its
//! values. Several sweeps make a grid. The points are computed in parallel and returned in the order of the grid, so
//! the output is the same on any number of threads. The caller supplies the function that answers a point (a formula, a
//! simulator).

use rayon::prelude::*;
use straightway_core::{Bytes, Rate, Seconds};

use crate::{check::Refusals, setting::ParameterSetting};

/// The most points of one sweep, and of a grid of several.
pub const POINTS_MAX: usize = 10_000;

/// The most points of a sweep of simulations: at a second each, a quarter of an hour.
pub const SIMULATIONS_MAX: usize = 1_000;

/// One parameter and the values it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSweep {
    /// The parameter's path.
    pub path: String,
    /// Its values, as typed.
    pub values: Vec<String>,
    /// Whether the values were computed from a range, and not listed one by one.
    pub spanned: bool,
}

/// One point of a grid, with its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct GridPoint<A> {
    /// The settings of the point, in the order of the sweeps.
    pub settings: Vec<ParameterSetting>,
    /// The answer, or the refusals of this combination of values.
    pub answer: Result<A, Refusals>,
}

impl ParameterSweep {
    /// Reads `path=a,b,c` or `path=from..to:steps[:log]`.
    pub fn parse(text: &str) -> Result<Self, Refusals> {
        let refuse = |allowed: String| Refusals::one("sweep", text, allowed);
        let setting = ParameterSetting::parse(text).map_err(|_| {
            refuse("path=a,b,c or path=from..to:steps[:log], such as cluster.gpus=512..8192:5:log".to_owned())
        })?;
        let span_ends = setting.value.split_once("..");
        let values = match span_ends {
            Some((from, rest)) => span(from.trim(), rest.trim()).map_err(refuse)?,
            None => setting.value.split(',').map(|value| value.trim().to_owned()).collect(),
        };
        if values.len() > POINTS_MAX || values.iter().any(String::is_empty) {
            return Err(refuse(format!("from 1 to {POINTS_MAX} values, none of them empty")));
        }
        Ok(Self {
            spanned: span_ends.is_some(),
            path: setting.path,
            values,
        })
    }

    /// Rounds the values of a range to whole numbers, without duplicates, for a parameter that is a count. Listed
    /// values stay as they are; a fraction among them is refused later.
    #[must_use]
    pub fn in_whole_steps(mut self) -> Self {
        if self.spanned {
            for value in &mut self.values {
                if let Ok(number) = value.parse::<f64>() {
                    *value = number.round().to_string();
                }
            }
            self.values.dedup();
        }
        self
    }
}

/// The number of points in the grid of `sweeps`; refuses more than `points_max`.
pub fn points(sweeps: &[ParameterSweep], points_max: usize) -> Result<usize, Refusals> {
    let points = sweeps
        .iter()
        .try_fold(1usize, |n, sweep| n.checked_mul(sweep.values.len()));
    points.filter(|n| *n <= points_max).ok_or_else(|| {
        let asked = sweeps.iter().map(|sweep| sweep.values.len().to_string());
        let asked = asked.collect::<Vec<_>>().join(" × ");
        Refusals::one(
            "sweep",
            format!("{asked} points"),
            format!("at most {points_max} points in all"),
        )
    })
}

/// Calls `ask` for every point in the grid of `sweeps`. A refused point is a result like any other; an error (for
/// example an interrupt) ends the sweep.
pub fn run<A: Send, E: Send + From<Refusals>>(
    sweeps: &[ParameterSweep],
    points_max: usize,
    ask: impl Fn(&[ParameterSetting]) -> Result<Result<A, Refusals>, E> + Sync,
) -> Result<Vec<GridPoint<A>>, E> {
    (0..points(sweeps, points_max)?)
        .into_par_iter()
        .map(|number| {
            let settings = settings_at(sweeps, number);
            let answer = ask(&settings)?;
            Ok(GridPoint { settings, answer })
        })
        .collect()
}

/// The settings of the point with this number. The last sweep varies fastest.
fn settings_at(sweeps: &[ParameterSweep], number: usize) -> Vec<ParameterSetting> {
    let mut left = number;
    let mut settings: Vec<ParameterSetting> = sweeps
        .iter()
        .rev()
        .map(|sweep| {
            let value = sweep.values[left % sweep.values.len()].clone();
            left /= sweep.values.len();
            ParameterSetting {
                path: sweep.path.clone(),
                value,
            }
        })
        .collect();
    settings.reverse();
    settings
}

/// The values of `from..to:steps[:log]`, with the unit of the ends.
fn span(from: &str, rest: &str) -> Result<Vec<String>, String> {
    const SHAPE: &str = "from..to:steps[:log]";
    let mut parts = rest.split(':');
    let to = parts.next().unwrap_or_default().trim();
    let steps = parts.next().ok_or(format!("{SHAPE}: how many steps?"))?;
    let log = match parts.next() {
        None => false,
        Some("log") => true,
        Some(_) => return Err(SHAPE.to_owned()),
    };
    let steps = steps
        .trim()
        .parse::<usize>()
        .ok()
        .filter(|n| (2..=POINTS_MAX).contains(n));
    let steps = steps.ok_or(format!("{SHAPE} with 2 to {POINTS_MAX} steps"))?;
    let ((a, unit_a), (b, unit_b)) = (number(from)?, number(to)?);
    // The values have the unit of the first end; if it has none, that of the last.
    let (unit, b) = match (unit_a, unit_b) {
        (a, same) if a == same => (a, b),
        ("", unit) => (unit, b),
        _ => {
            let factor = unit_factor(unit_b, unit_a)
                .ok_or_else(|| format!("{SHAPE} with units of one kind, not `{unit_a}` and `{unit_b}`"))?;
            (unit_a, b * factor)
        }
    };
    if log && (a <= 0.0 || b <= 0.0) {
        return Err(format!("{SHAPE} with ends above zero for log"));
    }
    let last = (steps - 1) as f64;
    let at = |i: usize| {
        let share = i as f64 / last;
        // The ends are exact.
        match i {
            0 => a,
            i if i + 1 == steps => b,
            _ if log => (a.ln() + (b.ln() - a.ln()) * share).exp(),
            _ => a + (b - a) * share,
        }
    };
    Ok((0..steps).map(|i| format!("{}{unit}", tidy(at(i)))).collect())
}

/// How many of the second unit are one of the first; `None` if they are not both of times, of sizes or of rates.
fn unit_factor(of: &str, to: &str) -> Option<f64> {
    type Kind = fn(&str) -> Option<f64>;
    // A rate may be written without `/s`, as a size is, so it is last.
    let kinds: [Kind; 3] = [
        |one| one.parse::<Seconds>().ok().map(|seconds| seconds.0),
        |one| one.parse::<Bytes>().ok().map(|bytes| bytes.0 as f64),
        |one| one.parse::<Rate>().ok().map(|rate| rate.0),
    ];
    let one = |unit: &str| {
        let text = format!("1{unit}");
        let numbered = kinds.iter().enumerate();
        let mut found = numbered.filter_map(|(kind, parse)| Some((kind, parse(&text)?)));
        found.next().filter(|_| !unit.is_empty())
    };
    let ((kind_of, of), (kind_to, to)) = (one(of)?, one(to)?);
    (kind_of == kind_to).then_some(of / to)
}

/// Splits `400Gb/s` into its number and its unit.
fn number(text: &str) -> Result<(f64, &str), String> {
    let end = text
        .char_indices()
        .rfind(|(_, c)| c.is_ascii_digit() || *c == '.')
        .map_or(0, |(i, _)| i + 1);
    // Units contain no digits, so the last digit ends the number.
    let parsed = text[..end].parse::<f64>().ok().filter(|n| n.is_finite());
    parsed
        .map(|n| (n, text[end..].trim()))
        .ok_or(format!("numbers at both ends, not `{text}`"))
}

/// Formats a number with six significant digits, to hide the rounding of the interpolation.
fn tidy(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    rounded.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        ParameterSweep::parse(text).unwrap().values
    }

    #[test]
    fn lists_and_spans_are_read() {
        assert_eq!(values("a=1,2, 4"), ["1", "2", "4"]);
        assert_eq!(values("a=0..1:3"), ["0", "0.5", "1"]);
        assert_eq!(values("a=1..1000:4:log"), ["1", "10", "100", "1000"]);
        assert_eq!(values("a=100Gb/s..400Gb/s:2"), ["100Gb/s", "400Gb/s"]);
        assert_eq!(values("a=1..4MiB:2"), ["1MiB", "4MiB"]);
    }

    #[test]
    fn the_ends_of_a_span_may_have_different_units_of_one_kind() {
        assert_eq!(values("a=200GB/s..2TB/s:2"), ["200GB/s", "2000GB/s"]);
        assert_eq!(values("a=1s..2h:2"), ["1s", "7200s"]);
        assert_eq!(values("a=512KiB..1MiB:2"), ["512KiB", "1024KiB"]);
        assert_eq!(values("a=100Gb/s..25GB/s:2"), ["100Gb/s", "200Gb/s"]);
    }

    #[test]
    fn a_span_over_a_count_takes_whole_steps_each_once() {
        let steps = |text: &str| ParameterSweep::parse(text).unwrap().in_whole_steps().values;
        assert_eq!(steps("a=1..2:5"), ["1", "2"]);
        assert_eq!(steps("a=1..8:4:log"), ["1", "2", "4", "8"]);
        assert_eq!(steps("a=1..10:4"), ["1", "4", "7", "10"]);
        assert_eq!(steps("a=1,1.5,2"), ["1", "1.5", "2"]);
    }

    #[test]
    fn an_invalid_sweep_is_refused() {
        for text in [
            "a",
            "a=",
            "a=1..2",
            "a=1..2:1",
            "a=0..2:3:log",
            "a=1s..2GiB:3",
            "a=1s..2:3",
            "a=1GB..2GB/s:3",
            "a=x..y:3",
            "a=1,,2",
            "a=1..2:99999999",
            "a=1..2:3:lin",
        ] {
            let refused = ParameterSweep::parse(text).unwrap_err().to_string();
            assert!(refused.starts_with("sweep = "), "{text}: {refused}");
        }
    }

    #[test]
    fn an_error_ends_the_sweep() {
        let sweep = [ParameterSweep::parse("cluster.gpus=1..8:8").unwrap()];
        let stopped = Refusals::one("sweep", "it", "nothing more");
        let ended = run(&sweep, 8, |settings| match settings[0].value.as_str() {
            "5" => Err(stopped.clone()),
            _ => Ok(Ok(())),
        });
        assert_eq!(ended.unwrap_err(), stopped);
        let ended = run(&sweep, 7, |_| Ok::<_, Refusals>(Ok(())));
        assert!(ended.unwrap_err().to_string().contains("at most 7 points"));
    }

    #[test]
    fn a_grid_too_large_is_refused() {
        let sweep = ParameterSweep::parse("cluster.gpus=1..2:1000").unwrap();
        let refused = points(&[sweep.clone(), sweep], POINTS_MAX);
        assert!(refused.unwrap_err().to_string().contains("1000 × 1000 points"));
    }
}
