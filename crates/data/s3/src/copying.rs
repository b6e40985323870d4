//! Server-side copies: the bytes do not pass through this machine.
//!
//! One request copies an object of up to 5 GiB. A longer object is copied in parts by a multipart upload. Both name the
//! version to copy.

use std::{any::Any, ffi::OsString, time::Duration};

use http::Method;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    parallel,
    store::{Named, Store, Tag},
};

use crate::{
    bucket::{BucketRequest, RequestContent},
    endpoint::in_path,
    s3::{S3, fresh_nonce},
    upload::{Completion, PART_STEP_BYTES, PARTS_MAX},
    xml::{CopyPart, escaped, parse},
};

/// S3's limit on an object that one request copies.
const WHOLE_BYTES_MAX: u64 = 5 << 30;

/// The least rate of a service. Many respond only after the whole copy, and a response that does not begin in time
/// counts as lost.
const COPY_RATE_MIN: f64 = 16e6;

/// The part size of a longer copy, unless it would have too many parts.
const COPY_PART_BYTES: u64 = 512 << 20;

/// The most parallel requests.
const COPIERS_MAX: usize = 16;

impl S3 {
    /// Copies objects inside the service. Returns `false` if that is not possible, for example between services.
    pub(crate) fn copy_objects(&self, from: &dyn Store, objects: &[(Named, OsString)]) -> Result<bool> {
        let Some(from) = (from as &dyn Any).downcast_ref::<Self>() else {
            return Ok(false);
        };
        let (source, target) = (from.bucket(), self.bucket());
        let is_one = source.endpoint.service == target.endpoint.service
            && source.region == target.region
            && !source.has_customer_key()
            && !target.has_customer_key();
        if !is_one || !self.copies_versions(from, objects)? {
            return Ok(false);
        }
        let copy = |(named, to): &(Named, OsString)| self.copy_object(from, named, to);
        parallel::try_each(objects.iter(), COPIERS_MAX, copy)?;
        Ok(true)
    }

    /// Whether the service refuses to copy an object whose version is not the named one. Otherwise a copy could mix two
    /// versions. Tested with the shortest of the objects, once per bucket.
    fn copies_versions(&self, from: &Self, objects: &[(Named, OsString)]) -> Result<bool> {
        let known = objects.iter().filter(|(named, _)| named.bytes.is_some());
        let shortest = known.min_by_key(|(named, _)| named.bytes).or(objects.first());
        let Some((named, _)) = shortest else {
            return Ok(true);
        };
        self.bucket().write_support.copies_versions(|| {
            let source = from.copy_source(named)?;
            let key = self.probe_key();
            let full_name = self.bucket().describe(&key);
            let source_name = from.describe(&named.name);
            let request = BucketRequest {
                expected: &[200, 412],
                ..BucketRequest::new(Method::PUT, "copy", &source_name, &key)
            };
            let content = RequestContent {
                headers: &[
                    ("x-amz-copy-source", &source),
                    ("x-amz-copy-source-if-match", "\"00000000000000000000000000000000\""),
                ],
                ..RequestContent::default()
            };
            let is_refused = self.bucket().send(&request, &content)?.status() == 412;
            if !is_refused {
                self.remove_key(&key, &full_name)?;
            }
            Ok(is_refused)
        })
    }

    fn copy_object(&self, from: &Self, named: &Named, to: &OsString) -> Result<()> {
        let (source_key, version) = from.key(&named.name)?;
        let key = self.own_key(to)?;
        let source_name = from.describe(&named.name);
        if self.bucket().name == from.bucket().name && key == source_key && version.is_none() {
            let message = "it would be copied to itself";
            return Err(Error::new(ErrorKind::Invalid, "copy", source_name, message));
        }
        let (bytes, tag) = match (named.bytes, &named.tag) {
            (Some(bytes), Some(tag)) if bytes <= WHOLE_BYTES_MAX => (bytes, Some(tag.clone())),
            // A copy in parts ends where the length says, so a listing is not enough.
            _ => {
                let unmeasured = Named {
                    bytes: None,
                    ..named.clone()
                };
                let opened = from.open(&[unmeasured])?.remove(0);
                (opened.object().bytes, opened.tag())
            }
        };
        let Some(Tag::Text(tag)) = tag else {
            return Err(from.not_s3("copy", &named.name));
        };
        let copied = CopySource {
            source: &from.copy_source(named)?,
            tag: &tag,
            name: &source_name,
            key: &key,
        };
        if bytes <= WHOLE_BYTES_MAX {
            return self.copy_part(&copied, &[], None, bytes).map(drop);
        }
        self.copy_in_parts(&copied, bytes)
    }

    /// An object of this store in the form of the header `x-amz-copy-source`.
    fn copy_source(&self, named: &Named) -> Result<String> {
        let (key, version) = self.key(&named.name)?;
        let mut source = format!("/{}/{}", self.bucket().name, in_path(&key));
        if let Some(version) = version {
            source = format!("{source}?versionId={version}");
        }
        Ok(source)
    }

    /// Copies a whole object, or a range of it as a part of an upload. Returns the `ETag` of the copy.
    fn copy_part(
        &self,
        copied: &CopySource<'_>,
        query: &[(&str, &str)],
        range: Option<&str>,
        bytes: u64,
    ) -> Result<String> {
        let mut headers = vec![
            ("x-amz-copy-source", copied.source),
            ("x-amz-copy-source-if-match", copied.tag),
        ];
        headers.extend(range.map(|range| ("x-amz-copy-source-range", range)));
        let request = BucketRequest {
            query,
            expected: &[200, 412],
            ..BucketRequest::new(Method::PUT, "copy", copied.name, copied.key)
        };
        let content = RequestContent {
            headers: &headers,
            work_time: Duration::from_secs_f64(bytes as f64 / COPY_RATE_MIN),
            ..RequestContent::default()
        };
        let response = self.bucket().send(&request, &content)?;
        if response.status() == 412 {
            let message = "it was replaced while it was copied";
            let error = Error::new(ErrorKind::Precondition, "copy", copied.name, message);
            return Err(error.with_hint("copy it again; nothing of two versions was mixed"));
        }
        let root = if query.is_empty() {
            "CopyObjectResult"
        } else {
            "CopyPartResult"
        };
        let part: Option<CopyPart> = parse(response.body(), root);
        part.map(|part| part.etag)
            .ok_or_else(|| self.not_s3("copy", copied.key.as_ref()))
    }

    fn copy_in_parts(&self, copied: &CopySource<'_>, bytes: u64) -> Result<()> {
        let nonce = fresh_nonce();
        let started = self.initiate(copied.key, copied.name, &nonce, false)?;
        let part_bytes = copy_part_bytes(bytes);
        let parts = 0..usize::try_from(bytes.div_ceil(part_bytes)).expect("at most 10,000 parts");
        let tags = parallel::try_each(parts, COPIERS_MAX, |number| {
            let start = number as u64 * part_bytes;
            let range = format!("bytes={start}-{}", bytes.min(start + part_bytes) - 1);
            let number = (number + 1).to_string();
            let query = [("partNumber", number.as_str()), ("uploadId", &started.id)];
            self.copy_part(copied, &query, Some(&range), part_bytes)
        });
        self.abort_lost(copied.key, copied.name, &started);
        let done = tags.and_then(|tags| {
            let part = |(number, tag): (usize, &String)| {
                let (number, tag) = (number + 1, escaped(tag));
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
            };
            self.complete(&Completion {
                key: copied.key,
                name: copied.name,
                id: &started.id,
                nonce: &nonce,
                parts: tags.iter().enumerate().map(part).collect(),
                sum: None,
            })
        });
        done.inspect_err(|_| {
            // An upload that cannot be aborted now is swept later.
            let _ = self.abort(copied.key, &started.id);
        })
    }
}

/// The source and target of a copy.
struct CopySource<'a> {
    /// The source bucket and key in the form of the header `x-amz-copy-source`.
    source: &'a str,
    tag: &'a str,
    /// The name of the source in errors.
    name: &'a str,
    key: &'a str,
}

/// The part size of a copy of `bytes`.
fn copy_part_bytes(bytes: u64) -> u64 {
    bytes
        .div_ceil(PARTS_MAX)
        .next_multiple_of(PART_STEP_BYTES)
        .max(COPY_PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_never_has_too_many_parts() {
        for bytes in [
            WHOLE_BYTES_MAX + 1,
            PARTS_MAX * COPY_PART_BYTES,
            5 << 40,
            (48 << 40) + 7,
        ] {
            let part = copy_part_bytes(bytes);
            assert!(bytes.div_ceil(part) <= PARTS_MAX, "{bytes}");
            assert!(part <= WHOLE_BYTES_MAX, "a copied part has at most 5 GiB: {bytes}");
        }
    }
}
