//! Identifies the version of an object.

use crate::response::HttpResponse;

/// The identifier of a version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validator {
    /// An `ETag`, with its quotes. A weak one (`W/"…"`) is compared with that of each response, but not sent.
    Tag(String),
    /// A `Last-Modified`, if there is no `ETag`.
    Modified(String),
}

impl Validator {
    /// The version that a response states, if any.
    pub fn of(response: &HttpResponse<'_>) -> Option<Self> {
        let tag = response.text("etag").filter(|tag| !tag.is_empty());
        let modified = response.text("last-modified");
        let tag = tag.map(|tag| Self::Tag(tag.to_owned()));
        tag.or_else(|| modified.map(|time| Self::Modified(time.to_owned())))
    }

    /// Its text, without its kind.
    pub fn text(&self) -> &str {
        match self {
            Self::Tag(text) | Self::Modified(text) => text,
        }
    }

    /// Whether different versions may share it.
    pub(crate) fn is_weak(&self) -> bool {
        matches!(self, Self::Tag(tag) if tag.starts_with("W/"))
    }

    /// Appends the condition of a request.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (name, value) = match self {
            // A weak tag never satisfies `If-Match`.
            Self::Tag(_) if self.is_weak() => return,
            Self::Tag(tag) => ("If-Match", tag),
            Self::Modified(time) => ("If-Unmodified-Since", time),
        };
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }

    /// Whether a response states another version. One that states none passed the request's condition.
    pub(crate) fn contradicts(&self, response: &HttpResponse<'_>) -> bool {
        let (own, stated) = match self {
            Self::Tag(tag) => (tag, response.header("etag")),
            Self::Modified(time) => (time, response.header("last-modified")),
        };
        stated.is_some_and(|stated| stated != own.as_bytes())
    }
}
