//! Requests on the caller's thread: the first one, and those for headers and manifests.

use std::{io::Read, ops::Range, time::Instant};

use straightway_core::{Kind, Result};

use super::{ERROR_BYTES_MAX, RENEWALS_MAX, Remote};
use crate::{
    answer::Answer,
    backoff::Backoff,
    checksum::{Checksum, MISMATCHES_MAX, Running},
    service::{Head, Judgement, Next},
    validator::Validator,
};

/// What is read at once on the caller's thread.
const STREAM_BYTES: usize = 64 << 10;

/// What the first request for an object found.
#[derive(Debug)]
pub enum First {
    /// The object: its length, its version and its first bytes.
    Found {
        /// Its length.
        bytes: u64,
        /// Its version, where the server has any.
        validator: Option<Validator>,
        /// Its first bytes, at most as many as were asked for.
        front: Vec<u8>,
    },
    /// It is elsewhere: the `Location` of a redirect, which may hold a secret.
    Redirect(String),
}

/// A body, and its checksum where it is known.
type Found = (ureq::BodyReader<'static>, Option<Checksum>);

impl Remote {
    /// Sends the first request for an object of unknown length.
    pub fn first(&self, front_bytes: u32) -> Result<First> {
        let front_bytes = u64::from(front_bytes.max(1));
        let (first, _) = self.persist(|_| self.ask_first(front_bytes))?;
        Ok(first)
    }

    /// Reads a range on the caller's thread, and hands its parts over with their places in it. Answers how often it was
    /// asked for again.
    pub(crate) fn stream(
        &self,
        range: &Range<u64>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<u32> {
        let mut buffer = vec![0; STREAM_BYTES];
        let mut got = 0;
        let mut sum: Option<Running> = None;
        let mut mismatches = 0;
        let ((), retries) = self.persist(|backoff| {
            let rest = range.start + got as u64..range.end;
            let (mut body, told) = self.ask_for(&rest)?;
            sum = told.map(Checksum::begin).or(sum.take());
            let mut missing = rest.end - rest.start;
            while missing > 0 {
                let most = usize::try_from(missing).unwrap_or(usize::MAX);
                let most = most.min(buffer.len());
                let read = match body.read(&mut buffer[..most]) {
                    Ok(0) => return Err(self.broken("the server closed the connection")),
                    Ok(read) => read,
                    Err(error) => return Err(self.broken(&error.to_string())),
                };
                take(got, &buffer[..read]);
                if let Some(sum) = &mut sum {
                    sum.add(&buffer[..read]);
                }
                backoff.reset();
                got += read;
                missing -= read as u64;
            }
            if sum.take().is_none_or(Running::fits) {
                return Ok(());
            }
            (got, mismatches) = (0, mismatches + 1);
            let is_last = mismatches == MISMATCHES_MAX;
            let next = if is_last { Next::Fail } else { Next::Retry };
            Err(Judgement::new(next, self.damaged()))
        })?;
        Ok(retries)
    }

    /// Reads a range on the caller's thread.
    pub(super) fn fetch(&self, range: &Range<u64>, into: &mut [u8]) -> Result<()> {
        let copy = |at: usize, bytes: &[u8]| into[at..at + bytes.len()].copy_from_slice(bytes);
        self.stream(range, copy).map(|_| ())
    }

    /// Asks for a range once. Its body is what was asked for. Of a whole object the checksum may come with it.
    fn ask_for(&self, range: &Range<u64>) -> Result<Found, Judgement> {
        let answer = self.ask(range)?;
        let headers = headers(&answer);
        let head = Answer::new(answer.status().as_u16(), &headers, b"");
        if !matches!(head.status, 200 | 206) {
            drop(headers);
            return Err(self.judge_body(answer));
        }
        self.check(&head, range)?;
        let sum = self.checksum(&head, range);
        drop(headers);
        Ok((answer.into_body().into_reader(), sum))
    }

    fn ask_first(&self, front_bytes: u64) -> Result<First, Judgement> {
        let mut answer = self.ask(&(0..front_bytes))?;
        let headers = headers(&answer);
        let head = Answer::new(answer.status().as_u16(), &headers, b"");
        let range = head.content_range();
        let range = range.map_err(|_| self.broken("its Content-Range cannot be read"))?;
        let validator = Validator::of(&head).or_else(|| self.validator.clone());
        if self
            .validator
            .as_ref()
            .is_some_and(|v| v.contradicts(&head))
            && head.status < 300
        {
            let why = "it is another version";
            return Err(Judgement::fail(self.failed(
                Kind::Corrupt,
                why,
                "list it again",
            )));
        }
        let (bytes, front_bytes) = match (head.status, range) {
            (206, Some(told)) => {
                let total = told.total.ok_or_else(|| {
                    let why = "the server does not say how long it is";
                    let hint = "download it by other means";
                    Judgement::fail(self.failed(Kind::Unsupported, why, hint))
                })?;
                if told.range != Some(0..front_bytes.min(total)) {
                    let why = "the server sends another range than the one that was asked for";
                    return Err(self.broken(why));
                }
                (total, front_bytes.min(total))
            }
            (206, None) => return Err(self.broken("the server does not say which range it sends")),
            // The whole object, where that is short enough.
            (200, _) => match head.content_length() {
                Ok(Some(length)) if length <= front_bytes => (length, length),
                _ => return Err(self.service.judge(&self.name, &head)),
            },
            (416, Some(told)) if told.total == Some(0) => (0, 0),
            (416, None) => {
                drop(headers);
                return self.ask_empty(answer);
            }
            (300..=399, _) => {
                if let Some(location) = head.text("location") {
                    return Ok(First::Redirect(location.to_owned()));
                }
                return Err(self.service.judge(&self.name, &head));
            }
            _ => {
                drop(headers);
                return Err(self.judge_body(answer));
            }
        };
        drop(headers);
        let mut front = vec![0; usize::try_from(front_bytes).expect("it fits into 32 bits")];
        let read = answer.body_mut().as_reader().read_exact(&mut front);
        read.map_err(|error| self.broken(&error.to_string()))?;
        Ok(First::Found {
            bytes,
            validator,
            front,
        })
    }

    /// Whether an object is empty of which a server refused a range without telling its length, as Ceph does.
    fn ask_empty(&self, refusal: http::Response<ureq::Body>) -> Result<First, Judgement> {
        // Without a range.
        let answer = self.ask(&(0..0))?;
        let headers = headers(&answer);
        let head = Answer::new(answer.status().as_u16(), &headers, b"");
        if (head.status, head.content_length()) != (200, Ok(Some(0))) {
            return Err(self.judge_body(refusal));
        }
        Ok(First::Found {
            bytes: 0,
            validator: Validator::of(&head),
            front: Vec::new(),
        })
    }

    /// Sends one request for a range on the caller's thread.
    fn ask(&self, range: &Range<u64>) -> Result<http::Response<ureq::Body>, Judgement> {
        let mut head = Vec::new();
        if self.write_head(range, &mut head).map_err(Judgement::of)? == Head::Renew {
            let error = self.failed(
                Kind::Transient,
                "the credentials have expired",
                "renew them",
            );
            return Err(Judgement::new(Next::Renew, error));
        }
        self.send(&head, Vec::new())
    }

    /// Sends one request with a body on the caller's thread.
    pub(crate) fn send(
        &self,
        head: &[u8],
        body: Vec<u8>,
    ) -> Result<http::Response<ureq::Body>, Judgement> {
        let request = self.request(head, body).ok_or_else(|| {
            let why = "its name cannot be sent in a request";
            Judgement::fail(self.failed(Kind::Invalid, why, "check the name"))
        })?;
        self.client.run(request).map_err(Judgement::of)
    }

    /// A request head as the client has it.
    fn request(&self, head: &[u8], body: Vec<u8>) -> Option<http::Request<Vec<u8>>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        parsed
            .parse(head)
            .ok()?
            .is_partial()
            .eq(&false)
            .then_some(())?;
        let url = format!("{}{}", self.origin.site(), parsed.path?);
        let mut request = http::Request::builder().method(parsed.method?).uri(url);
        for header in &*parsed.headers {
            let mut value = http::HeaderValue::from_bytes(header.value).ok()?;
            value.set_sensitive(true);
            request = request.header(header.name, value);
        }
        request.body(body).ok()
    }

    /// What the service says of an answer without payload.
    pub(crate) fn judge_body(&self, mut answer: http::Response<ureq::Body>) -> Judgement {
        let mut body = Vec::new();
        let most = ERROR_BYTES_MAX as u64;
        // A body that cannot be read leaves the status to judge by.
        let _ = answer
            .body_mut()
            .as_reader()
            .take(most)
            .read_to_end(&mut body);
        let headers = headers(&answer);
        let answer = Answer::new(answer.status().as_u16(), &headers, &body);
        self.service.judge(&self.name, &answer)
    }

    /// Does `attempt` until it succeeds, fails for good, or was tried too often. Answers how often it was tried again.
    pub(crate) fn persist<T>(
        &self,
        mut attempt: impl FnMut(&mut Backoff) -> Result<T, Judgement>,
    ) -> Result<(T, u32)> {
        let mut backoff = Backoff::unique(self.origin.network().settings());
        let (mut renewals, mut retries) = (0, 0);
        loop {
            let Judgement { next, error } = match attempt(&mut backoff) {
                Ok(done) => return Ok((done, retries)),
                Err(judgement) => judgement,
            };
            let mut wait = match next {
                Next::Fail => None,
                Next::Renew if renewals == RENEWALS_MAX => None,
                Next::SlowDown(_) => backoff.next_asked_wait(),
                Next::Renew | Next::Retry => backoff.next_wait(Instant::now()),
            };
            match next {
                Next::Renew if wait.is_some() => {
                    renewals += 1;
                    self.service.renew()?;
                }
                Next::SlowDown(asked) => {
                    self.origin.pace().slow_down(Instant::now(), asked);
                    wait = wait.map(|wait| wait.max(asked.unwrap_or_default()));
                }
                _ => {}
            }
            let Some(wait) = wait else { return Err(error) };
            retries += 1;
            std::thread::sleep(wait);
        }
    }

    fn broken(&self, why: &str) -> Judgement {
        let hint = "check the network and the server";
        Judgement::new(Next::Retry, self.failed(Kind::Transient, why, hint))
    }
}

pub(crate) fn headers<B>(answer: &http::Response<B>) -> Vec<httparse::Header<'_>> {
    answer
        .headers()
        .iter()
        .map(|(name, value)| httparse::Header {
            name: name.as_str(),
            value: value.as_bytes(),
        })
        .collect()
}
