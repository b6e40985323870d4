//! Maps between dotted paths and positions in a TOML text.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The line of the byte at `offset`, counted from one.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    text.as_bytes()[..end].split(|b| *b == b'\n').count()
}

/// The offset of the value at a dotted path, or of the innermost enclosing table that exists.
pub(super) fn offset_of(tree: &DeTable<'_>, field: &str) -> usize {
    let mut offset = 0;
    let mut at: Option<&DeValue<'_>> = None;
    for step in steps(field) {
        let next = match (&step, at) {
            (PathStep::Key(key), None) => tree.get(*key),
            (PathStep::Key(key), Some(value)) => value.get(*key),
            (PathStep::Index(i), Some(value)) => value.get(*i),
            (PathStep::Index(_), None) => None,
        };
        let Some(next) = next else { break };
        offset = next.span().start;
        at = Some(next.get_ref());
    }
    offset
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
    path.split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(
            |part| match part.strip_suffix(']').and_then(|n| n.parse().ok()) {
                Some(i) => PathStep::Index(i),
                None => PathStep::Key(part),
            },
        )
}

/// The dotted path of the entry whose key is at `span`.
pub(super) fn path_of_key(tree: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    tree.iter().find_map(|(key, value)| {
        if key.span() == *span {
            return Some(key.get_ref().to_string());
        }
        let rest = in_lists(value, &|value| match value.get_ref() {
            DeValue::Table(table) => path_of_key(table, span),
            _ => None,
        })?;
        Some(under(key.get_ref(), &rest))
    })
}

/// The dotted path of the table at `span`; `None` if that is the whole text.
pub(super) fn path_of_table(tree: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    tree.iter().find_map(|(key, value)| {
        let rest = in_lists(value, &|value| match value.get_ref() {
            DeValue::Table(table) => {
                path_of_table(table, span).or_else(|| (value.span() == *span).then(String::new))
            }
            _ => None,
        })?;
        Some(under(key.get_ref(), &rest))
    })
}

/// Applies `find` to `value`, or to the elements of a list until one gives a result.
fn in_lists(
    value: &Spanned<DeValue<'_>>,
    find: &dyn Fn(&Spanned<DeValue<'_>>) -> Option<String>,
) -> Option<String> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().enumerate().find_map(|(i, item)| {
            let rest = in_lists(item, find)?;
            Some(under(&format!("[{i}]"), &rest))
        }),
        _ => find(value),
    }
}

/// The path `rest` below `key`.
fn under(key: &str, rest: &str) -> String {
    if rest.starts_with('[') {
        format!("{key}{rest}")
    } else {
        super::join(key, rest)
    }
}

/// The dotted path of the deepest field whose key or value covers `start..end`.
pub(super) fn path_at(tree: &DeTable<'_>, start: usize, end: usize) -> String {
    for (key, value) in tree {
        let span = value.span();
        let on_key = key.span().start <= start && end <= key.span().end;
        // The span of a table is its header. Its entries may be far below.
        let below = path_below(value.get_ref(), start, end);
        if on_key || below.is_some() || (span.start <= start && end <= span.end) {
            return under(key.get_ref(), &below.unwrap_or_default());
        }
    }
    String::new()
}

/// As [`path_at`], below one value.
fn path_below(value: &DeValue<'_>, start: usize, end: usize) -> Option<String> {
    match value {
        DeValue::Table(table) => Some(path_at(table, start, end)).filter(|path| !path.is_empty()),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(i, item)| {
            let span = item.span();
            let below = path_below(item.get_ref(), start, end);
            let here = span.start <= start && end <= span.end;
            (here || below.is_some()).then(|| match below.unwrap_or_default() {
                rest if rest.is_empty() || rest.starts_with('[') => format!("[{i}]{rest}"),
                rest => format!("[{i}].{rest}"),
            })
        }),
        _ => None,
    }
}
