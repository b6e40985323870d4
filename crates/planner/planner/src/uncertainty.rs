//! The uncertainty of an answer: the range of each figure, and the constants that change the verdict.
//!
//! Every constant whose published values differ has a band ([`Band`](straightway_scenario::provenance::Band)). Each
//! constant is moved to both ends of its band while the others stay. That shows the direction in which it moves a
//! figure, and whether it changes the verdict on its own. A figure's range is then computed with all constants at the
//! ends that lower it, and at the ends that raise it. The range is exact if each constant is monotonic, which holds for
//! formulas of rates and times.
//!
//! Only defaults have bands. A value given by the user or the file is taken as known, so a scenario that gives all
//! values has no range.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use straightway_scenario::{claim::lookup, provenance::Assumption, setting::ParameterSetting};

use crate::scenario::{Scenario, ScenarioAnswer};

/// Settings that shorten the failure simulation, whose spread is not needed here.
const SHORT_TRIALS: [(&str, &str); 2] = [("trials.runs", "2"), ("trials.segments", "1")];

/// The uncertainty of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Uncertainty {
    /// The figures that change within the bands.
    pub figures: Vec<FigureRange>,
    /// The constants that change the verdict on their own.
    pub flips: Vec<Flip>,
    /// The verdict at the defaults.
    pub verdict: String,
    /// The number of constants that have a band.
    pub banded: usize,
}

/// A figure's range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureRange {
    /// The figure's path in the JSON answer.
    pub figure: String,
    /// The figure's label.
    pub label: String,
    /// The value with the constants as they are.
    pub value: f64,
    /// The lowest value within the bands.
    pub low: f64,
    /// The highest value within the bands.
    pub high: f64,
    /// The constant that moves it most.
    pub mostly: String,
}

/// A constant that changes the verdict within its band.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flip {
    /// The parameter's path.
    pub path: String,
    /// Its description.
    pub what: String,
    /// The end of its band that changes the verdict, in the constant's unit.
    pub at: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The verdict there.
    pub verdict: String,
}

/// One constant moved to one end of its band.
struct Moved<'a> {
    assumption: &'a Assumption,
    at: f64,
    figures: Vec<Option<f64>>,
}

/// The figures with several constants moved at once, by their indices among the moved constants; `None` if the
/// scenario refuses the combination.
type Corners = BTreeMap<Vec<usize>, Option<Vec<Option<f64>>>>;

/// The ranges of `figures` (path and label), and the constants that flip the verdict of `answer`.
pub fn of(scenario: &Scenario, answer: &ScenarioAnswer, figures: &[(&str, &str)]) -> Uncertainty {
    let basis = answer.basis();
    let banded: Vec<&Assumption> = basis.assumptions.iter().filter(|a| a.band.is_some()).collect();
    let verdict = answer.verdict();
    let mut uncertainty = Uncertainty {
        verdict: verdict.clone(),
        banded: banded.len(),
        ..Uncertainty::default()
    };
    let short = shortened(scenario);
    let nominal = read(answer.clone(), figures);
    let mut corners = Corners::default();
    let mut moved = Vec::new();
    for assumption in &banded {
        let band = assumption.band.expect("only banded constants are here");
        for at in [band.low, band.high] {
            let Some(changed) = answer_with(&short, &[(assumption, at)]) else {
                continue;
            };
            let other = changed.verdict();
            if other != verdict {
                uncertainty.flips.push(Flip {
                    path: assumption.path.clone().unwrap_or_default(),
                    what: assumption.what.clone(),
                    at,
                    unit: assumption.unit,
                    verdict: other,
                });
            }
            moved.push(Moved {
                assumption,
                at,
                figures: read(changed, figures),
            });
        }
    }
    for (i, (path, label)) in figures.iter().enumerate() {
        let Some(value) = nominal[i] else { continue };
        let spread = spread(&short, &moved, (i, figures), value, &mut corners);
        if let Some((low, high, mostly)) = spread {
            uncertainty.figures.push(FigureRange {
                figure: (*path).to_owned(),
                label: (*label).to_owned(),
                value,
                low,
                high,
                mostly,
            });
        }
    }
    uncertainty
}

/// A figure's range, and the constant that moves it most; `None` if no constant moves it.
fn spread(
    scenario: &Scenario,
    moved: &[Moved<'_>],
    (i, figures): (usize, &[(&str, &str)]),
    value: f64,
    corners: &mut Corners,
) -> Option<(f64, f64, String)> {
    let is_moving = |m: &&Moved<'_>| m.figures[i].is_some_and(|f| (f - value).abs() > 1e-9 * value.abs());
    let moving: Vec<&Moved<'_>> = moved.iter().filter(is_moving).collect();
    let place = |m: &Moved<'_>| moved.iter().position(|other| std::ptr::eq(other, m));
    let figure = |m: &Moved<'_>| m.figures[i].unwrap_or(value);
    let most = moving.iter().max_by(|a, b| {
        let distance = |m: &Moved<'_>| (figure(m) - value).abs();
        distance(a).total_cmp(&distance(b))
    })?;
    let mostly = most.assumption.what.clone();
    let mut ends = vec![value];
    ends.extend(moving.iter().map(|m| figure(m)));
    // All constants together at the ends that lower the figure, and at those that raise it.
    for down in [true, false] {
        let lowering = moving.iter().filter(|m| (figure(m) < value) == down);
        let corner: Vec<&Moved<'_>> = lowering.copied().collect();
        // Figures that the same constants move in the same direction share their corners.
        let key: Vec<usize> = corner.iter().filter_map(|m| place(m)).collect();
        let found = corners.entry(key).or_insert_with(|| {
            let corner: Vec<_> = corner.iter().map(|m| (m.assumption, m.at)).collect();
            answer_with(scenario, &corner).map(|answer| read(answer, figures))
        });
        ends.extend(found.as_ref().and_then(|found| found[i]));
    }
    let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some((low, high, mostly))
}

/// The scenario with the failure simulation cut to its minimum.
fn shortened(scenario: &Scenario) -> Scenario {
    let settings = SHORT_TRIALS.map(|(path, value)| ParameterSetting {
        path: path.to_owned(),
        value: value.to_owned(),
    });
    scenario.set(&settings).unwrap_or_else(|_| scenario.clone())
}

/// The answer with constants moved; `None` if the scenario refuses the combination.
fn answer_with(scenario: &Scenario, moved: &[(&Assumption, f64)]) -> Option<ScenarioAnswer> {
    let settings: Vec<ParameterSetting> = moved
        .iter()
        .filter_map(|(assumption, at)| {
            Some(ParameterSetting {
                path: assumption.path.clone()?,
                value: format!("{at:e}"),
            })
        })
        .collect();
    scenario.set(&settings).ok()?.compute().ok()
}

fn read(answer: ScenarioAnswer, figures: &[(&str, &str)]) -> Vec<Option<f64>> {
    let answer = answer.into_figures().to_json();
    figures
        .iter()
        .map(|(path, _)| lookup(&answer, path).and_then(Value::as_f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Topic;

    fn asked(scenario: &Scenario, figures: &[(&str, &str)]) -> Uncertainty {
        of(scenario, &scenario.answer().unwrap(), figures)
    }

    #[test]
    fn goodput_of_16384_gpus_depends_mostly_on_the_failure_rate() {
        let gpus = ParameterSetting::parse("cluster.gpus=16384").unwrap();
        let scenario = Scenario::default_of(Topic::Checkpoint).set(&[gpus]).unwrap();
        let found = asked(&scenario, &[("ways.standard.goodput", "goodput")]);
        let goodput = &found.figures[0];
        assert!(goodput.low < 0.85 && goodput.high > 0.93, "{goodput:?}");
        assert!(goodput.low <= goodput.value && goodput.value <= goodput.high);
        assert!(goodput.mostly.contains("between failures"), "{goodput:?}");
    }

    #[test]
    fn parity_width_decides_the_ranking_of_architectures_and_is_named() {
        let scenario = Scenario::default_of(Topic::Architecture);
        let found = asked(&scenario, &[]);
        assert!(
            found.flips.iter().any(|flip| flip.path.contains("write_share")),
            "{:?}",
            found.flips
        );
    }

    #[test]
    fn a_value_given_by_the_user_has_no_band() {
        let settings = [
            "cluster.mtbf_per_gpu=8000h",
            "schedule.restart=300s",
            "storage.rate=2TB/s",
        ];
        let settings = settings.map(|text| ParameterSetting::parse(text).unwrap());
        let scenario = Scenario::default_of(Topic::Checkpoint);
        let before = asked(&scenario, &[]).banded;
        let after = asked(&scenario.set(&settings).unwrap(), &[]).banded;
        assert_eq!(after + 3, before);
    }
}
