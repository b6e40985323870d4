//! Multipart uploads, whose objects are not visible until they are completed.
//!
//! Each part is sent with its CRC-64/NVME, computed from memory. The completion is sent with the CRC of the whole
//! object, combined from those of the parts. So the service stores exactly the bytes that were in memory, or no object.

use std::{ffi::OsStr, fmt, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::Method;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    parallel,
    store::{Condition, Draft, Handle, own_draft},
};
use straightway_net::{Head, HttpResponse, Judgement, Next, PartTag, Service, StoredPart, Upload, UploadPart};

use crate::{
    bucket::{Bucket, BucketRequest, RequestContent},
    refusal::Refusal,
    s3::{S3, fresh_nonce},
    starting::StartedUpload,
    whole_sum::whole_sum,
    writing::{DIGEST, SUM, encoded},
    xml::escaped,
};

/// The usual part size: that of a lane's slot over a network. S3 requires at least 5 MiB.
pub(crate) const PART_BYTES: u64 = straightway_net::TUNING.chunk_bytes;

/// Longer parts are multiples of this size.
pub(crate) const PART_STEP_BYTES: u64 = 1 << 20;

/// S3's limit on the parts of an object.
pub(crate) const PARTS_MAX: u64 = 10_000;

/// The longest part: the limit of one write over a socket.
const PART_BYTES_MAX: u64 = 1 << 30;

/// The part size of an object of `bytes`; `None` if it would need too many parts.
fn part_bytes(bytes: u64) -> Option<u64> {
    let least = bytes.div_ceil(PARTS_MAX).next_multiple_of(PART_STEP_BYTES);
    Some(least.max(PART_BYTES)).filter(|part| *part <= PART_BYTES_MAX)
}

/// An object being written.
#[derive(Debug)]
pub(crate) struct UploadDraft {
    store: S3,
    key: String,
    upload: Arc<Upload>,
    /// The multipart upload; `None` if the object is put by one request.
    started: Option<StartedUpload>,
    nonce: String,
    /// Its final length.
    end: u64,
    is_over: bool,
}

impl S3 {
    /// Begins to write an object.
    pub(crate) fn begin_upload(&self, name: &OsStr, bytes: u64) -> Result<UploadDraft> {
        let key = self.own_key(name)?;
        let full_name = self.describe(name);
        let Some(part_bytes) = part_bytes(bytes) else {
            let most = straightway_core::Bytes(PARTS_MAX * PART_BYTES_MAX);
            let message = format!("it would have more than {PARTS_MAX} parts");
            return Err(Error::new(ErrorKind::Invalid, "write", full_name, message)
                .with_hint(format!("split it: an object may have up to {most}")));
        };
        let nonce = fresh_nonce();
        let started = if bytes > part_bytes {
            Some(self.initiate(&key, &full_name, &nonce, true)?)
        } else {
            None
        };
        let service = Arc::new(PartService {
            bucket: Arc::clone(self.bucket()),
            key: key.clone(),
            // For objects put by one request, `put_object` adds the digest.
            needs_digest: started.is_some() && self.needs_digest(true),
            id: started.as_ref().map(|started| started.id.clone()).unwrap_or_default(),
        });
        let upload = Upload::new(
            full_name,
            bytes,
            part_bytes,
            self.origin(),
            service,
            &self.bucket().client,
        );
        Ok(UploadDraft {
            store: self.clone(),
            key,
            upload: Arc::new(upload),
            started,
            nonce,
            end: bytes,
            is_over: false,
        })
    }
}

impl UploadDraft {
    /// The name of its object in errors.
    pub(crate) fn name(&self) -> &str {
        self.upload.name()
    }

    /// Whether no object with its name exists.
    fn is_new(&self) -> Result<bool> {
        let headers = self.store.headers_of(&self.key, self.name())?;
        Ok(headers.is_none())
    }

    /// Completes the object, which makes it visible.
    pub(crate) fn complete(mut self) -> Result<()> {
        let Some(started) = &self.started else {
            self.is_over = true;
            let mut bytes = self.upload.take_buffered();
            bytes.truncate(usize::try_from(self.end).unwrap_or(usize::MAX));
            let put = (&*self.key, self.name(), &*bytes);
            return self.store.put_as(&self.nonce, put, &Condition::Always).map(drop);
        };
        let parts = self.upload.finish(self.end)?;
        // Before the completion, while the own upload is still listed.
        self.store.abort_lost(&self.key, self.name(), started);
        let sum = encoded(whole_sum(
            parts.iter().map(|StoredPart { part, .. }| (part.sum, part.bytes)),
        ));
        let takes_sums = self.store.bucket().write_support.takes_sums();
        let done = self.store.complete(&Completion {
            key: &self.key,
            name: self.name(),
            id: &started.id,
            nonce: &self.nonce,
            parts: completion(&parts, takes_sums),
            sum: takes_sums.then_some(&sum),
        });
        // If the completion failed, `drop` aborts the upload.
        self.is_over = done.is_ok();
        done
    }
}

/// The completion of an upload.
pub(crate) struct Completion<'a> {
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    pub(crate) id: &'a str,
    pub(crate) nonce: &'a str,
    /// The parts, in XML.
    pub(crate) parts: String,
    /// The checksum of the whole object.
    pub(crate) sum: Option<&'a str>,
}

impl S3 {
    /// Completes an upload, which makes its object visible.
    pub(crate) fn complete(&self, done: &Completion<'_>) -> Result<()> {
        let headers: &[_] = match done.sum {
            Some(sum) => &[(SUM, sum), ("x-amz-checksum-type", "FULL_OBJECT")],
            None => &[],
        };
        let body = format!(
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{}</CompleteMultipartUpload>",
            done.parts
        );
        let request = BucketRequest {
            query: &[("uploadId", done.id)],
            // A missing upload may have been completed by an earlier attempt whose response was lost.
            expected: &[200, 404],
            ..BucketRequest::new(Method::POST, "write", done.name, done.key)
        };
        let content = RequestContent {
            headers,
            body: body.as_bytes(),
            ..RequestContent::default()
        };
        let response = self.bucket().send(&request, &content)?;
        if response.status() == 200 {
            let body = response.body();
            if body.windows(RESULT.len()).any(|window| window == RESULT) {
                return Ok(());
            }
            return Err(self.not_s3("write", OsStr::new(done.key)));
        }
        if self.is_own(done.key, done.name, done.nonce)? {
            return Ok(());
        }
        let known = self.bucket().credentials.get()?;
        let request = self.bucket().request_context("write", done.name, known.source);
        Err(Refusal::of(&HttpResponse::of(&response)).error(&request))
    }
}

/// Commits drafts in order: the last one is the commit point. After an error the new objects are removed, unless
/// another writer has replaced them.
pub(crate) fn commit_in_order(drafts: Vec<Box<dyn Draft>>) -> Result<()> {
    let drafts = own(drafts)?;
    let mut is_new = vec![false; drafts.len()];
    if drafts.len() > 1 {
        // The last one is never removed: once it is visible, nothing has failed.
        let looked = parallel::try_each(drafts[..drafts.len() - 1].iter(), COMMITTERS_MAX, UploadDraft::is_new)?;
        is_new[..looked.len()].copy_from_slice(&looked);
    }
    let mut new: Vec<(S3, String, String, String)> = Vec::new();
    for (draft, is_new) in drafts.into_iter().zip(is_new) {
        let (store, key, nonce) = (draft.store.clone(), draft.key.clone(), draft.nonce.clone());
        let name = draft.name().to_owned();
        if let Err(error) = draft.complete() {
            for (store, key, name, nonce) in new {
                let _ = store.remove_own(&key, &name, &nonce);
            }
            return Err(error);
        }
        if is_new {
            new.push((store, key, name, nonce));
        }
    }
    Ok(())
}

/// Commits drafts in parallel.
pub(crate) fn commit_each(drafts: Vec<Box<dyn Draft>>) -> Result<()> {
    let drafts = own(drafts)?.into_iter();
    parallel::try_each(drafts, COMMITTERS_MAX, UploadDraft::complete).map(drop)
}

fn own(drafts: Vec<Box<dyn Draft>>) -> Result<Vec<UploadDraft>> {
    drafts.into_iter().map(own_draft::<UploadDraft>).collect()
}

/// The most parallel commits.
const COMMITTERS_MAX: usize = 16;

/// The root element of the response to a successful completion.
const RESULT: &[u8] = b"CompleteMultipartUploadResult";

/// The parts of an upload in the XML of its completion.
fn completion(parts: &[StoredPart], has_sums: bool) -> String {
    let part = |StoredPart { part, tag }: &StoredPart| {
        let (number, tag) = (part.number + 1, escaped(tag.text()).into_owned());
        let sum = if has_sums {
            let sum = encoded(part.sum);
            format!("<ChecksumCRC64NVME>{sum}</ChecksumCRC64NVME>")
        } else {
            String::new()
        };
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag>{sum}</Part>")
    };
    parts.iter().map(part).collect()
}

impl Draft for UploadDraft {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.upload) as _
    }

    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.upload.write_all_at(offset, bytes)
    }

    fn end_at(&mut self, bytes: u64) -> Result<()> {
        // An upload has at least one part.
        if bytes > self.upload.bytes() || bytes == 0 && self.started.is_some() {
            let message = format!("it was begun with 1 to {} bytes, and has {bytes}", self.upload.bytes());
            return Err(Error::new(ErrorKind::Invalid, "write", self.name(), message));
        }
        self.end = bytes;
        Ok(())
    }
}

impl Drop for UploadDraft {
    fn drop(&mut self) {
        if let Some(started) = self.started.as_ref().filter(|_| !self.is_over) {
            self.store.abort_lost(&self.key, self.name(), started);
            // An upload that cannot be aborted now is swept later.
            let _ = self.store.abort(&self.key, &started.id);
        }
    }
}

/// The service of lanes that write the parts of an upload.
struct PartService {
    bucket: Arc<Bucket>,
    key: String,
    id: String,
    /// Whether parts are sent with their MD5.
    needs_digest: bool,
}

impl Service for PartService {
    fn head(&self, _: &mut Vec<u8>) -> Result<Head> {
        let why = "it is still being written, and cannot be read before its commit";
        let name = self.bucket.describe(&self.key);
        Err(Error::new(ErrorKind::Unsupported, "read", name, why))
    }

    fn put_head(&self, part: &UploadPart, out: &mut Vec<u8>) -> Result<Head> {
        let Some(known) = self.bucket.credentials.ready() else {
            return Ok(Head::Renew);
        };
        let (name, number) = (self.bucket.describe(&self.key), (part.number + 1).to_string());
        let request = BucketRequest {
            query: &[("partNumber", &number), ("uploadId", &self.id)],
            ..BucketRequest::new(Method::PUT, "write", &name, &self.key)
        };
        let sum = encoded(part.sum);
        let digest = part.digest.map(|digest| BASE64_STANDARD.encode(digest));
        let digest = digest.as_ref().map(|digest| (DIGEST, digest.as_str()));
        let sum = self.bucket.write_support.takes_sums().then_some((SUM, sum.as_str()));
        let headers: Vec<_> = digest.into_iter().chain(sum).collect();
        let parts = self.bucket.signed(&request, &headers, &known)?;
        self.bucket.write_head(&parts, out);
        out.extend_from_slice(format!("content-length: {}\r\n\r\n", part.bytes).as_bytes());
        Ok(Head::Ready)
    }

    fn wants_digest(&self) -> bool {
        self.needs_digest || !(self.bucket.has_tls() || self.bucket.write_support.takes_sums())
    }

    fn stored(&self, name: &str, part: &UploadPart, response: &HttpResponse<'_>) -> Result<PartTag, Judgement> {
        let wrong = |why: &str| {
            let hint = "the service or a proxy in front of it is faulty";
            let error = Error::new(ErrorKind::Corrupt, "write", name, why).with_hint(hint);
            Judgement::new(Next::Retry, error)
        };
        if response.text(SUM).is_some_and(|sum| sum != encoded(part.sum)) {
            return Err(wrong("the service stored other bytes than were sent"));
        }
        let tag = response.text("etag").and_then(PartTag::new);
        tag.ok_or_else(|| wrong("the service sent no valid ETag for a part"))
    }

    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        let source = self.bucket.credentials.source();
        let refusal = Refusal::of(response);
        let Judgement { next, error } = refusal.judge(&self.bucket.request_context("write", name, source));
        if refusal.is_unimplemented() && self.bucket.write_support.takes_sums() {
            self.bucket.write_support.refuse_sums();
            // A part that has no MD5 is not sent again without a checksum. Later parts have an MD5.
            let is_protected = self.bucket.has_tls() || self.needs_digest;
            let next = if is_protected { Next::Retry } else { Next::Fail };
            let hint = "write it again: from now on an MD5 is sent instead of the checksum";
            return Judgement::new(next, error.with_hint(hint));
        }
        let next = if refusal.is_damage() { Next::Retry } else { next };
        Judgement::new(next, error)
    }

    fn renew(&self) -> Result<()> {
        let known = self.bucket.credentials.ready();
        let refused = known.map(|known| known.generation);
        self.bucket.credentials.renew(refused).map(drop)
    }
}

impl fmt::Debug for PartService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartService")
            .field("bucket", &self.bucket)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_usual_size_unless_an_object_would_have_too_many() {
        let usual = PARTS_MAX * PART_BYTES;
        for (bytes, part) in [
            (0, Some(PART_BYTES)),
            (usual, Some(PART_BYTES)),
            (usual + 1, Some(PART_BYTES + PART_STEP_BYTES)),
            (1 << 40, Some(105 << 20)),
            (PARTS_MAX * PART_BYTES_MAX, Some(PART_BYTES_MAX)),
            (PARTS_MAX * PART_BYTES_MAX + 1, None),
        ] {
            assert_eq!(part_bytes(bytes), part, "{bytes}");
            let parts = part_bytes(bytes).map_or(0, |part| bytes.div_ceil(part));
            assert!(parts <= PARTS_MAX, "{bytes}");
        }
    }

    #[test]
    fn a_completion_has_numbers_tags_and_sums() {
        let stored = StoredPart {
            part: UploadPart {
                number: 0,
                bytes: 1,
                sum: 1,
                digest: None,
            },
            tag: PartTag::new("\"x&y\"").unwrap(),
        };
        let body = completion(&[stored], true);
        assert!(
            body.contains("<PartNumber>1</PartNumber><ETag>&quot;x&amp;y&quot;</ETag><Checksum"),
            "{body}"
        );
        assert!(body.contains(&encoded(1)), "{body}");
    }
}
