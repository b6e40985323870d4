//! The checks of writes: whether objects can be put, committed and removed. The objects of the checks are removed
//! again.

use std::{ffi::OsStr, time::Duration};

use http::Method;
use straightway_core::Result;

use super::{CheckState, Doctor};
use crate::{
    bucket::BucketRequest,
    s3::{S3, fresh_nonce},
    store::STALE_AFTER,
    writing::RACERS,
};

impl Doctor<'_> {
    /// Tests all requests of saves and copies, in the folder of the named object or below the prefix.
    pub(super) fn try_writing(&mut self, is_object: bool) {
        let folder = self.name.to_string_lossy();
        let folder = match folder.rsplit_once('/') {
            Some((folder, _)) if is_object => folder,
            None if is_object => "",
            _ => folder.trim_end_matches('/'),
        };
        let place = match self.store.inside(OsStr::new(folder)) {
            Ok(place) => place,
            Err(error) => return self.fail("write", &error),
        };
        match place.race(RACERS) {
            Ok(()) => {
                let seen = format!("exactly one of {} puts of one object succeeded", RACERS + 1);
                self.add("conditional put", CheckState::Fine, seen, None);
            }
            // If nothing can be written, the first put says why.
            Err(error) => return self.fail("conditional put", &error),
        }
        if place.needs_digest(true) {
            let seen = "the service does not verify checksums of writes: parts are sent with their MD5";
            let mend = "use https, or a service that supports CRC64NVME: an MD5 costs seconds of CPU per GiB";
            self.add("checksum of writes", CheckState::Note, seen.to_owned(), Some(mend));
        }
        match place.compares_removed_versions() {
            Ok(true) => {
                let seen = "an object is removed only if it has the named version".to_owned();
                self.add("conditional removal", CheckState::Fine, seen, None);
            }
            Ok(false) => {
                let seen = "the service removes an object although it has another version than the named one";
                let mend = "do not save a step of a checkpoint again while another process removes it: its manifest \
                            could be removed";
                self.add("conditional removal", CheckState::Note, seen.to_owned(), Some(mend));
            }
            Err(error) => self.fail("conditional removal", &error),
        }
        match try_upload(&place) {
            Ok(()) => {
                let seen = "a multipart upload can be begun and aborted".to_owned();
                self.add("multipart", CheckState::Fine, seen, None);
            }
            Err(error) => self.fail("multipart", &error),
        }
        self.look_for_uploads(&place);
        self.look_for_lock();
    }

    /// Looks for abandoned uploads, whose parts cost storage.
    fn look_for_uploads(&mut self, place: &S3) {
        match place.old_uploads(STALE_AFTER) {
            Ok(old) if old.is_empty() => {
                let seen = "no upload there is older than a week".to_owned();
                self.add("unfinished uploads", CheckState::Fine, seen, None);
            }
            Ok(old) => {
                let seen = format!("{} uploads there are older than a week", old.len());
                let mend = "`straightway rm --uploads` aborts them; a lifecycle rule with \
                            AbortIncompleteMultipartUpload does so automatically";
                self.add("unfinished uploads", CheckState::Note, seen, Some(mend));
            }
            Err(error) => {
                let seen = format!("cannot list them: {error}");
                let mend = "grant s3:ListBucketMultipartUploads: needed to abort uploads of killed writers";
                self.add("unfinished uploads", CheckState::Note, seen, Some(mend));
            }
        }
    }

    /// Checks whether the bucket has object lock: removed objects then remain as old versions and cost storage.
    fn look_for_lock(&mut self) {
        let bucket = self.store.bucket();
        let response = bucket.request(&BucketRequest {
            query: &[("object-lock", "")],
            expected: &[200, 400, 403, 404, 405, 501],
            ..BucketRequest::new(Method::GET, "check", &bucket.describe(""), "")
        });
        let is_locked = response.is_ok_and(|response| {
            let body = String::from_utf8_lossy(response.body()).into_owned();
            response.status() == 200 && body.contains("<ObjectLockEnabled>Enabled<")
        });
        if is_locked {
            let seen = "the bucket has object lock: removed and replaced objects remain as old versions".to_owned();
            let mend = "add a lifecycle rule for old versions (NoncurrentVersionExpiration)";
            self.add("object lock", CheckState::Note, seen, Some(mend));
        }
    }
}

/// Begins an upload and aborts it.
fn try_upload(place: &S3) -> Result<()> {
    let key = place.probe_key();
    let full_name = place.bucket().describe(&key);
    let started = place.initiate(&key, &full_name, &fresh_nonce(), true)?;
    place.abort_lost(&key, &full_name, &started);
    place.abort(&key, &started.id)
}

impl S3 {
    /// The keys of uploads below the prefix that were begun at least `age` ago.
    fn old_uploads(&self, age: Duration) -> Result<Vec<String>> {
        let old = self.uploads()?.into_iter().filter(|upload| upload.is_older_than(age));
        Ok(old.map(|upload| upload.key).collect())
    }
}
