//! Flags whose value is one of a few words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A word, its meaning, and its help.
pub(crate) type Word<T> = (&'static str, T, &'static str);

/// A parser of one of these words.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(words: &'static [Word<T>]) -> impl TypedValueParser<Value = T> {
    let possible = words
        .iter()
        .map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(possible).map(|given| {
        let found = words.iter().find(|(word, ..)| *word == given);
        found.expect("clap accepts these words only").1
    })
}
