//! An open object on a web server: one version of it, read in ranges.
//!
//! Each request names the version (`If-Match`), and each answer is checked: status, range, length and version. So a
//! read gives the bytes of the version that was opened, or an error.

mod blocking;

use std::{any::Any, fmt, ops::Range, sync::Arc};

use straightway_core::{Error, Kind, Object, Result, Survey};
use straightway_io::{Handle, store::Tag};

use crate::{
    answer::{Answer, BadHeader},
    checksum::Checksum,
    client::Client,
    origin::Origin,
    service::{Head, Judgement, Next, Service},
    validator::Validator,
};

pub use blocking::First;
pub(crate) use blocking::headers;

/// What is read of the body of an answer without payload, for [`Service::judge`].
pub(crate) const ERROR_BYTES_MAX: usize = 16 << 10;

/// Times that credentials are renewed for one read.
pub(crate) const RENEWALS_MAX: u32 = 2;

/// An open object.
pub struct Remote {
    name: String,
    bytes: u64,
    validator: Option<Validator>,
    origin: Arc<Origin>,
    service: Arc<dyn Service>,
    client: Client,
    /// What errors say could not be done with it.
    operation: &'static str,
    /// Its first bytes, which came when it was opened.
    front: Vec<u8>,
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
            operation: "read",
            front: Vec::new(),
        }
    }

    /// The same as an object in the making.
    pub(crate) fn into_target(self) -> Self {
        let operation = "write";
        Self { operation, ..self }
    }

    /// Opens an object by its first request, which asks for `front_bytes`. With a validator, only that version is
    /// opened.
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
        let is_whole = self.is_whole(range) && self.service.asks_whole();
        if !range.is_empty() && !is_whole {
            write!(out, "Range: bytes={}-{}\r\n", range.start, range.end - 1)
                .expect("memory takes all");
        }
        out.extend_from_slice(b"\r\n");
        Ok(Head::Ready)
    }

    /// Whether a range is all of the object.
    fn is_whole(&self, range: &Range<u64>) -> bool {
        *range == (0..self.bytes)
    }

    /// The checksum of what follows an answer, where that is the whole object.
    pub(crate) fn checksum(&self, answer: &Answer<'_>, range: &Range<u64>) -> Option<Checksum> {
        let is_told = self.is_whole(range) && self.bytes > 0;
        is_told.then(|| self.service.checksum(answer)).flatten()
    }

    /// The error of bytes that do not have the checksum of their object.
    pub(crate) fn damaged(&self) -> Error {
        let why = "its bytes do not have the checksum that the server keeps of it";
        let hint = "the network, a proxy or the server damages it: read it another way, or upload it again";
        self.failed(Kind::Corrupt, why, hint)
    }

    /// Checks that an answer is the range that was asked for. Its body is then as long as the range.
    pub(crate) fn check(&self, answer: &Answer<'_>, range: &Range<u64>) -> Result<(), Judgement> {
        let length = range.end - range.start;
        let wrong = |why: String| {
            let hint = "the server or a proxy in front of it is faulty";
            Judgement::new(Next::Retry, self.failed(Kind::Corrupt, &why, hint))
        };
        let bad = |BadHeader(name): BadHeader| wrong(format!("the server's {name} cannot be read"));
        let is_whole = self.is_whole(range);
        let is_object = matches!(answer.status, 200 | 206);
        let differs = |validator: &Validator| validator.contradicts(answer);
        if is_object && self.validator.as_ref().is_some_and(differs) {
            // The server promised this version. It may be an answer to another request: asked again on a new
            // connection, a server whose object was replaced refuses the condition.
            let why = "it was replaced while it was read";
            let error = self.failed(Kind::Corrupt, why, "read it again");
            return Err(Judgement::new(Next::Retry, error));
        }
        match answer.status {
            206 => {}
            200 if is_whole => {}
            _ => return Err(self.service.judge(&self.name, answer)),
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

    /// An error about it.
    pub(crate) fn failed(&self, kind: Kind, why: &str, hint: &str) -> Error {
        Error::new(kind, self.operation, &self.name, why).with_hint(hint)
    }
}

impl Handle for Remote {
    fn object(&self) -> Object {
        Object::new(self.name.clone(), self.bytes)
    }

    fn tag(&self) -> Option<Tag> {
        let validator = self.validator.as_ref()?;
        Some(Tag::Text(validator.text().to_owned()))
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
        self.origin.site().survey()
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
