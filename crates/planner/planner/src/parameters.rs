//! Numbers of parameters, as people write them: `70e9`, `70B`, `1.2T`.

use std::fmt;

use serde::{
    Deserializer,
    de::{self, Visitor},
};

/// Reads a number, or a text with one of the suffixes K, M, B and T.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(Parameters)
}

/// The number that `text` means; `None` if it is none.
fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "K" => 1e3,
        "M" => 1e6,
        "B" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    Some(digits.trim().parse::<f64>().ok()? * factor)
}

struct Parameters;

impl Visitor<'_> for Parameters {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of parameters such as 70e9 or 70B")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seventy_billion_is_written_in_two_ways() {
        assert_eq!(parse("70B"), Some(70e9));
        assert_eq!(parse("1.2t"), Some(1.2e12));
        assert_eq!(parse("70"), None);
        assert_eq!(parse("70X"), None);
    }
}
