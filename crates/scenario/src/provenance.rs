//! Where an answer comes from: its formulas, its constants, and what published figure it contradicts.
//!
//! A planner that only prints a number asks to be believed. Every answer here carries a [`Basis`]
//! instead: the formulas it was computed by, the constants that went in, and, where an article's figure
//! does not follow from the article's own numbers, a [`Correction`] that sets both side by side.
//!
//! A constant says three things of itself. Its [`Source`] says where the value is from and how far that was
//! checked. Its [`Origin`] says who chose it: the planner's default, the scenario's file, or the user. Its
//! [`Band`] says how far published values differ, so that the answer can be given a range.

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
    /// Chosen for the planner: plausible, and without a source.
    Assumed,
    /// Taken from the published figure that it then reproduces: it confirms nothing.
    Fitted,
}

/// Who chose a constant's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The planner: nobody touched it.
    #[default]
    Default,
    /// The scenario's file.
    Scenario,
    /// The user, by `--set` or `--sweep`.
    User,
    /// Nobody: it follows from others.
    Derived,
}

/// How far published values of a constant differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// Where the ends are from.
    pub source: Source,
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
    /// The parameter's path below its topic; absent for what follows from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Who chose the value.
    pub origin: Origin,
    /// How far published values differ; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
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
    /// Whether an input was fitted to the figure, so that it follows by construction.
    pub fitted: bool,
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

    /// A figure that was taken from the claim it then reproduces.
    pub const fn fitted(name: &'static str, place: &'static str) -> Self {
        Self {
            name,
            place,
            confidence: Confidence::Fitted,
        }
    }

    /// A plausible default without a source.
    pub const ASSUMED: Self = Self {
        name: "the planner's choice",
        place: "no source",
        confidence: Confidence::Assumed,
    };

    /// What the scenario's file gives.
    pub const SCENARIO: Self = Self {
        name: "the scenario",
        place: "",
        confidence: Confidence::Given,
    };

    /// What the user gave.
    pub const USER: Self = Self {
        name: "the user",
        place: "--set or --sweep",
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

    /// Adds a parameter by its path; `source` is where its default is from.
    pub fn parameter(
        &mut self,
        path: impl Into<String>,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        source: Source,
    ) -> &mut Assumption {
        self.push(
            Some(path.into()),
            Origin::Default,
            what.into(),
            (value, unit),
            source,
        )
    }

    /// Adds a constant that is no parameter: it follows from others, or is the model's own.
    pub fn assume(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        source: Source,
    ) -> &mut Assumption {
        self.push(None, Origin::Derived, what.into(), (value, unit), source)
    }

    fn push(
        &mut self,
        path: Option<String>,
        origin: Origin,
        what: String,
        (value, unit): (f64, &'static str),
        source: Source,
    ) -> &mut Assumption {
        self.assumptions.push(Assumption {
            what,
            value,
            unit,
            source,
            path,
            origin,
            band: None,
        });
        self.assumptions.last_mut().expect("it was just pushed")
    }

    /// Says of every parameter who chose it. What is not the default's has the scenario or the user as its
    /// source, and no band: whoever gave it knows it.
    pub fn attribute(&mut self, origin_of: impl Fn(&str) -> Origin) {
        for assumption in &mut self.assumptions {
            let Some(path) = &assumption.path else {
                continue;
            };
            assumption.origin = origin_of(path);
            match assumption.origin {
                Origin::Scenario => assumption.source = Source::SCENARIO,
                Origin::User => assumption.source = Source::USER,
                Origin::Default | Origin::Derived => continue,
            }
            assumption.band = None;
        }
    }
}

impl Assumption {
    /// Says how far published values differ.
    pub fn between(&mut self, low: f64, high: f64, source: Source) {
        assert!(low <= high, "a band from {low} to {high} is upside down");
        self.band = Some(Band { low, high, source });
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
        basis.assume("checkpoint time", 45.0, "s", Source::ASSUMED);
        assert_eq!(basis.formulas, [young]);
        assert_eq!(basis.assumptions[0].origin, Origin::Derived);
        assert!(basis.corrections.is_empty());
    }

    #[test]
    fn who_chose_a_value_is_told_apart() {
        let mut basis = Basis::default();
        let llama = Source::quoted("Llama 3", "table 5");
        for path in ["a", "b", "c"] {
            basis
                .parameter(path, path, 1.0, "s", llama)
                .between(0.5, 2.0, llama);
        }
        basis.attribute(|path| match path {
            "a" => Origin::User,
            "b" => Origin::Scenario,
            _ => Origin::Default,
        });
        let [a, b, c] = &basis.assumptions[..] else {
            panic!("three were added")
        };
        assert_eq!(
            (a.origin, a.source, a.band),
            (Origin::User, Source::USER, None)
        );
        assert_eq!((b.origin, b.source), (Origin::Scenario, Source::SCENARIO));
        assert_eq!((c.origin, c.source), (Origin::Default, llama));
        assert!(c.band.is_some());
    }
}
