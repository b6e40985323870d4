//! Small objects: put at once, with or without a condition.
//!
//! An answer may be lost after the service has put the object. The request is then sent again, and a condition that held
//! the first time does not hold any more. So each put carries a number that no other has, in the object's metadata, and
//! who is refused after a lost answer looks whether the number that is there is its own.

use std::ffi::OsStr;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{
    HeaderName, Method,
    header::{IF_MATCH, IF_NONE_MATCH},
};
use md5::{Digest as _, Md5};
use straightway_core::{Error, Kind, Result};
use straightway_io::store::{Condition, Store, Tag};
use straightway_net::together;

use crate::{
    bucket::{Ask, Cargo, Sent},
    refusal::header,
    store::S3,
};

/// The header of a checksum.
pub(crate) const SUM: &str = "x-amz-checksum-crc64nvme";

/// The header of an MD5, for services that do not look at the checksum.
pub(crate) const DIGEST: &str = "content-md5";

/// The header of the number that no other put has.
pub(crate) const NONCE: &str = "x-amz-meta-straightway-nonce";

/// The longest answer to a write.
pub(crate) const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Puts of the probe that run side by side.
pub(crate) const RACERS: usize = 4;

/// What a service answers that does not know a header.
const NOT_IMPLEMENTED: u16 = 501;

/// A number that no other put has.
pub(crate) fn fresh_nonce() -> String {
    format!("{:016x}", straightway_io::nonce())
}

/// A checksum as headers have it.
pub(crate) fn encoded(sum: u64) -> String {
    BASE64_STANDARD.encode(sum.to_be_bytes())
}

/// The checksum of bytes, as headers have it.
fn sum_of(bytes: &[u8]) -> String {
    encoded(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes))
}

impl S3 {
    /// Puts an object if the condition holds. Answers whether it did.
    pub(crate) fn put_object(
        &self,
        key: &str,
        name: &str,
        bytes: &[u8],
        on: &Condition,
    ) -> Result<bool> {
        let condition: Option<(HeaderName, &str)> = match on {
            Condition::Always => None,
            Condition::IfAbsent => Some((IF_NONE_MATCH, "*")),
            Condition::IfMatch(Tag::Text(tag)) => Some((IF_MATCH, tag)),
            Condition::IfMatch(Tag::File(_)) => return Ok(false),
        };
        let expected: &[u16] = match on {
            Condition::Always => &[200],
            Condition::IfAbsent => &[200, 412],
            // AWS has no such key, others say that the condition does not hold.
            Condition::IfMatch(_) => &[200, 404, 412],
        };
        let (nonce, sum) = (fresh_nonce(), sum_of(bytes));
        let digest = self
            .needs_digest()
            .then(|| BASE64_STANDARD.encode(Md5::digest(bytes)));
        let mut headers = vec![(NONCE, nonce.as_str())];
        headers.extend(digest.as_ref().map(|digest| (DIGEST, digest.as_str())));
        let without_sum = headers.len();
        headers.push((SUM, &sum));
        let put_with = |expected: &[u16], headers: &[_]| {
            let request = Ask {
                method: Method::PUT,
                operation: "write",
                name,
                key,
                query: &[],
                unsigned: condition.as_slice(),
                expected,
                body_bytes_max: ANSWER_BYTES_MAX,
            };
            let body = bytes;
            self.bucket().send(&request, &Cargo { headers, body })
        };
        let without = &headers[..without_sum];
        let sent = self.with_or_without_sums(expected, &headers, without, put_with)?;
        match sent.answer.status().as_u16() {
            200 => Ok(true),
            404 if !matches!(on, Condition::IfMatch(_)) => unreachable!("it is not expected"),
            _ => self.is_own(key, name, &nonce, &sent),
        }
    }

    /// Whether what is written needs an MD5: without TLS only a checksum tells that bytes were damaged on their way, and
    /// some services take the usual one and do not look at it. A put with a wrong checksum, once for a bucket, finds out.
    /// Where that cannot be done, it is not known.
    pub(crate) fn needs_digest(&self) -> bool {
        let has_tls = self.bucket().endpoint.origin.starts_with("https:");
        let compares = || self.bucket().habits.compares_sums(|| self.try_wrong_sum());
        !has_tls && !compares().unwrap_or(false)
    }

    /// Puts an object with the checksum of another. Answers whether that is refused.
    fn try_wrong_sum(&self) -> Result<bool> {
        let key = self.probe_key();
        let told = self.bucket().describe(&key);
        let request = Ask {
            method: Method::PUT,
            operation: "write",
            name: &told,
            key: &key,
            query: &[],
            unsigned: &[],
            expected: &[200, 400, NOT_IMPLEMENTED],
            body_bytes_max: ANSWER_BYTES_MAX,
        };
        let sum = sum_of(b"another");
        let cargo = Cargo {
            headers: &[(SUM, &sum)],
            body: b"probe",
        };
        let status = self.bucket().send(&request, &cargo)?.answer.status();
        if status == 200 {
            self.remove_key(&key, &told, None)?;
        } else if status == NOT_IMPLEMENTED {
            self.bucket().habits.refuse_sums();
        }
        Ok(status == 400)
    }

    /// Sends a request with checksums. Where the service does not implement them, it is sent without, and so are all that
    /// follow.
    pub(crate) fn with_or_without_sums<'h>(
        &self,
        expected: &[u16],
        with: &'h [(&'static str, &'h str)],
        without: &'h [(&'static str, &'h str)],
        send: impl Fn(&[u16], &'h [(&'static str, &'h str)]) -> Result<Sent>,
    ) -> Result<Sent> {
        let habits = &self.bucket().habits;
        if !habits.takes_sums() || with.len() == without.len() {
            return send(expected, without);
        }
        let first = send(&[expected, &[NOT_IMPLEMENTED]].concat(), with)?;
        if first.answer.status() != NOT_IMPLEMENTED {
            return Ok(first);
        }
        // It may be the checksum that is not implemented.
        habits.refuse_sums();
        send(expected, without)
    }

    /// Whether what has a key was put by a request whose answer was lost.
    pub(crate) fn is_own(&self, key: &str, name: &str, nonce: &str, sent: &Sent) -> Result<bool> {
        if !sent.may_be_done {
            return Ok(false);
        }
        let answer = self.bucket().ask(&Ask {
            method: Method::HEAD,
            operation: "ask",
            name,
            key,
            query: &[],
            unsigned: &[],
            expected: &[200, 404],
            body_bytes_max: ANSWER_BYTES_MAX,
        })?;
        Ok(answer.status() == 200 && header(answer.headers(), NONCE) == Some(nonce))
    }

    /// An error unless a put on condition that nothing is there has one winner. It is tried once for a bucket, with an
    /// object that is removed again.
    pub(crate) fn prove_one_winner(&self) -> Result<()> {
        self.bucket().habits.prove_one_winner(|| self.race(RACERS))
    }

    /// Lets several puts of one object race, and one come later. An error where another number than one of them wins.
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
            "{service} let {won} of {} puts of one object win that were to succeed only if nothing is there \
             (If-None-Match: *)",
            racers + 1
        );
        let store = self.describe(OsStr::new(""));
        Err(
            Error::new(Kind::Unsupported, "commit safely to", store, message).with_hint(
                "two jobs could both believe that they saved a step: use a service with atomic conditional puts, \
                 or save to a file system",
            ),
        )
    }

    /// How many of several puts of one object won, and whether one that came later did.
    fn race_once(&self, racers: usize) -> Result<(usize, bool)> {
        let key = self.probe_key();
        let told = self.bucket().describe(&key);
        let put = |_: &usize| self.put_object(&key, &told, b"probe", &Condition::IfAbsent);
        let numbers: Vec<_> = (0..racers).collect();
        let raced = together(&numbers, racers, put).and_then(|won| {
            let late = put(&racers)?;
            Ok((won.into_iter().filter(|won| *won).count(), late))
        });
        let removed = self.remove_key(&key, &told, None);
        let raced = raced?;
        removed?;
        Ok(raced)
    }
}
