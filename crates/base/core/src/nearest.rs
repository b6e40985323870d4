//! "Did you mean …?": the known name that is nearest to one that was typed.
//!
//! A name is near if few of its letters were mistyped: one of up to five, two of up to eight, a quarter of more. Case
//! does not matter. A wrong suggestion is worse than none, so names that are merely similar do not count.

use strsim::damerau_levenshtein;

/// The nearest of the known names, if one is near.
pub fn nearest<T: AsRef<str>>(typed: &str, known: impl IntoIterator<Item = T>) -> Option<T> {
    let with_distance = known.into_iter().filter_map(|name| {
        let distance = distance(typed, name.as_ref())?;
        Some((distance, name))
    });
    let found = with_distance.min_by_key(|(distance, _)| *distance);
    found.map(|(_, name)| name)
}

/// Whether a typed name is probably a mistyped `known`.
pub fn is_near(typed: &str, known: &str) -> bool {
    distance(typed, known).is_some()
}

/// The number of mistyped letters; `None` if there are too many.
fn distance(typed: &str, known: &str) -> Option<usize> {
    let (typed, known) = (typed.to_lowercase(), known.to_lowercase());
    let letters = typed.chars().count().min(known.chars().count());
    let most = match letters {
        0..=1 => 0,
        2..=5 => 1,
        6..=8 => 2,
        more => more / 4,
    };
    // Names of very different lengths are not compared letter by letter.
    if typed.chars().count().abs_diff(known.chars().count()) > most {
        return None;
    }
    let distance = damerau_levenshtein(&typed, &known);
    (distance <= most).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_found() {
        let known = ["model", "models", "checkpoint", "runs"];
        for (typed, meant) in [
            ("modle", "model"),
            ("Model", "model"),
            ("chekcpoint", "checkpoint"),
            ("run", "runs"),
        ] {
            assert_eq!(nearest(typed, known), Some(meant), "{typed}");
        }
    }

    #[test]
    fn other_names_are_not_suggested() {
        for (typed, known) in [
            ("force", "trace"),
            ("overwrite", "verify"),
            ("overwrite", "writable"),
            ("a", "b"),
            ("", "x"),
            ("data", "model"),
            ("gs", "s3"),
        ] {
            assert!(!is_near(typed, known), "{typed} {known}");
        }
    }
}
