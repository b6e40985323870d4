//! Heads of answers as they come from a socket: in part, with rubbish, or with the beginning of the body behind them.

use crate::answer::Answer;

/// The longest head of an answer. S3's have about 600 bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most headers of an answer.
const HEADERS_MAX: usize = 96;

/// What the front of `bytes` is.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The head is not complete yet.
    Partial,
    /// A complete head: its length, and what was made of it.
    Whole(usize, T),
    /// No head of HTTP/1.
    Bad(&'static str),
}

/// Reads the head at the front of `bytes`, and hands it to `take` with whether the connection may be used again.
/// Interim answers (1xx) are skipped.
pub fn parse<T>(bytes: &[u8], take: impl FnOnce(&Answer<'_>, bool) -> T) -> Parsed<T> {
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
            Err(_) => return Parsed::Bad("it is not proper HTTP/1.1"),
        };
        if length > HEAD_BYTES_MAX {
            return Parsed::Bad("its head is too long");
        }
        let status = head.code.unwrap_or(0);
        if (100..200).contains(&status) && status != 101 {
            skipped = length;
            continue;
        }
        let answer = Answer::new(status, head.headers, b"");
        let is_reusable = head.version == Some(1) && !answer.closes();
        return Parsed::Whole(length, take(&answer, is_reusable));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] =
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-7/8\r\nContent-Length: 8\r\n\r\n";

    #[test]
    fn a_head_is_read_when_it_is_whole_wherever_it_was_cut() {
        for cut in 0..HEAD.len() {
            assert_eq!(parse(&HEAD[..cut], |_, _| ()), Parsed::Partial, "{cut}");
        }
        let with_body = [HEAD, b"abcd"].concat();
        let read = parse(&with_body, |answer, reusable| {
            (answer.status, answer.content_length(), reusable)
        });
        assert_eq!(read, Parsed::Whole(HEAD.len(), (206, Ok(Some(8)), true)));
    }

    #[test]
    fn interim_answers_are_skipped_and_old_servers_close() {
        let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
        let both = [interim, HEAD].concat();
        let read = parse(&both, |answer, _| answer.status);
        assert_eq!(read, Parsed::Whole(both.len(), 206));
        let old = b"HTTP/1.0 200 OK\r\n\r\n";
        assert_eq!(
            parse(old, |_, reusable| reusable),
            Parsed::Whole(old.len(), false)
        );
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        assert_eq!(
            parse(closing, |_, reusable| reusable),
            Parsed::Whole(closing.len(), false)
        );
    }

    #[test]
    fn what_is_no_head_or_too_long_is_refused() {
        let long = [
            b"HTTP/1.1 200 OK\r\nX: ".to_vec(),
            vec![b'a'; HEAD_BYTES_MAX],
        ]
        .concat();
        let many = [
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            b"a: b\r\n".repeat(HEADERS_MAX + 1),
        ]
        .concat();
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
