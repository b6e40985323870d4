//! The error for a TOML value that does not fit a type.
//!
//! serde reports an error by a constructor of [`de::Error`], with its parts as arguments. [`Misfit`] keeps these parts.
//! A refusal therefore does not depend on the wording of serde or of the TOML parser. Each list and table that the error
//! leaves adds its step to the path.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::place::PathStep;

/// A value that does not fit its type.
#[derive(Debug)]
pub(super) struct Misfit {
    /// The reason.
    pub(super) reason: Reason,
    /// The keys and indices that lead to it, the innermost first.
    path: Vec<OwnedStep>,
}

/// A step of the path of a misfit.
#[derive(Debug)]
enum OwnedStep {
    Key(String),
    Index(usize),
}

/// The reason why a value does not fit.
#[derive(Debug)]
pub(super) enum Reason {
    /// The type or the range is wrong. The text is the type's description of its values.
    Value(String),
    /// A list that stands for a table has the wrong length. The text is the description of the table.
    Length(String),
    /// A type refused the value with this text.
    Custom(String),
    /// A key is missing.
    Missing(&'static str),
    /// A key is unknown; these are known.
    UnknownKey(&'static [&'static str]),
    /// The variant of an enum is unknown.
    UnknownKind {
        /// The variant as given.
        kind: String,
        /// The known variants.
        known: &'static [&'static str],
    },
    /// A table has this many variants of an enum instead of one.
    Kinds(usize),
}

impl Misfit {
    /// A value of the wrong type.
    pub(super) fn value(allowed: impl Into<String>) -> Self {
        Reason::Value(allowed.into()).into()
    }

    /// Replaces the type's own description of its values.
    pub(super) fn described(mut self, allowed: &str) -> Self {
        if matches!(self.reason, Reason::Value(_) | Reason::Length(_)) {
            self.reason = Reason::Value(allowed.to_owned());
        }
        self
    }

    /// The same below a key of a table.
    pub(super) fn below_key(mut self, key: &str) -> Self {
        self.path.push(OwnedStep::Key(key.to_owned()));
        self
    }

    /// The same in an element of a list.
    pub(super) fn in_element(mut self, index: usize) -> Self {
        self.path.push(OwnedStep::Index(index));
        self
    }

    /// The path of the value, from the root.
    pub(super) fn path(&self) -> Vec<PathStep<'_>> {
        let steps = self.path.iter().rev().map(|step| match step {
            OwnedStep::Key(key) => PathStep::Key(key),
            OwnedStep::Index(index) => PathStep::Index(*index),
        });
        steps.collect()
    }

    /// The allowed values.
    pub(super) fn allowed(&self) -> String {
        match &self.reason {
            Reason::Value(text) | Reason::Length(text) | Reason::Custom(text) => text.clone(),
            Reason::Missing(_) => "a value".to_owned(),
            Reason::UnknownKey([]) => "no key: this table has none".to_owned(),
            Reason::UnknownKey(known) | Reason::UnknownKind { known, .. } => one_of(known),
            Reason::Kinds(_) => "exactly one kind".to_owned(),
        }
    }
}

impl From<Reason> for Misfit {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            path: Vec::new(),
        }
    }
}

/// A choice of names: `a`, `a` or `b`, one of `a`, `b`, `c`.
pub(super) fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [first, second] => format!("{first} or {second}"),
        [] | [_] => quoted.concat(),
        _ => format!("one of {}", quoted.join(", ")),
    }
}

impl de::Error for Misfit {
    /// The alternate form of a quantity's error is the expected form alone. The refusal shows the value itself.
    fn custom<T: fmt::Display>(text: T) -> Self {
        Reason::Custom(format!("{text:#}")).into()
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(expected.to_string())
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Reason::Length(expected.to_string()).into()
    }

    fn unknown_variant(kind: &str, known: &'static [&'static str]) -> Self {
        let kind = kind.to_owned();
        Reason::UnknownKind { kind, known }.into()
    }

    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Reason::UnknownKey(known).into()
    }

    fn missing_field(key: &'static str) -> Self {
        Reason::Missing(key).into()
    }

    fn duplicate_field(key: &'static str) -> Self {
        Reason::Custom(format!("one `{key}`")).into()
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allowed is {}", self.allowed())
    }
}

impl std::error::Error for Misfit {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_worded_by_its_length() {
        assert_eq!(one_of(&["a"]), "`a`");
        assert_eq!(one_of(&["a", "b"]), "`a` or `b`");
        assert_eq!(one_of(&["a", "b", "c"]), "one of `a`, `b`, `c`");
    }

    #[test]
    fn a_quantity_gives_its_expected_form_alone() {
        let error = "5 furlongs".parse::<straightway_core::Rate>().unwrap_err();
        let misfit: Misfit = de::Error::custom(error);
        assert_eq!(misfit.allowed(), "a rate such as 3.2GB/s, 400Gb/s or 2GiB/s");
    }
}
