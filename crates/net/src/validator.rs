//! Which version of an object a server has.

use crate::answer::Answer;

/// What tells versions of an object apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validator {
    /// An `ETag`, with its quotes. A weak one (`W/"…"`) is compared with that of each answer, but not sent.
    Tag(String),
    /// A `Last-Modified`, where there is no `ETag`.
    Modified(String),
}

impl Validator {
    /// What an answer says of the version.
    pub fn of(answer: &Answer<'_>) -> Option<Self> {
        let tag = answer.text("etag").filter(|tag| !tag.is_empty());
        let modified = answer.text("last-modified");
        let tag = tag.map(|tag| Self::Tag(tag.to_owned()));
        tag.or_else(|| modified.map(|time| Self::Modified(time.to_owned())))
    }

    /// What it is, whatever kind.
    pub fn text(&self) -> &str {
        match self {
            Self::Tag(text) | Self::Modified(text) => text,
        }
    }

    /// Whether it may be the same for versions that differ.
    pub(crate) fn is_weak(&self) -> bool {
        matches!(self, Self::Tag(tag) if tag.starts_with("W/"))
    }

    /// The condition that a request has.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (name, value) = match self {
            // It never matches `If-Match`.
            Self::Tag(_) if self.is_weak() => return,
            Self::Tag(tag) => ("If-Match", tag),
            Self::Modified(time) => ("If-Unmodified-Since", time),
        };
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }

    /// Whether an answer is of another version. One that does not say was conditional on this one.
    pub(crate) fn contradicts(&self, answer: &Answer<'_>) -> bool {
        let (own, told) = match self {
            Self::Tag(tag) => (tag, answer.header("etag")),
            Self::Modified(time) => (time, answer.header("last-modified")),
        };
        told.is_some_and(|told| told != own.as_bytes())
    }
}
