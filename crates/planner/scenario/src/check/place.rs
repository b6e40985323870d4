//! Maps between dotted paths and positions in a TOML text.

use std::ops::Range;

use toml::de::DeValue;

/// The line of the byte at `offset`, counted from one.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    text.as_bytes()[..end].split(|b| *b == b'\n').count()
}

/// The position of a value in the text.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The steps of the path that lead to it.
    pub(super) depth: usize,
    /// The bytes of its key; those of the value itself for an element of a list.
    pub(super) key: Range<usize>,
    /// The bytes of the value; those of the header for a table with one.
    pub(super) span: Range<usize>,
}

/// The place of the value at a path, or of the innermost enclosing value that exists.
pub(super) fn find<'p>(tree: &DeValue<'_>, path: impl IntoIterator<Item = PathStep<'p>>) -> Place {
    let mut place = Place::default();
    let mut at = tree;
    for step in path {
        let next = match (step, at) {
            (PathStep::Key(key), DeValue::Table(table)) => {
                table.get_key_value(key).map(|(key, value)| (key.span(), value))
            }
            (PathStep::Index(i), DeValue::Array(items)) => items.get(i).map(|item| (item.span(), item)),
            _ => None,
        };
        let Some((key, value)) = next else { break };
        place = Place {
            depth: place.depth + 1,
            key,
            span: value.span(),
        };
        at = value.get_ref();
    }
    place
}

/// A step of a dotted path: a key or a list index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep<'a> {
    /// The key of a table.
    Key(&'a str),
    /// The index in a list, counted from zero.
    Index(usize),
}

/// Splits a path: `links[3].rate` gives `links`, 3 and `rate`.
pub fn steps(path: &str) -> impl Iterator<Item = PathStep<'_>> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| {
        match part.strip_suffix(']').and_then(|n| n.parse().ok()) {
            Some(i) => PathStep::Index(i),
            None => PathStep::Key(part),
        }
    })
}

/// The dotted path of these steps.
pub(super) fn dotted(path: &[PathStep<'_>]) -> String {
    path.iter().fold(String::new(), |path, step| match step {
        PathStep::Key(key) => super::join(&path, key),
        PathStep::Index(i) => format!("{path}[{i}]"),
    })
}
