//! The error for a TOML value that does not fit a type.
//!
//! serde reports an error by a constructor of [`de::Error`], with its parts as arguments. [`Misfit`] keeps these parts.
//! A refusal therefore does not depend on the wording of serde or of the TOML parser.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

/// The reason why a value does not fit.
#[derive(Debug)]
pub(super) enum Misfit {
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
        Self::Value(allowed.into())
    }

    /// Replaces the type's own description of its values.
    pub(super) fn described(self, allowed: &str) -> Self {
        match self {
            Self::Value(_) | Self::Length(_) => Self::value(allowed),
            other => other,
        }
    }

    /// The allowed values.
    pub(super) fn allowed(&self) -> String {
        match self {
            Self::Value(text) | Self::Length(text) | Self::Custom(text) => text.clone(),
            Self::Missing(_) => "a value".to_owned(),
            Self::UnknownKey([]) => "no key: this table has none".to_owned(),
            Self::UnknownKey(known) | Self::UnknownKind { known, .. } => one_of(known),
            Self::Kinds(_) => "exactly one kind".to_owned(),
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
        Self::Custom(format!("{text:#}"))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::value(expected.to_string())
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::Length(expected.to_string())
    }

    fn unknown_variant(kind: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownKind {
            kind: kind.to_owned(),
            known,
        }
    }

    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownKey(known)
    }

    fn missing_field(key: &'static str) -> Self {
        Self::Missing(key)
    }

    fn duplicate_field(key: &'static str) -> Self {
        Self::Custom(format!("one `{key}`"))
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
