//! What differs between kinds of servers: how a request is authorised, and what an answer means.

use std::{fmt, time::Duration};

use straightway_core::{Error, Kind, Result};

use crate::{
    answer::Answer,
    checksum::Checksum,
    upload::{Part, PartTag},
};

/// How one object is asked for, and what the server's answers mean.
///
/// The engine calls [`head`](Self::head) and [`judge`](Self::judge) on a lane's thread, so neither may block.
pub trait Service: fmt::Debug + Send + Sync {
    /// Appends the head of a GET request for the object: the request line, `Host`, and all headers, each with its
    /// `\r\n`. `Range`, `If-Match` and the blank line are appended by the caller and must not be signed.
    fn head(&self, out: &mut Vec<u8>) -> Result<Head>;

    /// What an answer means that is not the expected part of the object. `name` is what errors call the object.
    fn judge(&self, name: &str, answer: &Answer<'_>) -> Judgement {
        judge_status(name, answer)
    }

    /// Whether a request for the whole object leaves out `Range`, so that the server tells its checksum.
    fn asks_whole(&self) -> bool {
        false
    }

    /// The checksum of the whole object in an answer to a request for all of it.
    fn checksum(&self, _: &Answer<'_>) -> Option<Checksum> {
        None
    }

    /// Whether [`put_head`](Self::put_head) needs the MD5 of a part.
    fn wants_digest(&self) -> bool {
        false
    }

    /// Appends the whole head of a request that stores a part of the object, with its `Content-Length` and the blank line.
    fn put_head(&self, _: &Part, _out: &mut Vec<u8>) -> Result<Head> {
        let why = "this kind of server is only read";
        Err(Error::new(Kind::Unsupported, "write", "an object", why))
    }

    /// What the server calls a part, by its answer of status 200 to that request. `name` is what errors call the object.
    fn stored(&self, name: &str, _: &Part, answer: &Answer<'_>) -> Result<PartTag, Judgement> {
        Err(self.judge(name, answer))
    }

    /// Renews what [`head`](Self::head) and [`put_head`](Self::put_head) sign with. It may block: a thread that ends with the call runs it.
    fn renew(&self) -> Result<()> {
        Ok(())
    }
}

const _: [&dyn Service; 0] = [];

/// Whether a request head could be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// It was.
    Ready,
    /// The credentials have expired or are about to: call [`Service::renew`] first.
    Renew,
}

/// What to do after an answer that is not the expected part of the object.
#[derive(Debug)]
pub struct Judgement {
    /// What to do next.
    pub next: Next,
    /// What is told if nothing further is tried.
    pub error: Error,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask again after a pause, on a new connection.
    Retry,
    /// The same, and all requests to this origin slow down. The server may have said for how long.
    SlowDown(Option<Duration>),
    /// Renew the credentials and ask again.
    Renew,
    /// Give up.
    Fail,
}

impl Judgement {
    /// A judgement with the error that is told if nothing further is tried.
    pub fn new(next: Next, error: Error) -> Self {
        Self { next, error }
    }

    /// Nothing further is tried.
    pub fn fail(error: Error) -> Self {
        Self::new(Next::Fail, error)
    }

    /// What failed on its way is tried again, all else is not.
    pub fn of(error: Error) -> Self {
        let next = match error.kind() {
            Kind::Transient => Next::Retry,
            _ => Next::Fail,
        };
        Self::new(next, error)
    }
}

/// What an answer means by its status alone.
pub fn judge_status(name: &str, answer: &Answer<'_>) -> Judgement {
    const PERMIT: &str = "give a token or credentials that may read it";
    let (next, kind, why, hint) = match answer.status {
        401 => (
            Next::Fail,
            Kind::Invalid,
            "the server asks for credentials",
            PERMIT,
        ),
        403 => (Next::Fail, Kind::Invalid, "access is denied", PERMIT),
        404 | 410 => (
            Next::Fail,
            Kind::NotFound,
            "there is no such object",
            "check the name",
        ),
        412 | 416 => (
            Next::Fail,
            Kind::Corrupt,
            "it was replaced while it was read",
            "read it again",
        ),
        408 | 500 | 502 | 504 => (
            Next::Retry,
            Kind::Transient,
            "the server fails",
            "try again later",
        ),
        429 | 503 => (
            Next::SlowDown(answer.retry_after()),
            Kind::Transient,
            "the server is overloaded",
            "try again later, or with fewer connections",
        ),
        200 => (
            Next::Fail,
            Kind::Unsupported,
            "the server sends the whole object where a range was asked for",
            "download it by other means, or ask a server that serves ranges",
        ),
        300..=399 => (
            Next::Fail,
            Kind::Unsupported,
            "the server redirects elsewhere",
            "use the address that it redirects to",
        ),
        _ => (
            Next::Fail,
            Kind::Unsupported,
            "the server answers with an unexpected status",
            "check that the address is that of an object",
        ),
    };
    let message = format!("{why} (status {})", answer.status);
    Judgement::new(
        next,
        Error::new(kind, "read", name, message).with_hint(hint),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_whether_to_ask_again() {
        let judged = |status| judge_status("object", &Answer::new(status, &[], b""));
        for (status, next, kind) in [
            (404, Next::Fail, Kind::NotFound),
            (403, Next::Fail, Kind::Invalid),
            (412, Next::Fail, Kind::Corrupt),
            (500, Next::Retry, Kind::Transient),
            (503, Next::SlowDown(None), Kind::Transient),
            (200, Next::Fail, Kind::Unsupported),
            (418, Next::Fail, Kind::Unsupported),
        ] {
            let Judgement { next: told, error } = judged(status);
            assert_eq!((told, error.kind()), (next, kind), "{error}");
            assert!(error.to_string().contains(&status.to_string()), "{error}");
        }
    }
}
