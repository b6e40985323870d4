//! Puts of small objects, with or without a condition.
//!
//! A response may be lost after the service has put the object. The request is then retried, by this client or by a
//! proxy, and a condition that held the first time does not hold any more. So each put carries a nonce in the object's
//! metadata. If a put is refused, the writer checks whether the stored nonce is its own.

use std::ffi::OsStr;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{
    HeaderMap, HeaderName, Method, Response,
    header::{IF_MATCH, IF_NONE_MATCH},
};
use md5::{Digest as _, Md5};
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    parallel,
    store::{Condition, Tag},
};
use straightway_net::HttpResponse;

use crate::{
    bucket::{BucketRequest, RequestContent},
    refusal::{Refusal, header},
    s3::{S3, fresh_nonce},
};

/// The header of the checksum.
pub(crate) const SUM: &str = "x-amz-checksum-crc64nvme";

/// The header of an MD5, for services that do not compare the checksum.
pub(crate) const DIGEST: &str = "content-md5";

/// The metadata header of the nonce.
pub(crate) const NONCE: &str = "x-amz-meta-straightway-nonce";

/// The number of concurrent puts of the probe.
pub(crate) const RACERS: usize = 4;

/// The status of a service that does not implement a header.
const NOT_IMPLEMENTED: u16 = 501;

/// A checksum in the form of a header value.
pub(crate) fn encoded(sum: u64) -> String {
    BASE64_STANDARD.encode(sum.to_be_bytes())
}

/// The checksum of bytes in the form of a header value.
fn sum_of(bytes: &[u8]) -> String {
    encoded(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes))
}

/// A put of a whole object.
struct Put<'a> {
    key: &'a str,
    name: &'a str,
    bytes: &'a [u8],
    nonce: &'a str,
    /// The statuses that are not errors: 200, and those of a condition that does not hold.
    expected: &'a [u16],
}

impl S3 {
    /// Puts an object if the condition holds. Returns whether it did.
    pub(crate) fn put_object(&self, key: &str, name: &str, bytes: &[u8], on: &Condition) -> Result<bool> {
        self.put_as(&fresh_nonce(), (key, name, bytes), on)
    }

    /// The same with a nonce, by which the caller can tell the object from those of other writers. The object is its
    /// key, its name in errors and its bytes.
    pub(crate) fn put_as(&self, nonce: &str, (key, name, bytes): (&str, &str, &[u8]), on: &Condition) -> Result<bool> {
        let condition: Option<(HeaderName, &str)> = match on {
            Condition::Always => None,
            Condition::IfAbsent => Some((IF_NONE_MATCH, "*")),
            Condition::IfMatch(Tag::Text(tag)) => Some((IF_MATCH, tag)),
            Condition::IfMatch(Tag::File(_)) => return Ok(false),
        };
        let expected: &[u16] = match on {
            Condition::Always => &[200],
            Condition::IfAbsent => &[200, 412],
            // For a missing key AWS sends 404, other services 412.
            Condition::IfMatch(_) => &[200, 404, 412],
        };
        let put = Put {
            key,
            name,
            bytes,
            nonce,
            expected,
        };
        if self.send_put(&put, condition.as_ref())? {
            return Ok(true);
        }
        let Some(headers) = self.headers_of(key, name)? else {
            return Ok(false);
        };
        if header(&headers, NONCE) == Some(nonce) {
            return Ok(true);
        }
        // Ceph 16 compares the condition, with its quotes, to the tag without quotes: it refuses the version that is
        // there.
        match condition {
            Some((IF_MATCH, tag)) if header(&headers, "etag") == Some(tag) => {
                let bare = (IF_MATCH, tag.trim_matches('"'));
                Ok(self.send_put(&put, Some(&bare))? || self.is_own(key, name, nonce)?)
            }
            _ => Ok(false),
        }
    }

    /// Sends a put. Returns whether its condition held.
    fn send_put(&self, put: &Put<'_>, condition: Option<&(HeaderName, &str)>) -> Result<bool> {
        let sum = sum_of(put.bytes);
        // Tested first, because the test also finds out whether checksums are sent.
        let needs_both = self.needs_digest(true);
        let put_with = |expected: &[u16], has_sum: bool| {
            let needs_digest = if has_sum { needs_both } else { self.needs_digest(false) };
            let digest = needs_digest.then(|| BASE64_STANDARD.encode(Md5::digest(put.bytes)));
            let mut headers = vec![(NONCE, put.nonce)];
            headers.extend(digest.as_ref().map(|digest| (DIGEST, digest.as_str())));
            headers.extend(has_sum.then_some((SUM, sum.as_str())));
            let request = BucketRequest {
                unsigned: condition.map_or(&[], std::slice::from_ref),
                expected,
                ..BucketRequest::new(Method::PUT, "write", put.name, put.key)
            };
            let content = RequestContent {
                headers: &headers,
                body: put.bytes,
                ..RequestContent::default()
            };
            self.bucket().send(&request, &content)
        };
        let response = self.with_or_without_sums(put.expected, put_with)?;
        Ok(response.status() == 200)
    }

    /// Whether writes with or without the usual checksum need an MD5. Without TLS only a checksum detects damage on the
    /// network, and some services accept the usual checksum without comparing it. A put with a wrong checksum tests
    /// this, once per bucket. If the test cannot be run, an MD5 is sent.
    pub(crate) fn needs_digest(&self, has_sum: bool) -> bool {
        let compares = || self.bucket().write_support.compares_sums(|| self.try_wrong_sum());
        let is_protected = self.bucket().has_tls() || has_sum && compares().unwrap_or(false);
        !is_protected
    }

    /// Puts an object with a wrong checksum. Returns whether it is refused for that reason.
    fn try_wrong_sum(&self) -> Result<bool> {
        let key = self.probe_key();
        let full_name = self.bucket().describe(&key);
        let request = BucketRequest {
            expected: &[200, 400, NOT_IMPLEMENTED],
            ..BucketRequest::new(Method::PUT, "write", &full_name, &key)
        };
        let sum = sum_of(b"another");
        let content = RequestContent {
            headers: &[(SUM, &sum)],
            body: b"probe",
            ..RequestContent::default()
        };
        let response = self.bucket().send(&request, &content)?;
        if response.status() == 200 {
            self.remove_key(&key, &full_name)?;
        } else if response.status() == NOT_IMPLEMENTED {
            self.bucket().write_support.refuse_sums();
        }
        Ok(Refusal::of(&HttpResponse::of(&response)).is_damage())
    }

    /// Sends a request with checksums. If the service does not implement them, this request and all later ones are sent
    /// without.
    pub(crate) fn with_or_without_sums(
        &self,
        expected: &[u16],
        send: impl Fn(&[u16], bool) -> Result<Response<Vec<u8>>>,
    ) -> Result<Response<Vec<u8>>> {
        let write_support = &self.bucket().write_support;
        if !write_support.takes_sums() {
            return send(expected, false);
        }
        let first = send(&[expected, &[NOT_IMPLEMENTED]].concat(), true)?;
        if first.status() != NOT_IMPLEMENTED {
            return Ok(first);
        }
        // If this fails too, the checksum was not the header that is not implemented.
        let second = send(expected, false)?;
        write_support.refuse_sums();
        Ok(second)
    }

    /// Whether the object was put with this nonce: by an earlier attempt of a request, whose response was lost.
    pub(crate) fn is_own(&self, key: &str, name: &str, nonce: &str) -> Result<bool> {
        let headers = self.headers_of(key, name)?;
        Ok(headers.is_some_and(|headers| header(&headers, NONCE) == Some(nonce)))
    }

    /// The headers of an object, if it exists.
    pub(crate) fn headers_of(&self, key: &str, name: &str) -> Result<Option<HeaderMap>> {
        let response = self.bucket().request(&BucketRequest {
            expected: &[200, 404],
            ..BucketRequest::new(Method::HEAD, "check", name, key)
        })?;
        Ok((response.status() == 200).then(|| response.into_parts().0.headers))
    }

    /// Fails unless concurrent puts with `If-None-Match: *` have exactly one winner. Tested once per bucket, with an
    /// object that is removed again.
    pub(crate) fn prove_one_winner(&self) -> Result<()> {
        self.bucket().write_support.prove_one_winner(|| self.race(RACERS))
    }

    /// Runs several concurrent puts of one object and a later one. Fails unless exactly one of them wins.
    pub(crate) fn race(&self, racers: usize) -> Result<()> {
        let mut won = self.race_once(racers)?;
        if won == (1, true) {
            // A sweep by another process may have removed the probe before the last put.
            won = self.race_once(racers)?;
        }
        let won = won.0 + usize::from(won.1);
        if won == 1 {
            return Ok(());
        }
        let service = &self.bucket().endpoint.service;
        let message = format!(
            "{service} accepted {won} of {} puts of one object with `If-None-Match: *`, and exactly one must succeed",
            racers + 1
        );
        let store = self.describe(OsStr::new(""));
        Err(
            Error::new(ErrorKind::Unsupported, "commit safely to", store, message).with_hint(
                "two jobs could both believe that they saved a step: use a service with atomic conditional puts, \
                 or save to a file system",
            ),
        )
    }

    /// The number of concurrent puts of one object that won, and whether a later put won.
    fn race_once(&self, racers: usize) -> Result<(usize, bool)> {
        let key = self.probe_key();
        let full_name = self.bucket().describe(&key);
        let put = |_| self.put_object(&key, &full_name, b"probe", &Condition::IfAbsent);
        let raced = parallel::try_each(0..racers, racers, put).and_then(|won| {
            let late = put(racers)?;
            Ok((won.into_iter().filter(|won| *won).count(), late))
        });
        let removed = self.remove_key(&key, &full_name);
        let raced = raced?;
        removed?;
        Ok(raced)
    }
}
