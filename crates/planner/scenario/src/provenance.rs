//! The provenance of an answer: its formulas, its constants, and the published figures it was checked against.
//!
//! Every answer carries a [`Basis`], so that it can be verified: the formulas, the constants, and a [`Correction`] for
//! each published figure, which shows the published and the computed value.
//!
//! A constant has three attributes. Its [`Citation`] is the source of the value and how well it was checked. Its
//! [`ValueOrigin`] says who chose it: the planner's default, the scenario's file, or the user. Its [`Band`] is the
//! range of published values, from which the range of the answer is computed.

use serde::Serialize;

/// How well the source of a constant was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Read in the cited source.
    Read,
    /// Quoted from the cited paper or standard without looking it up again.
    Quoted,
    /// Computed from other sources.
    Computed,
    /// Given by the user, in a scenario or by a setting.
    Given,
    /// Measured on this machine.
    Measured,
    /// Chosen for the planner: plausible, but without a source.
    Assumed,
    /// Fitted to the published figure that it reproduces, which confirms nothing.
    Fitted,
}

/// The origin of a constant's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOrigin {
    /// The planner's default.
    #[default]
    Default,
    /// The scenario's file.
    Scenario,
    /// The user, by a setting or a sweep.
    User,
    /// Derived from other values.
    Derived,
}

/// The range of published values of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
    /// The source of the two ends.
    pub source: Citation,
}

/// The source of a formula or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Citation {
    /// The name of the paper, standard or document.
    pub name: &'static str,
    /// The place within it, or where to find it.
    pub place: &'static str,
    /// How well it was checked.
    pub confidence: Confidence,
}

/// A formula of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Formula {
    /// The quantity it computes.
    pub gives: &'static str,
    /// The formula in mathematical notation.
    pub text: &'static str,
    /// Its source.
    pub source: Citation,
}

/// A constant of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumption {
    /// Its description.
    pub what: String,
    /// Its value.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// Its source.
    pub source: Citation,
    /// The parameter's path below its topic; absent for derived values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The origin of the value.
    pub origin: ValueOrigin,
    /// The range of published values; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<Band>,
}

/// A published figure compared with the model's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Correction {
    /// The claim, in a sentence.
    pub claim: String,
    /// The figure as published.
    pub article_says: String,
    /// The figure as computed.
    pub model_says: String,
    /// Whether the published figure agrees with the model.
    pub holds: bool,
    /// Whether an input was fitted to the figure, so that it agrees by construction.
    pub fitted: bool,
    /// The reason why it agrees or does not.
    pub why: String,
}

/// The formulas, constants and corrections behind an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Basis {
    /// The formulas, in the order they are used.
    pub formulas: Vec<Formula>,
    /// The constants.
    pub assumptions: Vec<Assumption>,
    /// The published figures checked against the answer.
    pub corrections: Vec<Correction>,
}

impl Citation {
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

    /// A value computed from others.
    pub const fn computed(name: &'static str, place: &'static str) -> Self {
        Self {
            name,
            place,
            confidence: Confidence::Computed,
        }
    }

    /// A value fitted to the claim that it reproduces.
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

    /// A value from the scenario's file.
    pub const SCENARIO: Self = Self {
        name: "the scenario",
        place: "",
        confidence: Confidence::Given,
    };

    /// A value given by the user.
    pub const USER: Self = Self {
        name: "the user",
        place: "a setting or a sweep",
        confidence: Confidence::Given,
    };
}

impl Basis {
    /// A basis with formulas and nothing else.
    pub fn of(formulas: &[Formula]) -> Self {
        Self {
            formulas: formulas.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a parameter by its path; `source` is the source of its default.
    pub fn parameter(
        &mut self,
        path: impl Into<String>,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        source: Citation,
    ) -> &mut Assumption {
        self.push(
            Some(path.into()),
            ValueOrigin::Default,
            what.into(),
            (value, unit),
            source,
        )
    }

    /// Adds a constant that is not a parameter: a derived value, or one of the model's own.
    pub fn assume(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        source: Citation,
    ) -> &mut Assumption {
        self.push(None, ValueOrigin::Derived, what.into(), (value, unit), source)
    }

    fn push(
        &mut self,
        path: Option<String>,
        origin: ValueOrigin,
        what: String,
        (value, unit): (f64, &'static str),
        source: Citation,
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

    /// Sets the origin of every parameter. A value from the scenario or the user gets that as its source and loses its
    /// band, because a given value is taken as known.
    pub fn attribute(&mut self, origin_of: impl Fn(&str) -> ValueOrigin) {
        for assumption in &mut self.assumptions {
            let Some(path) = &assumption.path else {
                continue;
            };
            assumption.origin = origin_of(path);
            match assumption.origin {
                ValueOrigin::Scenario => assumption.source = Citation::SCENARIO,
                ValueOrigin::User => assumption.source = Citation::USER,
                ValueOrigin::Default | ValueOrigin::Derived => continue,
            }
            assumption.band = None;
        }
    }
}

impl Assumption {
    /// Sets the range of published values.
    pub fn between(&mut self, low: f64, high: f64, source: Citation) {
        assert!(low <= high, "a band from {low} to {high} is upside down");
        self.band = Some(Band { low, high, source });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_basis_keeps_its_formulas_and_constants() {
        let young = Formula {
            gives: "interval",
            text: "√(2μC)",
            source: Citation::quoted("Young 1974", "equation 1"),
        };
        let mut basis = Basis::of(&[young]);
        basis.assume("checkpoint time", 45.0, "s", Citation::ASSUMED);
        assert_eq!(basis.formulas, [young]);
        assert_eq!(basis.assumptions[0].origin, ValueOrigin::Derived);
        assert!(basis.corrections.is_empty());
    }

    #[test]
    fn the_origins_of_values_are_distinguished() {
        let mut basis = Basis::default();
        let llama = Citation::quoted("Llama 3", "table 5");
        for path in ["a", "b", "c"] {
            basis.parameter(path, path, 1.0, "s", llama).between(0.5, 2.0, llama);
        }
        basis.attribute(|path| match path {
            "a" => ValueOrigin::User,
            "b" => ValueOrigin::Scenario,
            _ => ValueOrigin::Default,
        });
        let [a, b, c] = &basis.assumptions[..] else {
            panic!("three were added")
        };
        assert_eq!((a.origin, a.source, a.band), (ValueOrigin::User, Citation::USER, None));
        assert_eq!((b.origin, b.source), (ValueOrigin::Scenario, Citation::SCENARIO));
        assert_eq!((c.origin, c.source), (ValueOrigin::Default, llama));
        assert!(c.band.is_some());
    }
}
