//! An open object on a web server: one version of it, read in ranges.
//!
//! Each request names the version (`If-Match`), and each response is checked: status, range, length and version. So a
//! read returns bytes of the opened version or an error. If the server states no version, only the bytes of the first
//! response can be read: a second response might be of another version.

mod blocking;

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use straightway_core::{Direction, Error, ErrorKind, Extent, Object, Result, Survey};
use straightway_io::{
    Handle,
    store::{Tag, own_handle},
};

use crate::{
    checksum::{Checksum, crc64nvme},
    client::Client,
    origin::Origin,
    response::{BadHeader, HttpResponse},
    service::{Head, Judgement, Next, Service},
    validator::Validator,
};

pub use blocking::FirstResponse;

/// The most bytes of an error's body that are read for [`Service::judge`].
pub(crate) const ERROR_BYTES_MAX: usize = 16 << 10;

/// The timeout for the body of an error.
pub(crate) const ERROR_PATIENCE: Duration = Duration::from_secs(2);

/// The longest object: the largest file offset of Linux.
pub const OBJECT_BYTES_MAX: u64 = i64::MAX as u64;

/// An open object.
pub struct Remote {
    name: String,
    bytes: u64,
    validator: Option<Validator>,
    origin: Arc<Origin>,
    service: Arc<dyn Service>,
    client: Client,
    /// The operation that its errors name: "read" or "write".
    operation: &'static str,
    /// Its first bytes, received when it was opened.
    front: Vec<u8>,
}

impl Remote {
    /// An object of known length and version, for example from a listing. No request is sent.
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

    /// The same object as the target of an upload.
    pub(crate) fn into_target(self) -> Self {
        let operation = "write";
        Self { operation, ..self }
    }

    /// Opens an object with a request for its first `front_bytes`. With a validator, only that version is opened.
    pub fn open(
        name: String,
        validator: Option<Validator>,
        origin: &Arc<Origin>,
        service: Arc<dyn Service>,
        client: &Client,
        front_bytes: u32,
    ) -> Result<Self> {
        let mut remote = Self::known(name, 0, validator, origin, service, client);
        match remote.first_response(front_bytes)? {
            FirstResponse::Found {
                bytes,
                validator,
                front,
            } => {
                remote.bytes = bytes;
                remote.validator = validator;
                remote.front = front;
                Ok(remote)
            }
            FirstResponse::Redirect(_) => {
                let why = "the server redirects elsewhere";
                Err(remote.failed(ErrorKind::Unsupported, why, "use the address that it redirects to"))
            }
        }
    }

    /// The same object with the length, version and first bytes that [`first_response`](Self::first_response) returned.
    #[must_use]
    pub fn found(self, bytes: u64, validator: Option<Validator>, front: Vec<u8>) -> Self {
        Self {
            bytes,
            validator,
            front,
            ..self
        }
    }

    /// Its server.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Its service.
    pub fn service(&self) -> &Arc<dyn Service> {
        &self.service
    }

    /// Its name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The range of `bytes` at `offset`, cut to the end of the object.
    pub(crate) fn range(&self, offset: u64, bytes: usize) -> Range<u64> {
        let end = offset.saturating_add(bytes as u64).min(self.bytes);
        offset..end.max(offset)
    }

    /// The bytes of a range that were received when the object was opened, if only those can be read: the server states
    /// no version of the object. `None` if a request is needed.
    pub(crate) fn kept(&self, range: &Range<u64>) -> Result<Option<&[u8]>> {
        if self.validator.is_some() {
            return Ok(None);
        }
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.front.get(at(range.start)..at(range.end));
        bytes.map(Some).ok_or_else(|| {
            let why = "the server sends neither an ETag nor a Last-Modified for it, so two versions could be mixed";
            let hint = "let the server send one of them, or download it by other means";
            self.failed(ErrorKind::Unsupported, why, hint)
        })
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
            write!(out, "Range: bytes={}-{}\r\n", range.start, range.end - 1).expect("memory takes all");
        }
        out.extend_from_slice(b"\r\n");
        Ok(Head::Ready)
    }

    /// Whether a range is all of the object.
    fn is_whole(&self, range: &Range<u64>) -> bool {
        *range == (0..self.bytes)
    }

    /// The checksum of the body that follows, if the response states it: of the whole object, or of a stored part that
    /// is exactly this range.
    pub(crate) fn checksum(&self, response: &HttpResponse<'_>, range: &Range<u64>) -> Option<Checksum> {
        if range.is_empty() {
            return None;
        }
        if self.is_whole(range) {
            return self.service.checksum(response);
        }
        let is_range = response.status == 206;
        is_range.then(|| self.service.part_checksum(response)).flatten()
    }

    /// The error of a checksum mismatch.
    pub(crate) fn damaged(&self) -> Error {
        let why = "its bytes do not match the checksum that the server stores for it";
        let hint = "the network, a proxy or the server damages it: read it another way, or upload it again";
        self.failed(ErrorKind::Corrupt, why, hint)
    }

    /// Checks that a response is the requested range. Its body is then as long as the range.
    pub(crate) fn check(&self, response: &HttpResponse<'_>, range: &Range<u64>) -> Result<(), Judgement> {
        let length = range.end - range.start;
        let wrong = |why: String| {
            let hint = "the server or a proxy in front of it is faulty";
            Judgement::new(Next::Retry, self.failed(ErrorKind::Corrupt, &why, hint))
        };
        let bad = |BadHeader(name): BadHeader| wrong(format!("the server's {name} cannot be read"));
        let is_whole = self.is_whole(range);
        let is_object = matches!(response.status, 200 | 206);
        let doubt = self.validator.as_ref().and_then(|v| v.doubt(response));
        if let Some(why) = doubt.filter(|_| is_object) {
            // The request was conditional on this version, so this may be the response to another request. On a new
            // connection, a server whose object was replaced rejects the condition.
            let error = self.failed(ErrorKind::Precondition, why, "read it again");
            return Err(Judgement::new(Next::Retry, error));
        }
        match response.status {
            206 => {}
            200 if is_whole => {}
            _ => return Err(self.service.judge(&self.name, response)),
        }
        self.check_encoding(response)?;
        if response.status == 206 {
            let stated = response.content_range().map_err(bad)?;
            let stated = stated.ok_or_else(|| wrong("the server does not say which range it sends".to_owned()))?;
            let fits_total = stated.total.is_none_or(|total| total == self.bytes);
            if stated.range.as_ref() != Some(range) || !fits_total {
                let asked = format!("{}-{}/{}", range.start, range.end - 1, self.bytes);
                return Err(wrong(format!(
                    "the server sent another range than the requested one ({asked})"
                )));
            }
        }
        match response.content_length().map_err(bad)? {
            Some(stated) if stated != length => Err(wrong(format!(
                "the server sent {stated} bytes instead of the requested {length}"
            ))),
            _ => Ok(()),
        }
    }

    /// Fails if the server encoded the object on the way, which was not requested: the bytes would be others. A range
    /// is then a range of the encoded form.
    fn check_encoding(&self, response: &HttpResponse<'_>) -> Result<(), Judgement> {
        if !response.is_encoded() || self.service.stores_encoded() {
            return Ok(());
        }
        let why = "the server sent it compressed, which was not requested";
        let hint = "download it by other means";
        Err(Judgement::fail(self.failed(ErrorKind::Unsupported, why, hint)))
    }

    /// The same as [`check`](Self::check) for a body that is received unchanged: it must not be chunked.
    pub(crate) fn check_plain(&self, response: &HttpResponse<'_>, range: &Range<u64>) -> Result<(), Judgement> {
        self.check(response, range)?;
        if response.is_plain() && response.content_length() == Ok(Some(range.end - range.start)) {
            return Ok(());
        }
        let why = "the server sends ranges in chunks or without their length";
        let hint = "download it by other means";
        Err(Judgement::fail(self.failed(ErrorKind::Unsupported, why, hint)))
    }

    /// An error about it.
    pub(crate) fn failed(&self, kind: ErrorKind, why: &str, hint: &str) -> Error {
        Error::new(kind, self.operation, &self.name, why).with_hint(hint)
    }
}

impl Handle for Remote {
    fn survey(&self, _: Option<Extent>, _: Direction) -> Result<Survey> {
        Ok(self.origin.site().survey())
    }

    fn object(&self) -> Object {
        Object::new(self.name.clone(), self.bytes)
    }

    /// Without a stated version, an object that is in memory is identified by its bytes.
    fn tag(&self) -> Option<Tag> {
        let is_kept = self.bytes > 0 && self.front.len() as u64 == self.bytes;
        let sum = || format!("crc64nvme:{:016x}", crc64nvme(&self.front));
        let text = match &self.validator {
            Some(validator) => Some(validator.text().to_owned()),
            None => is_kept.then(sum),
        };
        text.map(Tag::Text)
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.bytes) else {
            let message = format!("it ends at byte {}", self.bytes);
            return Err(Error::new(ErrorKind::Corrupt, "read", &self.name, message));
        };
        if bytes.is_empty() {
            return Ok(());
        }
        if end <= self.front.len() as u64 {
            let start = usize::try_from(offset).expect("it lies in memory");
            bytes.copy_from_slice(&self.front[start..start + bytes.len()]);
            return Ok(());
        }
        self.kept(&(offset..end))?;
        self.fetch(&(offset..end), bytes)
    }

    fn pins_reads(&self) -> bool {
        match &self.validator {
            Some(validator) => validator.pins_reads(),
            // All that can be read is in memory.
            None => self.bytes > 0,
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.bytes > 0 && self.validator.is_some() {
            return self.fetch(&(0..1), &mut [0]);
        }
        // An object without a version is compared by its bytes.
        let front_bytes = u32::try_from(self.front.len()).unwrap_or(u32::MAX);
        match self.first_response(front_bytes)? {
            FirstResponse::Found { bytes, front, .. } if bytes == self.bytes && front == self.front => Ok(()),
            _ => Err(self.failed(ErrorKind::Precondition, "it was replaced", "read it again")),
        }
    }
}

impl Remote {
    /// Downcasts a handle to a remote object.
    pub fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        own_handle(handle)
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
