//! Flags whose value is one of a few words, or a whole number.

use std::ops::RangeInclusive;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use straightway_core::Count;

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

/// A parser of a whole number in a range.
pub(crate) fn whole<N>(allowed: RangeInclusive<N>) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: Copy + PartialOrd + Send + Sync + TryFrom<u64> + TryInto<u64> + 'static,
{
    // Beyond this, a limit is that of the type and says nothing to a user.
    const SPOKEN_MAX: u64 = 1 << 31;
    let number = |end: &N| (*end).try_into().unwrap_or(u64::MAX);
    let (least, most) = (number(allowed.start()), number(allowed.end()));
    let range = match (least, most) {
        (0, most) if most >= SPOKEN_MAX => String::new(),
        (least, most) if most >= SPOKEN_MAX => format!(", at least {least}"),
        (least, most) => format!(" from {least} to {most}"),
    };
    move |text| {
        let count = text.parse::<Count>().ok().and_then(|count| N::try_from(count.0).ok());
        count
            .filter(|count| allowed.contains(count))
            .ok_or_else(|| format!("it must be a whole number{range}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_its_range_is_refused_with_the_range() {
        let depth = whole(1..=4096_u32);
        assert_eq!((depth("16"), depth("1k")), (Ok(16), Ok(1000)));
        for text in ["0", "4097", "many", "1.5", "-1"] {
            assert_eq!(depth(text).unwrap_err(), "it must be a whole number from 1 to 4096");
        }
        assert_eq!(
            whole(1..=u32::MAX)("0").unwrap_err(),
            "it must be a whole number, at least 1"
        );
        assert_eq!(whole(0..=u64::MAX)("x").unwrap_err(), "it must be a whole number");
        assert!(whole(0..=255_u8)("300").is_err());
    }
}
