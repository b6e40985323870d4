//! The head of a response, and the headers that reads depend on.

use std::{
    ops::Range,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue};

/// A response's head, and for an error the beginning of its body.
#[derive(Clone, Copy, Debug)]
pub struct HttpResponse<'a> {
    /// The status.
    pub status: u16,
    headers: Headers<'a>,
    /// The body of an error, cut to a few KiB; empty if a payload follows.
    pub body: &'a [u8],
}

/// The headers of a response, by the part that received it.
#[derive(Clone, Copy, Debug)]
enum Headers<'a> {
    /// A lane.
    Parsed(&'a [httparse::Header<'a>]),
    /// The client.
    Map(&'a HeaderMap),
}

/// A parsed `Content-Range` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The range of the body; `None` if the requested range does not exist (status 416).
    pub range: Option<Range<u64>>,
    /// The length of the object; `None` if the server does not state it.
    pub total: Option<u64>,
}

/// The longest wait that a server may ask for. A request that is to wait longer fails.
pub const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

impl<'a> HttpResponse<'a> {
    /// A response with these headers.
    pub fn new(status: u16, headers: &'a [httparse::Header<'a>], body: &'a [u8]) -> Self {
        let headers = Headers::Parsed(headers);
        Self { status, headers, body }
    }

    /// The head of a response to the client, with the beginning of its body if that was read.
    pub(crate) fn with_body<B>(response: &'a http::Response<B>, body: &'a [u8]) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: Headers::Map(response.headers()),
            body,
        }
    }

    /// A response that [`Client::send`](crate::Client::send) returned.
    pub fn of(response: &'a http::Response<Vec<u8>>) -> Self {
        Self::with_body(response, response.body())
    }

    /// The value of the first header with this name, without surrounding blanks.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The same as text; `None` if it is not ASCII.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        let value = self.header(name)?;
        str::from_utf8(value).ok().filter(|text| text.is_ascii())
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let (parsed, map) = match self.headers {
            Headers::Parsed(parsed) => (parsed, None),
            Headers::Map(map) => (&[][..], Some(map.get_all(name))),
        };
        let parsed = parsed
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name));
        let parsed = parsed.map(|header| header.value);
        let mapped = map.into_iter().flatten().map(HeaderValue::as_bytes);
        parsed.chain(mapped).map(<[u8]>::trim_ascii)
    }

    /// The length of the body. `Err` if it is not a number, or if repeated headers differ.
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

    /// The range of the body in the object. `Err` if the header is malformed or repeated.
    pub fn content_range(&self) -> Result<Option<ContentRange>, BadHeader> {
        let mut ranges = self.all("content-range");
        let Some(first) = ranges.next() else {
            return Ok(None);
        };
        let read = (ranges.next().is_none()).then(|| content_range(first));
        read.flatten().map(Some).ok_or(BadHeader("Content-Range"))
    }

    /// Whether the body is sent without a transfer encoding: neither in chunks nor compressed on the way.
    pub fn is_plain(&self) -> bool {
        self.all("transfer-encoding").all(is_identity)
    }

    /// Whether the body is an encoded form of the resource, for example compressed.
    pub fn is_encoded(&self) -> bool {
        !self.all("content-encoding").all(is_identity)
    }

    /// Whether the server closes the connection after this response.
    pub fn closes(&self) -> bool {
        let says = |word: &[u8]| {
            self.all("connection")
                .flat_map(|value| value.split(|byte| *byte == b','))
                .any(|value| value.trim_ascii().eq_ignore_ascii_case(word))
        };
        says(b"close")
    }

    /// The time to wait before the next request, if the server states it in seconds or as a date. A date is compared with
    /// the server's own clock.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = decimal(self.header("retry-after")?).map(Duration::from_secs);
        seconds.or_else(|| {
            let (until, now) = (self.date("retry-after")?, self.date("date")?);
            Some(until.duration_since(now).unwrap_or_default())
        })
    }

    /// The time in a header with a date.
    pub fn date(&self, name: &str) -> Option<SystemTime> {
        self.text(name).and_then(|text| httpdate::parse_http_date(text).ok())
    }
}

fn is_identity(encoding: &[u8]) -> bool {
    encoding.eq_ignore_ascii_case(b"identity")
}

/// A malformed header, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeader(pub &'static str);

/// Parses digits only: no sign, no blanks, no overflow.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Parses `bytes A-B/TOTAL`, `bytes A-B/*` and `bytes */TOTAL`.
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
    fn a_content_range_is_parsed_strictly() {
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
    fn contradictory_content_lengths_are_refused() {
        let length_of = |values: &[&'static str]| {
            let headers: Vec<_> = values.iter().map(|v| header("Content-Length", v)).collect();
            HttpResponse::new(206, &headers, b"").content_length()
        };
        assert_eq!(length_of(&[]), Ok(None));
        assert_eq!(length_of(&["7"]), Ok(Some(7)));
        assert_eq!(length_of(&["7", " 7"]), Ok(Some(7)));
        for bad in [
            &["7", "8"][..],
            &["-7"],
            &["7, 7"],
            &[""],
            &["0x7"],
            &["99999999999999999999"],
        ] {
            assert!(length_of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn encodings_connection_and_retry_after_headers_are_read() {
        let headers = [
            header("Connection", "keep-alive, Close"),
            header("transfer-ENCODING", "chunked"),
        ];
        let response = HttpResponse::new(200, &headers, b"");
        assert!(response.closes() && !response.is_plain());
        let headers = [header("content-encoding", "identity"), header("Retry-After", "3600")];
        let response = HttpResponse::new(503, &headers, b"");
        assert!(!response.closes() && response.is_plain() && !response.is_encoded());
        assert_eq!(response.retry_after(), Some(Duration::from_hours(1)));
        let headers = [header("Content-Encoding", "gzip")];
        let response = HttpResponse::new(206, &headers, b"");
        assert!(response.is_plain() && response.is_encoded());
    }

    #[test]
    fn a_retry_after_date_is_compared_with_the_clock_of_the_server() {
        let now = "Sun, 06 Nov 1994 08:49:37 GMT";
        let soon = "Sun, 06 Nov 1994 08:49:44 GMT";
        for (until, date, wait) in [
            (soon, now, Some(Duration::from_secs(7))),
            (now, soon, Some(Duration::ZERO)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", now, Some(Duration::from_hours(24))),
            // Recipients must accept the two obsolete forms (RFC 9110, section 5.6.7).
            ("Sunday, 06-Nov-94 08:49:40 GMT", now, Some(Duration::from_secs(3))),
            (soon, "Sun Nov  6 08:49:37 1994", Some(Duration::from_secs(7))),
            (soon, "today", None),
            (soon, "", None),
            ("later", now, None),
            ("-7", now, None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", now, None),
            ("Wed, 31 Dec 1969 23:59:59 GMT", now, None),
        ] {
            let headers = [header("Retry-After", until), header("Date", date)];
            let lane = HttpResponse::new(503, &headers, b"").retry_after();
            let response = http::Response::builder()
                .header("retry-after", until)
                .header("date", date);
            let response = response.body(Vec::new()).unwrap();
            let client = HttpResponse::of(&response).retry_after();
            assert_eq!((lane, client), (wait, wait), "{until}, {date}");
        }
    }
}
