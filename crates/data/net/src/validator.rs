//! Identifies the version of an object.

use std::time::Duration;

use crate::response::HttpResponse;

/// A `Last-Modified` that is older than its response by this much identifies a version: a later one has another date. A
/// second would suffice if both came from the same clock (RFC 9110, section 8.8.2.2).
const STRONG_AGE: Duration = Duration::from_mins(1);

/// The identifier of a version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validator {
    /// An `ETag`, with its quotes. A weak one (`W/"…"`) is compared with that of each response, but not sent.
    Tag(String),
    /// A `Last-Modified`, if there is no `ETag`.
    Modified(String),
    /// A `Last-Modified` that a later version may share: it is not older than the response's `Date`, or there is no
    /// such date. It is compared like a weak `ETag`.
    Recent(String),
}

impl Validator {
    /// The version that a response states, if any.
    pub fn of(response: &HttpResponse<'_>) -> Option<Self> {
        if let Some(tag) = response.text("etag").filter(|tag| !tag.is_empty()) {
            return Some(Self::Tag(tag.to_owned()));
        }
        let text = response.text("last-modified").filter(|t| !t.is_empty())?;
        let dates = response.date("last-modified").zip(response.date("date"));
        let is_old = dates.is_some_and(|(modified, date)| date >= modified + STRONG_AGE);
        let validator = if is_old { Self::Modified } else { Self::Recent };
        Some(validator(text.to_owned()))
    }

    /// Its text, without its kind.
    pub fn text(&self) -> &str {
        match self {
            Self::Tag(text) | Self::Modified(text) | Self::Recent(text) => text,
        }
    }

    /// Whether the server refuses to send another version. Dates have a resolution of a second, and many servers
    /// ignore conditions on them.
    pub(crate) fn pins_reads(&self) -> bool {
        matches!(self, Self::Tag(_)) && self.condition().is_some()
    }

    /// The header that makes a request conditional on this version, if there is one. A weak tag never satisfies
    /// `If-Match`.
    fn condition(&self) -> Option<&'static str> {
        match self {
            Self::Tag(tag) => (!tag.starts_with("W/")).then_some("If-Match"),
            Self::Modified(_) => Some("If-Unmodified-Since"),
            Self::Recent(_) => None,
        }
    }

    /// Appends the condition of a request.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Some(name) = self.condition() {
            for part in [name, ": ", self.text(), "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
    }

    /// The reason why a response may be of another version, if it may. A server that has sent an `ETag` must send it with
    /// each range (RFC 9110, section 15.3.7), so a response without one may come from another server. A response without
    /// a date has passed the request's condition on it; without a condition it is refused.
    pub(crate) fn doubt(&self, response: &HttpResponse<'_>) -> Option<&'static str> {
        let name = match self {
            Self::Tag(_) => "etag",
            Self::Modified(_) | Self::Recent(_) => "last-modified",
        };
        let mut others = response.all(name).filter(|stated| *stated != self.text().as_bytes());
        // A response may state two versions.
        match others.next().or(response.header(name)) {
            Some(stated) if stated == self.text().as_bytes() => None,
            Some(_) => Some("it was replaced while it was read"),
            None if matches!(self, Self::Modified(_)) => None,
            None => Some("the server does not say which version it sends"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODIFIED: (&str, &str) = ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");

    /// Calls `take` with a response that has these headers.
    fn with<T>(headers: &[(&str, &str)], take: impl FnOnce(&HttpResponse<'_>) -> T) -> T {
        let headers: Vec<_> = headers
            .iter()
            .map(|&(name, value)| httparse::Header {
                name,
                value: value.as_bytes(),
            })
            .collect();
        take(&HttpResponse::new(206, &headers, b""))
    }

    fn sent(validator: &Validator) -> String {
        let mut out = Vec::new();
        validator.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_a_strong_tag_pins_reads_and_a_recent_date_is_not_sent() {
        let tag = ("ETag", "\"1\"");
        let weak = ("ETag", "W/\"1\"");
        let old = ("Date", "Sun, 06 Nov 1994 08:50:37 GMT");
        let recent = ("Date", "Sun, 06 Nov 1994 08:50:36 GMT");
        for (headers, pins, condition) in [
            (&[tag, MODIFIED][..], true, "If-Match"),
            (&[weak, MODIFIED, old][..], false, ""),
            (&[MODIFIED, old][..], false, "If-Unmodified-Since"),
            (&[MODIFIED, recent][..], false, ""),
            (&[MODIFIED][..], false, ""),
        ] {
            let validator = with(headers, Validator::of).unwrap();
            assert_eq!(validator.pins_reads(), pins, "{headers:?}");
            let sent = sent(&validator);
            assert!(sent.starts_with(condition), "{headers:?}: {sent}");
            assert_eq!(sent.is_empty(), condition.is_empty(), "{headers:?}: {sent}");
        }
        assert_eq!(with(&[("ETag", "")], Validator::of), None);
    }

    #[test]
    fn a_response_without_a_version_is_refused_unless_it_passed_a_condition_on_a_date() {
        let date = MODIFIED.1.to_owned();
        let other = ("Last-Modified", "Sun, 06 Nov 1994 08:49:38 GMT");
        for (validator, passes) in [
            (Validator::Tag("\"1\"".to_owned()), false),
            (Validator::Tag("W/\"1\"".to_owned()), false),
            (Validator::Modified(date.clone()), true),
            (Validator::Recent(date), false),
        ] {
            let silent = with(&[], |response| validator.doubt(response));
            assert_eq!(silent.is_none(), passes, "{validator:?}");
            let changed = [("ETag", "\"2\""), other];
            let changed = with(&changed, |response| validator.doubt(response));
            assert!(changed.is_some_and(|why| why.contains("replaced")));
            let both = [
                ("ETag", validator.text()),
                ("ETag", "\"2\""),
                ("Last-Modified", validator.text()),
                other,
            ];
            let both = with(&both, |response| validator.doubt(response));
            assert!(both.is_some_and(|why| why.contains("replaced")), "two versions");
            let same = [("ETag", validator.text()), ("Last-Modified", validator.text())];
            assert_eq!(with(&same, |response| validator.doubt(response)), None);
        }
    }
}
