//! Requests on the caller's thread: the first request for an object, and reads of headers and manifests.

use std::{io::Read, ops::Range, sync::Arc, time::Instant};

use straightway_core::{ErrorKind, Result};

use super::{ERROR_BYTES_MAX, ERROR_PATIENCE, OBJECT_BYTES_MAX, Remote};
use crate::{
    backoff::Backoff,
    checksum::{Checksum, MISMATCHES_MAX, Running},
    client::WorkTime,
    progress::{Progress, too_slow},
    response::HttpResponse,
    retry::persist,
    service::{Head, Judgement, Next},
    validator::Validator,
};

/// The size of one read of a body.
const STREAM_BYTES: usize = 64 << 10;

/// The result of the first request for an object.
#[derive(Debug)]
pub enum FirstResponse {
    /// The object: its length, its version and its first bytes.
    Found {
        /// Its length.
        bytes: u64,
        /// Its version, if the server states one.
        validator: Option<Validator>,
        /// Its first bytes, at most the requested number.
        front: Vec<u8>,
    },
    /// The `Location` of a redirect, which may hold a secret.
    Redirect(String),
}

/// An object whose first response broke off.
struct BrokenFront {
    /// The length of the object.
    bytes: u64,
    validator: Option<Validator>,
    /// The first bytes that arrived, and the number that were requested.
    front: Vec<u8>,
    front_bytes: usize,
}

/// A body, and its checksum if the response states it.
type SummedBody = (ureq::BodyReader<'static>, Option<Checksum>);

impl Remote {
    /// Sends the first request for an object of unknown length. If the response breaks off, the rest of the first bytes
    /// is requested, of the same version.
    pub fn first_response(&self, front_bytes: u32) -> Result<FirstResponse> {
        let front_bytes = u64::from(front_bytes.max(1));
        let mut begun: Option<BrokenFront> = None;
        // Bytes that arrive again are no progress.
        let mut received_max = 0;
        let (first, _) = self.persist(|backoff| {
            let before = begun.as_ref().map_or(0, |broken| broken.front.len());
            let asked = match begun.take() {
                None => self.ask_first(front_bytes, &mut begun),
                Some(broken) => self.ask_rest(broken, &mut begun),
            };
            if let Some(broken) = begun.as_ref().filter(|broken| broken.front.len() > received_max) {
                let received = broken.front.len();
                backoff.note_bytes(received - received_max);
                backoff.note_attempt(received - before, broken.front_bytes - before);
                received_max = received;
            }
            asked
        })?;
        Ok(first)
    }

    /// Reads a range on the caller's thread. `take` gets each piece with its offset in the range. Returns the number of
    /// retries.
    pub(crate) fn stream(&self, range: &Range<u64>, mut take: impl FnMut(usize, &[u8])) -> Result<u32> {
        let mut buffer = vec![0; STREAM_BYTES];
        let mut got = 0;
        let mut sum: Option<Running> = None;
        let mut mismatches = 0;
        let ((), retries) = self.persist(|backoff| {
            let rest = range.start + got as u64..range.end;
            let (mut body, stated) = self.ask_for(&rest)?;
            // The checksum in the response to a request for the rest is not that of all bytes.
            if got == 0 {
                sum = stated.map(Checksum::begin).or(sum.take());
            }
            let missing = usize::try_from(rest.end - rest.start).expect("it fits into memory");
            let before = got;
            let received = self.receive(&mut body, missing, &mut buffer, |bytes| {
                take(got, bytes);
                if let Some(sum) = &mut sum {
                    sum.add(bytes);
                }
                backoff.note_bytes(bytes.len());
                got += bytes.len();
            });
            if received.is_err() {
                backoff.note_attempt(got - before, missing);
            }
            received?;
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

    /// Receives `missing` bytes of a body. `take` gets each piece, which is at most as long as `buffer`.
    fn receive(
        &self,
        body: &mut impl Read,
        missing: usize,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), Judgement> {
        let settings = self.origin.settings();
        let mut progress = Progress::begin(settings, 0, missing, Instant::now());
        let mut got = 0;
        while got < missing {
            let most = (missing - got).min(buffer.len());
            let read = match body.read(&mut buffer[..most]) {
                Ok(0) => return Err(self.broken("the server closed the connection")),
                Ok(read) => read,
                Err(error) => return Err(self.broken(&error.to_string())),
            };
            take(&buffer[..read]);
            got += read;
            if got < missing && progress.is_too_slow(settings, got, missing, Instant::now()) {
                return Err(self.broken(&too_slow(settings)));
            }
        }
        Ok(())
    }

    /// Reads a range on the caller's thread.
    pub(super) fn fetch(&self, range: &Range<u64>, into: &mut [u8]) -> Result<()> {
        let copy = |at: usize, bytes: &[u8]| into[at..at + bytes.len()].copy_from_slice(bytes);
        self.stream(range, copy).map(|_| ())
    }

    /// Requests a range once and checks the response. A checksum may come with it.
    fn ask_for(&self, range: &Range<u64>) -> Result<SummedBody, Judgement> {
        let response = self.ask(range)?;
        let head = HttpResponse::with_body(&response, b"");
        if !matches!(head.status, 200 | 206) {
            return Err(self.judge_body(response));
        }
        self.check(&head, range)?;
        let sum = self.checksum(&head, range);
        Ok((response.into_body().into_reader(), sum))
    }

    /// Sends the first request once. If the response breaks off and states a version, `begun` gets the part that
    /// arrived.
    fn ask_first(&self, front_bytes: u64, begun: &mut Option<BrokenFront>) -> Result<FirstResponse, Judgement> {
        let mut response = self.ask(&(0..front_bytes))?;
        let head = HttpResponse::with_body(&response, b"");
        let range = head.content_range();
        let range = range.map_err(|_| self.broken("its Content-Range cannot be read"))?;
        let validator = Validator::of(&head).or_else(|| self.validator.clone());
        let doubt = self.validator.as_ref().and_then(|v| v.doubt(&head));
        if doubt.is_some() && head.status < 300 {
            let why = "it is another version";
            return Err(Judgement::fail(self.failed(
                ErrorKind::Precondition,
                why,
                "list it again",
            )));
        }
        if matches!(head.status, 200 | 206) {
            self.check_encoding(&head)?;
        }
        let (bytes, front_bytes) = match (head.status, range) {
            (206, Some(stated)) => {
                let total = stated.total.ok_or_else(|| {
                    let why = "the server does not say how long it is";
                    let hint = "download it by other means";
                    Judgement::fail(self.failed(ErrorKind::Unsupported, why, hint))
                })?;
                if stated.range != Some(0..front_bytes.min(total)) {
                    let why = "the server sent another range than the requested one";
                    return Err(self.broken(why));
                }
                (total, front_bytes.min(total))
            }
            (206, None) => return Err(self.broken("the server does not say which range it sends")),
            // The whole object, if it is short enough.
            (200, _) => match head.content_length() {
                Ok(Some(length)) if length <= front_bytes => (length, length),
                _ => return Err(self.service.judge(&self.name, &head)),
            },
            (416, Some(stated)) if stated.total == Some(0) => (0, 0),
            (416, None) => {
                return self.ask_empty(response);
            }
            (300..=399, _) => {
                if let Some(location) = head.text("location") {
                    return Ok(FirstResponse::Redirect(location.to_owned()));
                }
                return Err(self.service.judge(&self.name, &head));
            }
            _ => {
                return Err(self.judge_body(response));
            }
        };
        if bytes > OBJECT_BYTES_MAX {
            let why = format!("the server says that it has {bytes} bytes, more than a file can have");
            let hint = "the server or a proxy in front of it is faulty";
            return Err(Judgement::fail(self.failed(ErrorKind::Corrupt, &why, hint)));
        }
        let front_bytes = usize::try_from(front_bytes).expect("it fits into 32 bits");
        let broken = BrokenFront {
            bytes,
            validator,
            front: Vec::with_capacity(front_bytes),
            front_bytes,
        };
        self.receive_front(broken, &mut response.body_mut().as_reader(), begun)
    }

    /// Requests the rest of the first bytes once. If the server refuses, or has another version, the next attempt
    /// begins again.
    fn ask_rest(&self, broken: BrokenFront, begun: &mut Option<BrokenFront>) -> Result<FirstResponse, Judgement> {
        let (name, validator) = (self.name.clone(), broken.validator.clone());
        let (origin, service) = (&self.origin, Arc::clone(&self.service));
        let opened = Self::known(name, broken.bytes, validator, origin, service, &self.client);
        let rest = broken.front.len() as u64..broken.front_bytes as u64;
        match opened.ask_for(&rest) {
            Ok((mut body, _)) => self.receive_front(broken, &mut body, begun),
            Err(Judgement { next, error })
                if next == Next::Fail || matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Precondition) =>
            {
                Err(Judgement::new(Next::Retry, error))
            }
            Err(judgement) => {
                *begun = Some(broken);
                Err(judgement)
            }
        }
    }

    /// Receives the missing first bytes of an object from a body.
    fn receive_front(
        &self,
        mut broken: BrokenFront,
        body: &mut impl Read,
        begun: &mut Option<BrokenFront>,
    ) -> Result<FirstResponse, Judgement> {
        let missing = broken.front_bytes - broken.front.len();
        let mut buffer = vec![0; missing.min(STREAM_BYTES)];
        let front = &mut broken.front;
        if let Err(judgement) = self.receive(body, missing, &mut buffer, |piece| front.extend_from_slice(piece)) {
            if broken.validator.as_ref().is_some_and(Validator::pins_reads) {
                *begun = Some(broken);
            }
            return Err(judgement);
        }
        let BrokenFront {
            bytes,
            validator,
            front,
            ..
        } = broken;
        Ok(FirstResponse::Found {
            bytes,
            validator,
            front,
        })
    }

    /// Checks whether an object is empty after the server refused a range without stating the length, as Ceph does.
    fn ask_empty(&self, refusal: http::Response<ureq::Body>) -> Result<FirstResponse, Judgement> {
        // An empty range sends no `Range` header.
        let response = self.ask(&(0..0))?;
        let head = HttpResponse::with_body(&response, b"");
        if (head.status, head.content_length()) != (200, Ok(Some(0))) {
            return Err(self.judge_body(refusal));
        }
        Ok(FirstResponse::Found {
            bytes: 0,
            validator: Validator::of(&head),
            front: Vec::new(),
        })
    }

    /// Sends one request for a range on the caller's thread.
    fn ask(&self, range: &Range<u64>) -> Result<http::Response<ureq::Body>, Judgement> {
        let mut head = Vec::new();
        if self.write_head(range, &mut head).map_err(Judgement::of)? == Head::Renew {
            let error = self.failed(ErrorKind::Transient, "the credentials have expired", "renew them");
            return Err(Judgement::new(Next::Renew, error));
        }
        self.send(&head, Vec::new())
    }

    /// Sends one request with a body on the caller's thread.
    pub(crate) fn send(&self, head: &[u8], body: Vec<u8>) -> Result<http::Response<ureq::Body>, Judgement> {
        let mut request = self.request(head, body).ok_or_else(|| {
            let why = "its name cannot be sent in a request";
            Judgement::fail(self.failed(ErrorKind::Invalid, why, "check the name"))
        })?;
        if !request.body().is_empty() {
            let settings = self.origin.settings();
            let more = settings.stored_max().saturating_sub(settings.stall_max);
            request.extensions_mut().insert(WorkTime(more));
        }
        self.origin.wait_turn();
        let response = self.client.run(request).map_err(Judgement::of)?;
        // The time to the first byte may include that of a new connection, so it is not noted.
        if matches!(response.status().as_u16(), 200 | 206) {
            self.origin.pace().note_good();
        }
        Ok(response)
    }

    /// Parses a request head into the client's request.
    fn request(&self, head: &[u8], body: Vec<u8>) -> Option<http::Request<Vec<u8>>> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        parsed.parse(head).ok()?.is_partial().eq(&false).then_some(())?;
        let url = format!("{}{}", self.origin.site(), parsed.path?);
        let mut request = http::Request::builder().method(parsed.method?).uri(url);
        for header in &*parsed.headers {
            let mut value = http::HeaderValue::from_bytes(header.value).ok()?;
            value.set_sensitive(true);
            request = request.header(header.name, value);
        }
        request.body(body).ok()
    }

    /// Judges an error response with the beginning of its body.
    pub(crate) fn judge_body(&self, mut response: http::Response<ureq::Body>) -> Judgement {
        let deadline = Instant::now() + ERROR_PATIENCE;
        let (mut body, mut filled) = (vec![0; ERROR_BYTES_MAX], 0);
        let mut reader = response.body_mut().as_reader();
        // If the body cannot be read, or not in time, the part received so far is judged.
        while filled < body.len() && Instant::now() < deadline {
            match reader.read(&mut body[filled..]) {
                Ok(0) | Err(_) => break,
                Ok(read) => filled += read,
            }
        }
        drop(reader);
        body.truncate(filled);
        self.service
            .judge(&self.name, &HttpResponse::with_body(&response, &body))
    }

    /// Repeats an attempt as [`persist`] does.
    pub(crate) fn persist<T>(&self, attempt: impl FnMut(&mut Backoff) -> Result<T, Judgement>) -> Result<(T, u32)> {
        persist(&self.origin, || self.service.renew(), attempt)
    }

    fn broken(&self, why: &str) -> Judgement {
        let hint = "check the network and the server";
        Judgement::new(Next::Retry, self.failed(ErrorKind::Transient, why, hint))
    }
}
