//! Where a field stands in a text, and which field stands at a place.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The line, counted from one, that holds the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let end = offset.min(text.len());
    text.as_bytes()[..end].split(|b| *b == b'\n').count()
}

/// Where the value of a dotted path starts, or that of the last table on the way to it.
pub(super) fn offset_of(tree: &DeTable<'_>, field: &str) -> usize {
    let mut offset = 0;
    let mut at: Option<&DeValue<'_>> = None;
    for step in steps(field) {
        let next = match (&step, at) {
            (Step::Key(key), None) => tree.get(*key),
            (Step::Key(key), Some(value)) => value.get(*key),
            (Step::Index(i), Some(value)) => value.get(*i),
            (Step::Index(_), None) => None,
        };
        let Some(next) = next else { break };
        offset = next.span().start;
        at = Some(next.get_ref());
    }
    offset
}

/// A step of a dotted path: a key, or the place in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The key of a table.
    Key(&'a str),
    /// The place in a list, counted from zero.
    Index(usize),
}

/// Takes `links[3].rate` apart into `links`, 3 and `rate`.
pub fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '['])
        .filter(|part| !part.is_empty())
        .map(
            |part| match part.strip_suffix(']').and_then(|n| n.parse().ok()) {
                Some(i) => Step::Index(i),
                None => Step::Key(part),
            },
        )
}

/// The dotted path of the entry whose key stands at `span`.
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

/// The dotted path of the table that is written at `span`; none where that is all the text.
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

/// What `find` finds at `value` or, where that is a list, at one of its places.
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
        // A table's own span is its header; what it holds may lie far below.
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
