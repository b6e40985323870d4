//! Where an answer comes from: its formulas, its constants, and what published figure it contradicts.
//!
//! A planner that only prints a number asks to be believed. Every answer here carries a [`Basis`]
//! instead: the formulas it was computed by, the constants that went in with their origin and how
//! far that origin was checked, and, where an article's figure does not follow from the article's
//! own numbers, a [`Correction`] that sets both side by side.

use serde::Serialize;

/// How far a constant's origin was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Read in the source named.
    Read,
    /// Quoted from the named paper or standard, not looked up again.
    Quoted,
    /// Computed from other sources.
    Computed,
    /// Given by the user, in a scenario or by `--set`.
    Given,
    /// Measured on this machine.
    Measured,
}

/// Where a formula or a constant is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// What it is called: a paper, a standard, a document.
    pub name: &'static str,
    /// Where in it, or where to find it.
    pub place: &'static str,
    /// How far it was checked.
    pub confidence: Confidence,
}

/// A formula an answer was computed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Formula {
    /// What it gives.
    pub gives: &'static str,
    /// The formula, as one would write it on a board.
    pub text: &'static str,
    /// Where it is from.
    pub source: Source,
}

/// A constant an answer used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumption {
    /// What it is.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// Where it is from.
    pub source: Source,
}

/// A published figure beside what the model gives for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Correction {
    /// What is claimed, in a sentence.
    pub claim: String,
    /// The figure as published.
    pub article_says: String,
    /// The figure that follows.
    pub model_says: String,
    /// Whether the published figure follows.
    pub holds: bool,
    /// Why it does, or does not.
    pub why: String,
}

/// Everything an answer rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Basis {
    /// The formulas, in the order they are used.
    pub formulas: Vec<Formula>,
    /// The constants.
    pub assumptions: Vec<Assumption>,
    /// Published figures checked against the answer.
    pub corrections: Vec<Correction>,
}

impl Source {
    /// A source that was read.
    pub const fn read(name: &'static str, place: &'static str) -> Self {
        Self {
            name,
            place,
            confidence: Confidence::Read,
        }
    }

    /// A source quoted from memory.
    pub const fn quoted(name: &'static str, place: &'static str) -> Self {
        Self {
            name,
            place,
            confidence: Confidence::Quoted,
        }
    }

    /// A figure that follows from others.
    pub const fn computed(name: &'static str, place: &'static str) -> Self {
        Self {
            name,
            place,
            confidence: Confidence::Computed,
        }
    }

    /// What the user gave.
    pub const GIVEN: Self = Self {
        name: "the scenario",
        place: "",
        confidence: Confidence::Given,
    };
}

impl Basis {
    /// Starts from the formulas alone.
    pub fn of(formulas: &[Formula]) -> Self {
        Self {
            formulas: formulas.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a constant that has a default: it is the default's source where the user left it, and
    /// the user's own where he changed it.
    pub fn assume_or(
        &mut self,
        what: &str,
        (value, default): (f64, f64),
        unit: &'static str,
        source: Source,
    ) {
        let same = (value - default).abs() <= 1e-12 * default.abs();
        self.assume(what, value, unit, if same { source } else { Source::GIVEN });
    }

    /// Adds a constant.
    pub fn assume(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        source: Source,
    ) {
        self.assumptions.push(Assumption {
            what: what.into(),
            value,
            unit,
            source,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_basis_keeps_what_was_said_in_order() {
        let young = Formula {
            gives: "interval",
            text: "√(2μC)",
            source: Source::quoted("Young 1974", "equation 1"),
        };
        let mut basis = Basis::of(&[young]);
        basis.assume("checkpoint time", 45.0, "s", Source::GIVEN);
        assert_eq!(basis.formulas, [young]);
        assert_eq!(basis.assumptions[0].source.confidence, Confidence::Given);
        assert!(basis.corrections.is_empty());
    }
}
