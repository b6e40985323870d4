//! Begins multipart uploads, and aborts those whose start got no response.
//!
//! If the response to `CreateMultipartUpload` is lost, the service may have begun an upload. The request is repeated,
//! and the writer uses the upload whose id it gets. Nobody knows the id of the other one, which stays listed, and on
//! some services is billed, until it is aborted.
//!
//! The writer therefore lists the uploads of its key before it ends. A listing does not show the metadata of an upload,
//! so its nonce cannot be compared. An upload is aborted only if everything that is shown says that it is the lost one:
//!
//! - It has exactly the key, and no writer of this process uses it or is beginning one for the key.
//! - By the service's clock it was begun during the attempts that got no response.
//! - It has the initiator of the writer's own upload.
//! - It has no part. The check comes at the end of the writer's own upload, when another writer that began at the same
//!   moment has sent some.
//! - There are no more such uploads than lost responses. If there are, some belong to another writer, and none is
//!   aborted.

use std::{
    cell::Cell,
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::Method;
use reqsign_core::time::Timestamp;
use straightway_core::Result;
use straightway_net::HttpResponse;

use crate::{
    bucket::{Bucket, BucketRequest, RequestContent},
    s3::S3,
    writing::NONCE,
    xml::{Initiated, OpenUpload, Parts, Uploads, parse},
};

/// The error of a service's clock in a comparison of two of its times. Both may be cut to seconds.
const CLOCK_ERROR: Duration = Duration::from_secs(2);

/// An upload that was begun.
#[derive(Debug)]
pub(crate) struct StartedUpload {
    bucket: Arc<Bucket>,
    pub(crate) id: String,
    lost: LostStarts,
}

impl Drop for StartedUpload {
    fn drop(&mut self) {
        self.bucket.own_uploads.forget(&self.id);
    }
}

/// The attempts to begin an upload that got no response.
#[derive(Clone, Copy, Debug)]
struct LostStarts {
    count: u32,
    /// When the first attempt began, and when the last one ended.
    since: Instant,
    until: Instant,
}

impl LostStarts {
    /// Whether an upload that was begun at `begun` may come from these attempts. The service's clock shows `there` now.
    fn may_have_begun(&self, begun: SystemTime, there: SystemTime, now: Instant) -> bool {
        let earliest = there.checked_sub(now.saturating_duration_since(self.since) + CLOCK_ERROR);
        let latest = (there + CLOCK_ERROR).checked_sub(now.saturating_duration_since(self.until));
        earliest.is_none_or(|earliest| begun >= earliest) && latest.is_some_and(|latest| begun <= latest)
    }
}

impl S3 {
    /// Begins a multipart upload.
    pub(crate) fn initiate(&self, key: &str, name: &str, nonce: &str, has_sums: bool) -> Result<StartedUpload> {
        let (since, unanswered) = (Instant::now(), Cell::new(0));
        let own_uploads = &self.bucket().own_uploads;
        own_uploads.begin(key);
        let begun = self.request_start(key, name, nonce, has_sums, &unanswered);
        own_uploads.end(key, begun.as_deref().ok());
        let lost = LostStarts {
            count: unanswered.get(),
            since,
            until: Instant::now(),
        };
        match begun {
            Ok(id) => Ok(StartedUpload {
                bucket: Arc::clone(self.bucket()),
                id,
                lost,
            }),
            Err(error) => {
                // The service may be down. The writer is not kept waiting for it a second time.
                self.abort_unknown(key, name, None, &lost);
                Err(error)
            }
        }
    }

    /// Requests an upload. Returns its id. `unanswered` counts the attempts without a response.
    fn request_start(
        &self,
        key: &str,
        name: &str,
        nonce: &str,
        has_sums: bool,
        unanswered: &Cell<u32>,
    ) -> Result<String> {
        let headers = [
            (NONCE, nonce),
            ("x-amz-checksum-algorithm", "CRC64NVME"),
            ("x-amz-checksum-type", "FULL_OBJECT"),
        ];
        let initiate_with = |expected: &[u16], has_sums: bool| {
            let request = BucketRequest {
                query: &[("uploads", "")],
                expected,
                ..BucketRequest::new(Method::POST, "write", name, key)
            };
            let content = RequestContent {
                headers: &headers[..if has_sums { 3 } else { 1 }],
                unanswered: Some(unanswered),
                ..RequestContent::default()
            };
            self.bucket().send(&request, &content)
        };
        let response = if has_sums {
            self.with_or_without_sums(&[200], initiate_with)?
        } else {
            initiate_with(&[200], false)?
        };
        let initiated: Option<Initiated> = parse(response.body(), "InitiateMultipartUploadResult");
        let id = initiated
            .map(|initiated| initiated.upload_id)
            .filter(|id| !id.is_empty());
        id.ok_or_else(|| {
            unanswered.set(unanswered.get() + 1);
            self.not_s3("write", OsStr::new(key))
        })
    }

    /// Aborts the uploads that were begun for a key by attempts whose responses were lost. Called at the end of the
    /// upload that `started` is.
    pub(crate) fn abort_lost(&self, key: &str, name: &str, started: &StartedUpload) {
        self.abort_unknown(key, name, Some(&started.id), &started.lost);
    }

    /// The same; `own` is the writer's own upload, if it has one. Best effort: what cannot be listed or aborted now is
    /// swept later.
    fn abort_unknown(&self, key: &str, name: &str, own: Option<&str>, lost: &LostStarts) {
        if lost.count == 0 {
            return;
        }
        match self.lost_uploads(key, name, own, lost) {
            Ok(found) if found.len() <= lost.count as usize => {
                for upload in found {
                    let _ = self.abort(&upload.key, &upload.upload_id);
                }
            }
            Ok(found) => {
                tracing::warn!(
                    "{name} has {} open uploads of unknown writers, and none is aborted",
                    found.len()
                );
            }
            Err(error) => tracing::debug!(%error, "cannot look for uploads whose start got no response"),
        }
    }

    /// The uploads of a key that may have been begun by attempts whose responses were lost.
    fn lost_uploads(&self, key: &str, name: &str, own: Option<&str>, lost: &LostStarts) -> Result<Vec<OpenUpload>> {
        let request = BucketRequest {
            query: &[("max-uploads", "1000"), ("prefix", key), ("uploads", "")],
            ..BucketRequest::new(Method::GET, "list", name, "")
        };
        // Without an upload of its own the writer has failed, and does not try this for long.
        let response = match own {
            Some(_) => self.bucket().request(&request)?,
            None => self.bucket().request_once(&request)?,
        };
        let now = Instant::now();
        let there = HttpResponse::of(&response).date("date");
        let page: Option<Uploads> = parse(response.body(), "ListMultipartUploadsResult");
        let (Some(there), Some(page)) = (there, page) else {
            return Ok(Vec::new());
        };
        let own_initiator = page.open.iter().find(|upload| Some(upload.upload_id.as_str()) == own);
        let own_initiator = own_initiator.map(|upload| upload.initiator.clone());
        let mut found = Vec::new();
        for upload in page.open {
            let begun = upload
                .initiated
                .as_ref()
                .and_then(|time| time.parse::<Timestamp>().ok());
            let begun = begun.map(Timestamp::as_system_time);
            let is_then = begun.is_some_and(|begun| lost.may_have_begun(begun, there, now));
            let is_own_initiator = own_initiator.as_ref().is_none_or(|own| *own == upload.initiator);
            let may_be_lost = upload.key == key && is_then && is_own_initiator;
            if may_be_lost && !self.bucket().own_uploads.may_have(&upload) && !self.has_parts(&upload)? {
                found.push(upload);
            }
        }
        Ok(found)
    }

    /// Whether an upload has a part. One that does not exist any more counts as one that has.
    fn has_parts(&self, upload: &OpenUpload) -> Result<bool> {
        let name = self.bucket().describe(&upload.key);
        let response = self.bucket().request(&BucketRequest {
            query: &[("max-parts", "1"), ("uploadId", &upload.upload_id)],
            expected: &[200, 404],
            ..BucketRequest::new(Method::GET, "list the parts of", &name, &upload.key)
        })?;
        let parts: Option<Parts> = parse(response.body(), "ListPartsResult");
        Ok(parts.is_none_or(|parts| !parts.parts.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uploads_begun_during_the_lost_attempts_may_come_from_them() {
        let start = Instant::now();
        let lost = LostStarts {
            count: 1,
            since: start,
            until: start + Duration::from_secs(20),
        };
        // The service's clock is a year behind. The uploads are listed 100 s after the first attempt.
        let there = SystemTime::now() - Duration::from_hours(365 * 24);
        let now = start + Duration::from_secs(100);
        let first = there - Duration::from_secs(100);
        for (after_s, may_have) in [
            (-4_i64, false),
            (-1, true),
            (0, true),
            (20, true),
            (21, true),
            (23, false),
        ] {
            let after = Duration::from_secs(after_s.unsigned_abs());
            let begun = if after_s < 0 { first - after } else { first + after };
            assert_eq!(lost.may_have_begun(begun, there, now), may_have, "{after_s} s");
        }
    }
}
