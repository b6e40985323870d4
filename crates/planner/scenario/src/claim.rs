//! Claims: published figures, checked against the figures computed from the same inputs.
//!
//! A scenario that reproduces a published case carries the figures published with it. Each claim names a field of the
//! answer, so the model's figure is computed and never typed in. The file only records whether the claim holds, and
//! why. A test checks the record of every file.

use std::fmt;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::{
    check::{Checkable, Checker},
    provenance::Correction,
};

/// A published claim.
///
/// Most claims are figures and have `answer` and `value`. A few are statements that no figure decides; those have
/// `instead`, a statement of what holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim, in a sentence.
    pub says: String,
    /// The field of the answer it is about, such as `ways.direct.durable_s`.
    pub answer: Option<String>,
    /// The published figure.
    pub value: Option<Figure>,
    /// A statement of what holds, for a claim without a figure.
    pub instead: Option<String>,
    /// The comparison that must hold between the two figures.
    #[serde(default)]
    pub compare: Compare,
    /// The tolerance, relative to the published figure.
    #[serde(default = "tolerance")]
    pub tolerance: f64,
    /// Whether the claim holds.
    #[serde(default = "yes")]
    pub holds: bool,
    /// The reason why it does not hold, or the origin of its tolerance.
    #[serde(default)]
    pub why: String,
    /// Whether an input of the scenario was fitted to this figure, so that it holds by construction.
    #[serde(default)]
    pub fitted: bool,
    /// The publication.
    pub source: String,
}

/// A comparison of the computed figure with the published one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// Equal within the tolerance.
    #[default]
    Near,
    /// The computed figure is at most the published one.
    AtMost,
    /// The computed figure is at least the published one.
    AtLeast,
}

/// A published number, with or without a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Figure {
    /// The number, in the base unit.
    pub value: f64,
    /// The quantity it measures.
    pub kind: FigureKind,
    /// The original text.
    text: String,
}

/// The quantity that a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// A bare number.
    Plain,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
    /// Seconds.
    Seconds,
}

/// A figure in TOML: a number or a string.
#[derive(Deserialize, Serialize)]
#[serde(untagged, expecting = "a figure such as 0.23, 45s, 50TB or 200GB/s")]
enum Written {
    Number(f64),
    Text(String),
}

const fn tolerance() -> f64 {
    0.01
}

const fn yes() -> bool {
    true
}

impl TryFrom<Written> for Figure {
    /// The allowed figures.
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, &'static str> {
        let text = match written {
            Written::Number(value) => {
                return Ok(Self {
                    value,
                    kind: FigureKind::Plain,
                    text: value.to_string(),
                });
            }
            Written::Text(text) => text,
        };
        // A rate is last: it may be written without `/s`, as a size is.
        let parsed = if let Ok(Seconds(value)) = text.parse::<Seconds>() {
            (value, FigureKind::Seconds)
        } else if let Ok(Bytes(value)) = text.parse::<Bytes>() {
            (value as f64, FigureKind::Bytes)
        } else if let Ok(Rate(value)) = text.parse::<Rate>() {
            (value, FigureKind::Rate)
        } else {
            return Err("a figure such as 0.23, 45s, 50TB or 200GB/s");
        };
        Ok(Self {
            value: parsed.0,
            kind: parsed.1,
            text,
        })
    }
}

impl From<Figure> for Written {
    fn from(figure: Figure) -> Self {
        match figure.kind {
            FigureKind::Plain => Self::Number(figure.value),
            _ => Self::Text(figure.text),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_own_unit(self.value))
    }
}

impl Figure {
    /// Formats `computed` in the unit of this figure, so that the two can be compared.
    fn in_own_unit(&self, computed: f64) -> String {
        let digits = self.text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match self.text[digits.len()..].trim() {
            "us" => "µs",
            unit => unit,
        };
        // The factor of the unit, derived from the figure itself. A figure of zero does not reveal it.
        let factor = match digits.trim().parse::<f64>() {
            Ok(number) if number != 0.0 => self.value / number,
            _ => 1.0,
        };
        format!("{} {unit}", significant(computed / factor))
            .trim_end()
            .to_owned()
    }
}

/// Formats a number with four significant digits.
fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, reason = "the exponent of a double is below 400")]
    let before_point = value.abs().log10().floor() as i32 + 1;
    let decimals = usize::try_from(4 - before_point).unwrap_or(0);
    let beyond = 10f64.powi((before_point - 4).max(0));
    let value = if beyond > 1.0 {
        (value / beyond).round() * beyond
    } else {
        value
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

impl Checkable for Claim {
    fn check(&self, c: &mut Checker) {
        c.range("tolerance", self.tolerance, 0.0..=10.0, "");
        if let Some(value) = &self.value {
            c.range("value", value.value, -1e30..=1e30, "");
        }
        match (&self.answer, &self.value, &self.instead) {
            (Some(_), Some(_), None) | (None, None, Some(_)) => {}
            _ => c.refuse("answer", "a claim", "either `answer` and `value`, or `instead`"),
        }
    }
}

impl Claim {
    /// Compares the claim with `answer`; `None` if the answer has no such figure.
    pub fn judge(&self, answer: &serde_json::Value) -> Option<Correction> {
        if let Some(instead) = &self.instead {
            return Some(self.correction("in words".to_owned(), instead.clone(), self.holds));
        }
        let (path, figure) = (self.answer.as_ref()?, self.value.as_ref()?);
        let computed = lookup(answer, path)?.as_f64()?;
        let published = figure.value;
        let margin = self.tolerance * published.abs();
        let holds = match self.compare {
            Compare::Near => (computed - published).abs() <= margin,
            Compare::AtMost => computed <= published + margin,
            Compare::AtLeast => computed >= published - margin,
        };
        let word = match self.compare {
            Compare::Near => "",
            Compare::AtMost => "at most ",
            Compare::AtLeast => "at least ",
        };
        let published = format!("{word}{figure}");
        Some(self.correction(published, figure.in_own_unit(computed), holds))
    }

    fn correction(&self, article_says: String, model_says: String, holds: bool) -> Correction {
        Correction {
            claim: format!("{} ({})", self.says, self.source),
            article_says,
            model_says,
            holds,
            fitted: self.fitted,
            why: self.why.clone(),
        }
    }
}

/// The value at a dotted path of an answer, such as `ways.direct.stop_s` or `systems[0].write_s`.
pub fn lookup<'a>(answer: &'a serde_json::Value, path: &str) -> Option<&'a serde_json::Value> {
    crate::check::steps(path).try_fold(answer, |at, step| match step {
        crate::check::PathStep::Key(key) => at.get(key),
        crate::check::PathStep::Index(i) => at.get(i),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(value: &str, compare: &str) -> Claim {
        let text =
            format!("says = \"it\"\nanswer = \"a.b[1]\"\nvalue = {value}\ncompare = \"{compare}\"\nsource = \"s\"");
        toml::from_str(&text).unwrap()
    }

    fn figure(value: &str) -> Figure {
        claim(value, "near").value.unwrap()
    }

    #[test]
    fn a_figure_is_read_with_its_unit() {
        assert_eq!(figure("\"45s\"").kind, FigureKind::Seconds);
        assert_eq!(figure("\"50TB\"").kind, FigureKind::Bytes);
        assert_eq!(figure("\"1.111TB/s\"").value.to_bits(), 1.111e12f64.to_bits());
        assert_eq!(figure("0.23").to_string(), "0.23");
        assert_eq!(figure("\"1.111TB/s\"").in_own_unit(1.2e12), "1.2 TB/s");
        assert_eq!(figure("\"2199s\"").in_own_unit(2198.9), "2199 s");
        assert_eq!(figure("1e6").in_own_unit(600_000.0), "600000");
        assert_eq!(figure("\"266us\"").to_string(), "266 µs");
        assert_eq!(figure("1e6").in_own_unit(600_025.4), "600000");
        assert!(toml::from_str::<Claim>("value = \"zzz\"").is_err());
    }

    #[test]
    fn a_claim_is_judged_by_the_computed_figure() {
        let answer = serde_json::json!({ "a": { "b": [0, 100.5] } });
        assert!(claim("100", "near").judge(&answer).unwrap().holds);
        assert!(!claim("90", "near").judge(&answer).unwrap().holds);
        assert!(claim("200", "at_most").judge(&answer).unwrap().holds);
        assert!(!claim("200", "at_least").judge(&answer).unwrap().holds);
    }

    #[test]
    fn a_claim_about_a_missing_figure_has_no_verdict() {
        assert_eq!(claim("1", "near").judge(&serde_json::json!({})), None);
    }
}
