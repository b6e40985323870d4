//! Parses response heads as received from a socket: partial, malformed, or followed by the beginning of the body.

use crate::response::HttpResponse;

/// The longest head of a response. Heads of S3 have about 600 bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most headers of a response.
const HEADERS_MAX: usize = 96;

/// The result of parsing.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The head is not complete yet.
    Partial,
    /// A complete head: its length, and the value that `take` returned.
    Whole(usize, T),
    /// Not a valid HTTP/1 head, and why.
    Bad(&'static str),
}

/// Parses the head at the front of `bytes` and passes it to `take`, with a flag that tells whether the connection may
/// be reused. Interim responses (1xx) are skipped.
pub fn parse<T>(bytes: &[u8], take: impl FnOnce(&HttpResponse<'_>, bool) -> T) -> Parsed<T> {
    let mut skipped = 0;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(&bytes[skipped..]) {
            Ok(httparse::Status::Complete(length)) => skipped + length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => {
                return Parsed::Partial;
            }
            Ok(httparse::Status::Partial) => return Parsed::Bad("its head is too long"),
            Err(httparse::Error::TooManyHeaders) => return Parsed::Bad("it has too many headers"),
            Err(_) => return Parsed::Bad("it is not valid HTTP/1.1"),
        };
        if length > HEAD_BYTES_MAX {
            return Parsed::Bad("its head is too long");
        }
        let status = head.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            skipped = length;
            continue;
        }
        let response = HttpResponse::new(status, head.headers, b"");
        let is_reusable = head.version == Some(1) && !response.closes();
        return Parsed::Whole(length, take(&response, is_reusable));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-7/8\r\nContent-Length: 8\r\n\r\n";

    #[test]
    fn a_head_is_parsed_once_it_is_complete() {
        for cut in 0..HEAD.len() {
            assert_eq!(parse(&HEAD[..cut], |_, _| ()), Parsed::Partial, "{cut}");
        }
        let with_body = [HEAD, b"abcd"].concat();
        let read = parse(&with_body, |response, reusable| {
            (response.status, response.content_length(), reusable)
        });
        assert_eq!(read, Parsed::Whole(HEAD.len(), (206, Ok(Some(8)), true)));
    }

    #[test]
    fn interim_responses_are_skipped_and_http_1_0_connections_are_not_reused() {
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
        let both = [interim, HEAD].concat();
        let read = parse(&both, |response, _| response.status);
        assert_eq!(read, Parsed::Whole(both.len(), 206));
        let old = b"HTTP/1.0 200 OK\r\n\r\n";
        assert_eq!(parse(old, |_, reusable| reusable), Parsed::Whole(old.len(), false));
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        assert_eq!(
            parse(closing, |_, reusable| reusable),
            Parsed::Whole(closing.len(), false)
        );
    }

    #[test]
    fn a_malformed_or_overlong_head_is_refused() {
        let long = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; HEAD_BYTES_MAX]].concat();
        let many = [b"HTTP/1.1 200 OK\r\n".to_vec(), b"a: b\r\n".repeat(HEADERS_MAX + 1)].concat();
        for bad in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/2 200\r\n\r\n",
            b"\x16\x03\x01",
            &long,
            &many,
        ] {
            assert!(matches!(parse(bad, |_, _| ()), Parsed::Bad(_)), "{bad:?}");
        }
    }
}
