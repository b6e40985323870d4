//! An open object on a web server: one version of it, read in ranges.
//!
//! Each request names the version (`If-Match`), and each answer is checked: status, range, length and version. So a read
//! gives the bytes of the version that was opened, or an error.

use std::{any::Any, fmt, io::Read, ops::Range, sync::Arc};

use straightway_core::{Error, Kind, Object, Reason, Result, Survey};
use straightway_io::{Handle, store::Tag};

use crate::{
    answer::{Answer, BadHeader},
    backoff::Backoff,
    client::Client,
    origin::Origin,
    service::{Head, Judgement, Next, Service},
};

/// What is read of the body of an answer without payload, for [`Service::judge`].
pub(crate) const ERROR_BYTES_MAX: usize = 16 << 10;

/// What is read at once on the caller's thread.
const STREAM_BYTES: usize = 64 << 10;

/// Times that credentials are renewed for one read.
pub(crate) const RENEWALS_MAX: u32 = 2;

/// What tells versions of an object apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validator {
    /// An `ETag`, with its quotes. A weak one (`W/"…"`) is compared with that of each answer, but not sent.
    Tag(String),
    /// A `Last-Modified`, where there is no `ETag`.
    Modified(String),
}

impl Validator {
    /// What an answer says of the version.
    pub fn of(answer: &Answer<'_>) -> Option<Self> {
        let tag = answer.text("etag").filter(|tag| !tag.is_empty());
        let modified = answer.text("last-modified");
        let tag = tag.map(|tag| Self::Tag(tag.to_owned()));
        tag.or_else(|| modified.map(|time| Self::Modified(time.to_owned())))
    }

    fn is_weak(&self) -> bool {
        matches!(self, Self::Tag(tag) if tag.starts_with("W/"))
    }

    /// The condition that a request has.
    fn write(&self, out: &mut Vec<u8>) {
        let (name, value) = match self {
            // It never matches `If-Match`.
            Self::Tag(_) if self.is_weak() => return,
            Self::Tag(tag) => ("If-Match", tag),
            Self::Modified(time) => ("If-Unmodified-Since", time),
        };
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }

    /// Whether an answer is of another version. One that does not say was conditional on this one.
    fn contradicts(&self, answer: &Answer<'_>) -> bool {
        let (own, told) = match self {
            Self::Tag(tag) => (tag, answer.header("etag")),
            Self::Modified(time) => (time, answer.header("last-modified")),
        };
        told.is_some_and(|told| told != own.as_bytes())
    }
}

/// An open object.
pub struct Remote {
    name: String,
    bytes: u64,
    validator: Option<Validator>,
    origin: Arc<Origin>,
    service: Arc<dyn Service>,
    client: Client,
    /// Its first bytes, which came when it was opened.
    front: Vec<u8>,
}

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

impl Remote {
    /// An object of known length and version, as a listing gives them. No request is made.
    pub fn known(
        name: String,
        bytes: u64,
        validator: Option<Validator>,
        origin: &Arc<Origin>,
        service: Arc<dyn Service>,
        client: &Client,
    ) -> Self {
        Self {
            name,
            bytes,
            validator,
            origin: Arc::clone(origin),
            service,
            client: client.clone(),
            front: Vec::new(),
        }
    }

    /// Opens an object by its first request, which asks for `front_bytes`. With a validator, only that version is opened.
    pub fn open(
        name: String,
        validator: Option<Validator>,
        origin: &Arc<Origin>,
        service: Arc<dyn Service>,
        client: &Client,
        front_bytes: u32,
    ) -> Result<Self> {
        let mut remote = Self::known(name, 0, validator, origin, service, client);
        match remote.first(front_bytes)? {
            First::Found {
                bytes,
                validator,
                front,
            } => {
                remote.bytes = bytes;
                remote.validator = validator;
                remote.front = front;
                Ok(remote)
            }
            First::Redirect(_) => {
                let why = "the server redirects elsewhere";
                Err(remote.failed(
                    Kind::Unsupported,
                    why,
                    "use the address that it redirects to",
                ))
            }
        }
    }

    /// The same object with its length, version and first bytes, which [`first`](Self::first) found.
    #[must_use]
    pub fn found(self, bytes: u64, validator: Option<Validator>, front: Vec<u8>) -> Self {
        Self {
            bytes,
            validator,
            front,
            ..self
        }
    }

    /// Sends the first request for an object of unknown length.
    pub fn first(&self, front_bytes: u32) -> Result<First> {
        let front_bytes = u64::from(front_bytes.max(1));
        let (first, _) = self.persist(|_| self.ask_first(front_bytes))?;
        Ok(first)
    }

    /// The server that it is on.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// How it is asked for.
    pub fn service(&self) -> &Arc<dyn Service> {
        &self.service
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The part of `bytes` from `offset` on that is in the object.
    pub(crate) fn range(&self, offset: u64, bytes: usize) -> Range<u64> {
        let end = offset.saturating_add(bytes as u64).min(self.bytes);
        offset..end.max(offset)
    }

    /// Writes the head of a request for a range into `out`.
    pub(crate) fn write_head(&self, range: &Range<u64>, out: &mut Vec<u8>) -> Result<Head> {
        use std::io::Write as _;

        out.clear();
        if self.service.head(out)? == Head::Renew {
            return Ok(Head::Renew);
        }
        if let Some(validator) = &self.validator {
            validator.write(out);
        }
        if !range.is_empty() {
            write!(out, "Range: bytes={}-{}\r\n", range.start, range.end - 1)
                .expect("memory takes all");
        }
        out.extend_from_slice(b"\r\n");
        Ok(Head::Ready)
    }

    /// Checks that an answer is the range that was asked for. Its body is then as long as the range.
    pub(crate) fn check(&self, answer: &Answer<'_>, range: &Range<u64>) -> Result<(), Judgement> {
        let length = range.end - range.start;
        let wrong = |why: String| {
            let hint = "the server or a proxy in front of it is faulty";
            Judgement::new(Next::Retry, self.failed(Kind::Corrupt, &why, hint))
        };
        let bad = |BadHeader(name): BadHeader| wrong(format!("the server's {name} cannot be read"));
        let is_whole = *range == (0..self.bytes);
        match answer.status {
            206 => {}
            200 if is_whole => {}
            _ => return Err(self.service.judge(&self.name, answer)),
        }
        if self
            .validator
            .as_ref()
            .is_some_and(|v| v.contradicts(answer))
        {
            let why = "it was replaced while it was read";
            return Err(Judgement::fail(self.failed(
                Kind::Corrupt,
                why,
                "read it again",
            )));
        }
        if answer.status == 206 {
            let told = answer.content_range().map_err(bad)?;
            let told = told
                .ok_or_else(|| wrong("the server does not say which range it sends".to_owned()))?;
            let fits_total = told.total.is_none_or(|total| total == self.bytes);
            if told.range.as_ref() != Some(range) || !fits_total {
                let asked = format!("{}-{}/{}", range.start, range.end - 1, self.bytes);
                return Err(wrong(format!(
                    "the server sends another range than the one that was asked for ({asked})"
                )));
            }
        }
        match answer.content_length().map_err(bad)? {
            Some(told) if told != length => Err(wrong(format!(
                "the server sends {told} bytes where {length} were asked for"
            ))),
            _ => Ok(()),
        }
    }

    /// The same, for a body that is received as it is: it must be neither compressed nor cut into chunks.
    pub(crate) fn check_plain(
        &self,
        answer: &Answer<'_>,
        range: &Range<u64>,
    ) -> Result<(), Judgement> {
        self.check(answer, range)?;
        if answer.is_plain() && answer.content_length() == Ok(Some(range.end - range.start)) {
            return Ok(());
        }
        let why = "the server sends ranges in chunks, compressed, or without their length";
        let hint = "download it by other means";
        Err(Judgement::fail(self.failed(Kind::Unsupported, why, hint)))
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
        let (_, retries) = self.persist(|backoff| {
            let rest = range.start + got as u64..range.end;
            let mut body = self.ask_for(&rest)?;
            let mut missing = rest.end - rest.start;
            while missing > 0 {
                let most = usize::try_from(missing).unwrap_or(usize::MAX);
                let most = most.min(buffer.len());
                let read = match body.read(&mut buffer[..most]) {
                    Ok(0) => return Err(self.broken("the server closed the connection".to_owned())),
                    Ok(read) => read,
                    Err(error) => return Err(self.broken(error.to_string())),
                };
                take(got, &buffer[..read]);
                backoff.reset();
                got += read;
                missing -= read as u64;
            }
            Ok(())
        })?;
        Ok(retries)
    }

    /// Reads a range on the caller's thread.
    fn fetch(&self, range: &Range<u64>, into: &mut [u8]) -> Result<()> {
        let copy = |at: usize, bytes: &[u8]| into[at..at + bytes.len()].copy_from_slice(bytes);
        self.stream(range, copy).map(|_| ())
    }

    /// Asks for a range once. Its body is what was asked for.
    fn ask_for(&self, range: &Range<u64>) -> Result<ureq::BodyReader<'static>, Judgement> {
        let answer = self.ask(range)?;
        let headers = headers(&answer);
        let head = Answer::new(answer.status().as_u16(), &headers, b"");
        if !matches!(head.status, 200 | 206) {
            drop(headers);
            return Err(self.judge_body(answer));
        }
        self.check(&head, range)?;
        drop(headers);
        Ok(answer.into_body().into_reader())
    }

    fn ask_first(&self, front_bytes: u64) -> Result<First, Judgement> {
        let mut answer = self.ask(&(0..front_bytes))?;
        let headers = headers(&answer);
        let head = Answer::new(answer.status().as_u16(), &headers, b"");
        let range = head.content_range();
        let range =
            range.map_err(|_| self.broken("its Content-Range cannot be read".to_owned()))?;
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
                    return Err(self.broken(why.to_owned()));
                }
                (total, front_bytes.min(total))
            }
            // The whole object, where that is short enough.
            (200, _) => match head.content_length() {
                Ok(Some(length)) if length <= front_bytes => (length, length),
                _ => return Err(self.service.judge(&self.name, &head)),
            },
            (416, Some(told)) if told.total == Some(0) => (0, 0),
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
        read.map_err(|error| self.broken(error.to_string()))?;
        Ok(First::Found {
            bytes,
            validator,
            front,
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
        let request = self.request(&head).ok_or_else(|| {
            let why = "its name cannot be sent in a request";
            Judgement::fail(self.failed(Kind::Invalid, why, "check the name"))
        })?;
        self.client.run(request).map_err(Judgement::of)
    }

    /// A request head as the client has it.
    fn request(&self, head: &[u8]) -> Option<http::Request<Vec<u8>>> {
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
        request.body(Vec::new()).ok()
    }

    /// What the service says of an answer without payload.
    fn judge_body(&self, mut answer: http::Response<ureq::Body>) -> Judgement {
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
    fn persist<T>(
        &self,
        mut attempt: impl FnMut(&mut Backoff) -> Result<T, Judgement>,
    ) -> Result<(T, u32)> {
        let attempts_max = self.origin.network().settings().attempts_max;
        let mut backoff = Backoff::unique(attempts_max);
        let (mut renewals, mut retries) = (0, 0);
        loop {
            let Judgement { next, error } = match attempt(&mut backoff) {
                Ok(done) => return Ok((done, retries)),
                Err(judgement) => judgement,
            };
            let mut wait = match next {
                Next::Fail => None,
                Next::Renew if renewals == RENEWALS_MAX => None,
                Next::Renew | Next::Retry | Next::SlowDown(_) => backoff.next_wait(),
            };
            match next {
                Next::Renew if wait.is_some() => {
                    renewals += 1;
                    self.service.renew()?;
                }
                Next::SlowDown(asked) => {
                    self.origin
                        .pace()
                        .slow_down(std::time::Instant::now(), asked);
                    wait = wait.map(|wait| wait.max(asked.unwrap_or_default()));
                }
                _ => {}
            }
            let Some(wait) = wait else { return Err(error) };
            retries += 1;
            std::thread::sleep(wait);
        }
    }

    fn broken(&self, why: String) -> Judgement {
        let hint = "check the network and the server";
        Judgement::new(Next::Retry, self.failed(Kind::Transient, &why, hint))
    }

    /// An error about it.
    pub(crate) fn failed(&self, kind: Kind, why: &str, hint: &str) -> Error {
        Error::new(kind, "read", &self.name, why).with_hint(hint)
    }
}

fn headers<B>(answer: &http::Response<B>) -> Vec<httparse::Header<'_>> {
    answer
        .headers()
        .iter()
        .map(|(name, value)| httparse::Header {
            name: name.as_str(),
            value: value.as_bytes(),
        })
        .collect()
}

impl Handle for Remote {
    fn object(&self) -> Object {
        Object::new(self.name.clone(), self.bytes)
    }

    fn tag(&self) -> Option<Tag> {
        match &self.validator {
            Some(Validator::Tag(text) | Validator::Modified(text)) => Some(Tag::Text(text.clone())),
            None => None,
        }
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.bytes) else {
            let message = format!("it ends at byte {}", self.bytes);
            return Err(Error::new(Kind::Corrupt, "read", &self.name, message));
        };
        if bytes.is_empty() {
            return Ok(());
        }
        if end <= self.front.len() as u64 {
            let start = usize::try_from(offset).expect("it lies in memory");
            bytes.copy_from_slice(&self.front[start..start + bytes.len()]);
            return Ok(());
        }
        self.fetch(&(offset..end), bytes)
    }

    fn pins_reads(&self) -> bool {
        let is_condition = |validator: &Validator| !validator.is_weak();
        self.validator.as_ref().is_some_and(is_condition)
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.bytes > 0 {
            return self.fetch(&(0..1), &mut [0]);
        }
        match self.first(1)? {
            First::Found { bytes: 0, .. } => Ok(()),
            _ => Err(self.failed(Kind::Corrupt, "it was replaced", "read it again")),
        }
    }
}

impl Remote {
    /// The object that a handle is, if it is one.
    pub fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
        any.downcast().ok()
    }

    /// What the planner should know of it.
    pub fn survey(&self) -> Survey {
        Survey::socket(if self.origin.site().is_tls {
            Reason::Tls
        } else {
            Reason::Tcp
        })
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .field("validator", &self.validator)
            .finish_non_exhaustive()
    }
}
