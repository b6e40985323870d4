//! The differences between kinds of servers: the format of a request, and the meaning of a response.

use std::{fmt, time::Duration};

use straightway_core::{Error, ErrorKind, Result};

use crate::{
    checksum::Checksum,
    part::{PartTag, UploadPart},
    response::{HttpResponse, RETRY_AFTER_MAX},
};

/// The requests for one object, and the meaning of the responses.
///
/// The engine calls [`head`](Self::head) and [`judge`](Self::judge) on a lane's thread, so neither may block.
pub trait Service: fmt::Debug + Send + Sync {
    /// Appends the head of a GET request for the object: the request line, `Host`, and all headers, each with its
    /// `\r\n`. `Range`, `If-Match` and the blank line are appended by the caller and must not be signed.
    fn head(&self, out: &mut Vec<u8>) -> Result<Head>;

    /// Judges a response that is not the expected part of the object. Errors call the object `name`.
    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        judge_status(name, response)
    }

    /// Whether a request for the whole object omits `Range`, so that the server sends the object's checksum.
    fn asks_whole(&self) -> bool {
        false
    }

    /// The checksum of the whole object, from the response to a request for all of it.
    fn checksum(&self, _: &HttpResponse<'_>) -> Option<Checksum> {
        None
    }

    /// The checksum of exactly the bytes of a response with status 206, if the range is one stored part and the
    /// response states the checksum of that part.
    fn part_checksum(&self, _: &HttpResponse<'_>) -> Option<Checksum> {
        None
    }

    /// Whether `Content-Encoding` describes the stored bytes. If not, an object with that header was encoded by the
    /// server on the way, and is refused.
    fn stores_encoded(&self) -> bool {
        false
    }

    /// Whether [`put_head`](Self::put_head) needs the MD5 of a part.
    fn wants_digest(&self) -> bool {
        false
    }

    /// Appends the complete head of a request that stores a part of the object, with `Content-Length` and the blank
    /// line.
    fn put_head(&self, _: &UploadPart, _out: &mut Vec<u8>) -> Result<Head> {
        let why = "stores of this kind are read-only";
        Err(Error::new(ErrorKind::Unsupported, "write", "an object", why))
    }

    /// The `ETag` of a stored part, from the response with status 200 to that request. Errors call the object `name`.
    fn stored(&self, name: &str, _: &UploadPart, response: &HttpResponse<'_>) -> Result<PartTag, Judgement> {
        Err(self.judge(name, response))
    }

    /// Renews the credentials that [`head`](Self::head) and [`put_head`](Self::put_head) sign with. It may block: it
    /// runs on a thread of its own.
    fn renew(&self) -> Result<()> {
        Ok(())
    }
}

const _: [&dyn Service; 0] = [];

/// The result of writing a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// It was written.
    Ready,
    /// The credentials have expired or are about to: call [`Service::renew`] first.
    Renew,
}

/// The verdict on a response that is not the expected part of the object.
#[derive(Debug)]
pub struct Judgement {
    /// What to do next.
    pub next: Next,
    /// The error to return if the request is not retried.
    pub error: Error,
}

/// The next step after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Retry after a back-off, on a new connection.
    Retry,
    /// Retry, and slow down all requests to this origin. The server may have sent the time to wait.
    SlowDown(Option<Duration>),
    /// Renew the credentials and retry.
    Renew,
    /// Give up.
    Fail,
}

impl Judgement {
    /// A judgement with the error to return if the request is not retried.
    pub fn new(next: Next, error: Error) -> Self {
        Self { next, error }
    }

    /// A judgement that gives up.
    pub fn fail(error: Error) -> Self {
        Self::new(Next::Fail, error)
    }

    /// Retries a transient error; any other error is final.
    pub fn of(error: Error) -> Self {
        let next = match error.kind() {
            ErrorKind::Transient => Next::Retry,
            _ => Next::Fail,
        };
        Self::new(next, error)
    }
}

/// The words for a wait that the server asks for and that is too long, if it is. The request then fails: a transfer
/// that stands still for hours looks like one that hangs.
pub fn overlong_wait(asked: Option<Duration>) -> Option<String> {
    let wait = asked.filter(|wait| *wait > RETRY_AFTER_MAX)?;
    let (wait_s, most_s) = (wait.as_secs(), RETRY_AFTER_MAX.as_secs());
    Some(format!("it asks to retry after {wait_s} s, more than {most_s} s"))
}

/// Judges a response by its status alone.
pub fn judge_status(name: &str, response: &HttpResponse<'_>) -> Judgement {
    const PERMIT: &str = "give a token or credentials that may read it";
    let asked = response.retry_after();
    let overlong = overlong_wait(asked).filter(|_| matches!(response.status, 429 | 503));
    let (next, kind, why, hint) = match response.status {
        401 => (Next::Fail, ErrorKind::Denied, "the server asks for credentials", PERMIT),
        403 => (Next::Fail, ErrorKind::Denied, "access is denied", PERMIT),
        404 | 410 => (
            Next::Fail,
            ErrorKind::NotFound,
            "there is no such object",
            "check the name",
        ),
        412 | 416 => (
            Next::Fail,
            ErrorKind::Precondition,
            "it was replaced while it was read",
            "read it again",
        ),
        408 | 500 | 502 | 504 => (
            Next::Retry,
            ErrorKind::Transient,
            "the server failed",
            "try again later",
        ),
        429 | 503 => (
            match &overlong {
                Some(_) => Next::Fail,
                None => Next::SlowDown(asked),
            },
            ErrorKind::Transient,
            "the server is overloaded",
            "try again later, or with fewer connections",
        ),
        200 => (
            Next::Fail,
            ErrorKind::Unsupported,
            "the server sent the whole object instead of the requested range",
            "download it by other means, or ask a server that serves ranges",
        ),
        300..=399 => (
            Next::Fail,
            ErrorKind::Unsupported,
            "the server redirects elsewhere",
            "use the address that it redirects to",
        ),
        _ => (
            Next::Fail,
            ErrorKind::Unsupported,
            "the server sent an unexpected status",
            "check that the address is that of an object",
        ),
    };
    let mut message = format!("{why} (status {})", response.status);
    if let Some(overlong) = overlong {
        message = format!("{message}; {overlong}");
    }
    Judgement::new(next, Error::new(kind, "read", name, message).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_decides_whether_to_retry() {
        let judged = |status| judge_status("object", &HttpResponse::new(status, &[], b""));
        for (status, next, kind) in [
            (404, Next::Fail, ErrorKind::NotFound),
            (403, Next::Fail, ErrorKind::Denied),
            (412, Next::Fail, ErrorKind::Precondition),
            (500, Next::Retry, ErrorKind::Transient),
            (503, Next::SlowDown(None), ErrorKind::Transient),
            (200, Next::Fail, ErrorKind::Unsupported),
            (418, Next::Fail, ErrorKind::Unsupported),
        ] {
            let Judgement { next: found, error } = judged(status);
            assert_eq!((found, error.kind()), (next, kind), "{error}");
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }

    #[test]
    fn a_wait_of_more_than_a_minute_is_an_error_that_says_so() {
        for (asked, next) in [
            ("60", Next::SlowDown(Some(Duration::from_mins(1)))),
            ("61", Next::Fail),
            ("18446744073709551615", Next::Fail),
        ] {
            let header = httparse::Header {
                name: "Retry-After",
                value: asked.as_bytes(),
            };
            let judged = judge_status("object", &HttpResponse::new(503, &[header], b""));
            assert_eq!(judged.next, next, "{asked}");
            let words = format!("retry after {asked} s");
            assert_eq!(
                judged.error.to_string().contains(&words),
                next == Next::Fail,
                "{}",
                judged.error
            );
        }
    }
}
