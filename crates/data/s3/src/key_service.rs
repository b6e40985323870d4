//! The requests of lanes that read one object.
//!
//! A request is signed without `Range` and `If-Match`, which `SigV4` does not require. So all ranges of an object share
//! one signature for some minutes, and a range costs no hash.

use std::{
    fmt,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use http::Method;
use straightway_core::Result;
use straightway_net::{Checksum, Head, HttpResponse, Judgement, Service};

use crate::{
    bucket::{Bucket, BucketRequest},
    credentials::KnownCredentials,
    part_sum::part_checksum,
    refusal::Refusal,
    sum::checksum,
};

/// How long a signature is used. Services accept one for 15 minutes, and clocks differ.
const SIGNATURE_TIME: Duration = Duration::from_mins(5);

/// The service of lanes that read one object.
pub(crate) struct KeyService {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) key: String,
    pub(crate) version: Option<String>,
    signed: RwLock<Option<SignedHead>>,
}

/// A signed request head.
struct SignedHead {
    head: Vec<u8>,
    generation: u64,
    until: Instant,
}

impl KeyService {
    pub(crate) fn new(bucket: &Arc<Bucket>, key: String, version: Option<String>) -> Self {
        Self {
            bucket: Arc::clone(bucket),
            key,
            version,
            signed: RwLock::new(None),
        }
    }

    /// The query that selects its version.
    pub(crate) fn query(&self) -> Vec<(&str, &str)> {
        self.version.iter().map(|id| ("versionId", id.as_str())).collect()
    }

    fn sign(&self, known: &KnownCredentials) -> Result<SignedHead> {
        let name = self.bucket.describe(&self.key);
        let request = BucketRequest {
            query: &self.query(),
            ..BucketRequest::new(Method::GET, "read", &name, &self.key)
        };
        let parts = self.bucket.signed(&request, &[], known)?;
        let mut head = Vec::with_capacity(1024);
        self.bucket.write_head(&parts, &mut head);
        Ok(SignedHead {
            head,
            generation: known.generation,
            until: Instant::now() + SIGNATURE_TIME,
        })
    }
}

impl Service for KeyService {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let Some(known) = self.bucket.credentials.ready() else {
            return Ok(Head::Renew);
        };
        let fits = |signed: &&SignedHead| signed.generation == known.generation && signed.until > Instant::now();
        // A lane never blocks: if another one holds the lock, it signs by itself.
        if let Ok(signed) = self.signed.try_read()
            && let Some(signed) = signed.as_ref().filter(fits)
        {
            out.extend_from_slice(&signed.head);
            return Ok(Head::Ready);
        }
        let made = self.sign(&known)?;
        out.extend_from_slice(&made.head);
        if let Ok(mut signed) = self.signed.try_write() {
            *signed = Some(made);
        }
        Ok(Head::Ready)
    }

    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        let source = self.bucket.credentials.source();
        let context = self.bucket.request_context("read", name, source);
        Refusal::of(response).judge(&context)
    }

    fn asks_whole(&self) -> bool {
        true
    }

    fn checksum(&self, response: &HttpResponse<'_>) -> Option<Checksum> {
        checksum(response)
    }

    fn part_checksum(&self, response: &HttpResponse<'_>) -> Option<Checksum> {
        part_checksum(response)
    }

    /// The header is metadata of the object: S3 never encodes a response.
    fn stores_encoded(&self) -> bool {
        true
    }

    fn renew(&self) -> Result<()> {
        // If the current credentials have not expired, the service has rejected them.
        let known = self.bucket.credentials.ready();
        let signed = self.signed.read().ok();
        let signed = signed.as_deref().and_then(Option::as_ref);
        let refused = known.and(signed).map(|signed| signed.generation);
        self.bucket.credentials.renew(refused).map(drop)
    }
}

impl fmt::Debug for KeyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyService")
            .field("bucket", &self.bucket)
            .field("key", &self.key)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
