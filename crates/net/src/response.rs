//! The head of an answer, and the headers that reads depend on.

use std::{ops::Range, time::Duration};

/// An answer's head, and where it has no payload, the front of its body.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status.
    pub status: u16,
    pub(crate) headers: &'a [httparse::Header<'a>],
    /// The body of an error, cut to a few KiB; empty where a payload follows.
    pub body: &'a [u8],
}

/// What a `Content-Range` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The range that follows; `None` where the range that was asked for is not there (status 416).
    pub range: Option<Range<u64>>,
    /// The length of the object; `None` where the server does not say.
    pub total: Option<u64>,
}

/// The longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

impl<'a> Answer<'a> {
    /// An answer with these headers.
    pub fn new(status: u16, headers: &'a [httparse::Header<'a>], body: &'a [u8]) -> Self {
        Self {
            status,
            headers,
            body,
        }
    }

    /// The first header of this name, without blanks around its value.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The same as text; `None` where it is not ASCII.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        let value = self.header(name)?;
        str::from_utf8(value).ok().filter(|text| text.is_ascii())
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self
            .headers
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| header.value.trim_ascii())
    }

    /// The length of the body. `Err` where it is no number, or given twice and not the same.
    pub fn content_length(&self) -> Result<Option<u64>, BadHeader> {
        let mut lengths = self.all("content-length").map(decimal);
        let Some(first) = lengths.next() else {
            return Ok(None);
        };
        if first.is_none() || lengths.any(|other| other != first) {
            return Err(BadHeader("Content-Length"));
        }
        Ok(first)
    }

    /// Which part of the object follows. `Err` where it cannot be read, or is given twice.
    pub fn content_range(&self) -> Result<Option<ContentRange>, BadHeader> {
        let mut ranges = self.all("content-range");
        let Some(first) = ranges.next() else {
            return Ok(None);
        };
        let read = (ranges.next().is_none()).then(|| content_range(first));
        read.flatten().map(Some).ok_or(BadHeader("Content-Range"))
    }

    /// Whether the body is sent as it is, with a length, and not in chunks or compressed.
    pub fn is_plain(&self) -> bool {
        let identity = |value: &[u8]| value.eq_ignore_ascii_case(b"identity");
        self.all("transfer-encoding").all(identity) && self.all("content-encoding").all(identity)
    }

    /// Whether the server closes the connection after this answer.
    pub fn closes(&self) -> bool {
        let says = |word: &[u8]| {
            self.all("connection")
                .flat_map(|value| value.split(|byte| *byte == b','))
                .any(|value| value.trim_ascii().eq_ignore_ascii_case(word))
        };
        says(b"close")
    }

    /// How long to wait before the next request, where the server says so in seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = decimal(self.header("retry-after")?)?;
        Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
    }
}

/// A header that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader(pub &'static str);

/// Digits alone: no sign, no blanks, no overflow.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Reads `bytes A-B/TOTAL`, `bytes A-B/*` and `bytes */TOTAL`.
fn content_range(text: &[u8]) -> Option<ContentRange> {
    let (unit, rest) = text.split_at_checked(b"bytes ".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let slash = rest.iter().position(|byte| *byte == b'/')?;
    let (range, total) = (&rest[..slash], &rest[slash + 1..]);
    let total = match total {
        b"*" => None,
        total => Some(decimal(total)?),
    };
    if range == b"*" {
        return total.map(|total| ContentRange {
            range: None,
            total: Some(total),
        });
    }
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (decimal(&range[..dash])?, decimal(&range[dash + 1..])?);
    let end = last.checked_add(1)?;
    if first > last || total.is_some_and(|total| end > total) {
        return None;
    }
    Some(ContentRange {
        range: Some(first..end),
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(name: &'a str, value: &'a str) -> httparse::Header<'a> {
        httparse::Header {
            name,
            value: value.as_bytes(),
        }
    }

    #[test]
    fn a_content_range_is_read_exactly_or_not_at_all() {
        let read = |text: &str| content_range(text.as_bytes());
        let range = |range: Range<u64>, total| {
            Some(ContentRange {
                range: Some(range),
                total,
            })
        };
        assert_eq!(read("bytes 0-7/8"), range(0..8, Some(8)));
        assert_eq!(read("Bytes 5-5/*"), range(5..6, None));
        let none = ContentRange {
            range: None,
            total: Some(0),
        };
        assert_eq!(read("bytes */0"), Some(none));
        for bad in [
            "",
            "bytes",
            "bytes */*",
            "bytes 0-8/8",
            "bytes 7-0/8",
            "bytes +0-7/8",
            "bytes 0-7",
            "bytes -7/8",
            "bytes 0-/8",
            "items 0-7/8",
            "bytes 0-18446744073709551615/*",
            "bytes 0-7/8, bytes 8-9/10",
            "bytes 0 -7/8",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let told = |values: &[&'static str]| {
            let headers: Vec<_> = values.iter().map(|v| header("Content-Length", v)).collect();
            Answer::new(206, &headers, b"").content_length()
        };
        assert_eq!(told(&[]), Ok(None));
        assert_eq!(told(&["7"]), Ok(Some(7)));
        assert_eq!(told(&["7", " 7"]), Ok(Some(7)));
        for bad in [
            &["7", "8"][..],
            &["-7"],
            &["7, 7"],
            &[""],
            &["0x7"],
            &["99999999999999999999"],
        ] {
            assert!(told(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_answer_says_whether_its_body_is_plain_and_its_connection_stays() {
        let headers = [
            header("Connection", "keep-alive, Close"),
            header("transfer-ENCODING", "chunked"),
        ];
        let answer = Answer::new(200, &headers, b"");
        assert!(answer.closes() && !answer.is_plain());
        let headers = [
            header("content-encoding", "identity"),
            header("Retry-After", "3600"),
        ];
        let answer = Answer::new(503, &headers, b"");
        assert!(!answer.closes() && answer.is_plain());
        assert_eq!(answer.retry_after(), Some(RETRY_AFTER_MAX));
    }
}
