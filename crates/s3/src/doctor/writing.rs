//! The checks of writing: whether objects can be put, committed and removed there. What they put is removed again.

use std::{ffi::OsStr, time::Duration};

use http::Method;
use straightway_core::Result;

use super::{Doctor, State};
use crate::{
    bucket::Ask,
    store::{LEFT_AFTER, S3},
    writing::{ANSWER_BYTES_MAX, RACERS, fresh_nonce},
};

impl Doctor<'_> {
    /// Tries all that saves and copies do, in the folder of the object that is named, or below the prefix.
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
                let seen = format!("of {} puts of one object one won", RACERS + 1);
                self.add("conditional put", State::Fine, seen, None);
            }
            // Who cannot write at all is told so by the first put.
            Err(error) => return self.fail("conditional put", &error),
        }
        if place.needs_digest() {
            let seen = "the service does not compare checksums of what is written: parts go with their MD5";
            let mend = "use https, or a service that knows CRC64NVME: an MD5 costs seconds of CPU for a GiB";
            self.add(
                "checksum of writes",
                State::Note,
                seen.to_owned(),
                Some(mend),
            );
        }
        match try_upload(&place) {
            Ok(()) => {
                let seen = "an upload in parts can be begun and ended".to_owned();
                self.add("multipart", State::Fine, seen, None);
            }
            Err(error) => self.fail("multipart", &error),
        }
        self.look_for_uploads(&place);
        self.look_for_lock();
    }

    /// Looks for uploads that nobody will complete: their parts are paid for.
    fn look_for_uploads(&mut self, place: &S3) {
        match place.old_uploads(LEFT_AFTER) {
            Ok(old) if old.is_empty() => {
                let seen = "no upload there is older than a week".to_owned();
                self.add("unfinished uploads", State::Fine, seen, None);
            }
            Ok(old) => {
                let seen = format!("{} uploads there are older than a week", old.len());
                let mend = "`straightway rm --uploads` ends them; a lifecycle rule with \
                            AbortIncompleteMultipartUpload does so by itself";
                self.add("unfinished uploads", State::Note, seen, Some(mend));
            }
            Err(error) => {
                let seen = format!("they cannot be listed: {error}");
                let mend =
                    "grant s3:ListBucketMultipartUploads: what killed writers leave is swept by it";
                self.add("unfinished uploads", State::Note, seen, Some(mend));
            }
        }
    }

    /// Looks whether the bucket has object lock: what is removed then stays, and is paid for.
    fn look_for_lock(&mut self) {
        let bucket = self.store.bucket();
        let answer = bucket.ask(&Ask {
            method: Method::GET,
            operation: "ask",
            name: &bucket.describe(""),
            key: "",
            query: &[("object-lock", "")],
            unsigned: &[],
            expected: &[200, 400, 403, 404, 405, 501],
            body_bytes_max: ANSWER_BYTES_MAX,
        });
        let is_locked = answer.is_ok_and(|answer| {
            let body = String::from_utf8_lossy(answer.body()).into_owned();
            answer.status() == 200 && body.contains("<ObjectLockEnabled>Enabled<")
        });
        if is_locked {
            let seen =
                "the bucket has object lock: what is removed or replaced stays as an old version"
                    .to_owned();
            let mend = "add a lifecycle rule for old versions (NoncurrentVersionExpiration)";
            self.add("object lock", State::Note, seen, Some(mend));
        }
    }
}

/// Begins an upload and ends it.
fn try_upload(place: &S3) -> Result<()> {
    let key = place.probe_key();
    let told = place.bucket().describe(&key);
    let id = place.initiate(&key, &told, &fresh_nonce(), true)?;
    place.abort(&key, &id)
}

impl S3 {
    /// The keys of uploads below the prefix that were begun longer than `age` ago.
    fn old_uploads(&self, age: Duration) -> Result<Vec<String>> {
        let old = self
            .uploads()?
            .into_iter()
            .filter(|upload| upload.is_older_than(age));
        Ok(old.map(|upload| upload.key).collect())
    }
}
