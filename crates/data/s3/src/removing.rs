//! Removes objects: one, one version, or all below a prefix. Also removes abandoned uploads and probes.

use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderName, Method, StatusCode, header::IF_MATCH};
use md5::{Digest, Md5};
use reqsign_core::time::Timestamp;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{Condition, Removal, Tag};

use crate::{
    bucket::{BucketRequest, RequestContent},
    refusal::header,
    s3::{PROBE, S3},
    writing::NONCE,
    xml::{Contents, Deleted, ListBucketResult, OpenUpload, Uploads, escaped, parse},
};

/// The keys removed per request.
const BATCH_KEYS: usize = 1000;

/// The most pages that are listed and removed before concurrent writers are assumed. A page has 1,000 keys.
const PAGES_MAX: usize = 100_000;

impl OpenUpload {
    /// Whether it was begun at least `age` ago. If that is unknown, only for an `age` of zero.
    pub(crate) fn is_older_than(&self, age: Duration) -> bool {
        has_passed(self.initiated.as_deref(), age)
    }
}

impl Contents {
    /// Whether it was put at least `age` ago.
    fn is_older_than(&self, age: Duration) -> bool {
        has_passed(self.last_modified.as_deref(), age)
    }
}

/// Whether a time is at least `age` ago. An unknown time is so only for an `age` of zero.
fn has_passed(time: Option<&str>, age: Duration) -> bool {
    let time = time.and_then(|time| time.parse::<Timestamp>().ok());
    match time.map(Timestamp::as_system_time) {
        Some(time) => time.elapsed().unwrap_or_default() >= age,
        None => age.is_zero(),
    }
}

impl S3 {
    /// Removes a key. It is not an error if it does not exist.
    pub(crate) fn remove_key(&self, key: &str, name: &str) -> Result<()> {
        self.request_removal(key, name, &[], &[200, 204, 404]).map(drop)
    }

    /// Requests the removal of a key. Returns the status.
    fn request_removal(
        &self,
        key: &str,
        name: &str,
        condition: &[(HeaderName, &str)],
        expected: &[u16],
    ) -> Result<StatusCode> {
        let response = self.bucket().request(&BucketRequest {
            unsigned: condition,
            expected,
            ..BucketRequest::new(Method::DELETE, "remove", name, key)
        })?;
        Ok(response.status())
    }

    /// Requests the removal of a key on the condition that it has this version. Returns the status, which is 501 if the
    /// service says that it does not know the condition.
    fn request_conditional_removal(&self, key: &str, name: &str, tag: &str) -> Result<StatusCode> {
        self.request_removal(key, name, &[(IF_MATCH, tag)], &[200, 204, 404, 412, 501])
    }

    /// Whether the service removes an object only if it has the named version. Tested with an object that is removed
    /// again.
    pub(crate) fn compares_removed_versions(&self) -> Result<bool> {
        let key = self.probe_key();
        let full_name = self.bucket().describe(&key);
        self.put_object(&key, &full_name, b"probe", &Condition::Always)?;
        let status = self.request_conditional_removal(&key, &full_name, "\"00000000000000000000000000000000\"");
        self.remove_key(&key, &full_name)?;
        Ok(status? == StatusCode::PRECONDITION_FAILED)
    }

    /// Removes a key if it has this version. Returns whether it did.
    ///
    /// Some services ignore the condition or refuse it, so the version is checked first. With such a service there is a
    /// gap between the check and the removal: an object that is put in the gap is removed. Nothing can close it. The
    /// doctor names such services.
    pub(crate) fn remove_version(&self, key: &str, name: &str, tag: &str) -> Result<bool> {
        let response = self.bucket().request(&BucketRequest {
            unsigned: &[(IF_MATCH, tag)],
            expected: &[200, 404, 412],
            ..BucketRequest::new(Method::HEAD, "check", name, key)
        })?;
        if response.status() != 200 || header(response.headers(), "etag") != Some(tag) {
            return Ok(false);
        }
        let status = self.request_conditional_removal(key, name, tag)?;
        if status == StatusCode::NOT_IMPLEMENTED {
            self.remove_key(key, name)?;
            return Ok(true);
        }
        Ok(status.is_success())
    }

    /// Removes a key if its object was put with this nonce.
    pub(crate) fn remove_own(&self, key: &str, name: &str, nonce: &str) -> Result<()> {
        let headers = self.headers_of(key, name)?;
        let own = headers.filter(|headers| header(headers, NONCE) == Some(nonce));
        match own.as_ref().map(|headers| header(headers, "etag")) {
            None => Ok(()),
            Some(Some(tag)) => self.remove_version(key, name, tag).map(drop),
            Some(None) => self.remove_key(key, name),
        }
    }

    /// Removes objects and trees in order. Consecutive objects share a request.
    pub(crate) fn remove_in_order(&self, removals: &[Removal<'_>]) -> Result<Vec<bool>> {
        let mut done = Vec::with_capacity(removals.len());
        let is_plain = |removal: &Removal<'_>| matches!(removal, Removal::Object(_));
        for run in removals.chunk_by(|one, next| is_plain(one) && is_plain(next)) {
            let name = run[0].name();
            done.push(match &run[0] {
                Removal::Object(_) if run.len() == 1 => {
                    self.remove_key(&self.own_key(name)?, &self.describe(name))?;
                    true
                }
                Removal::Object(_) => {
                    let keys = run.iter().map(|one| self.own_key(one.name()));
                    self.remove_keys(&keys.collect::<Result<Vec<_>>>()?)?;
                    true
                }
                Removal::Version(_, Tag::Text(tag)) => {
                    self.remove_version(&self.own_key(name)?, &self.describe(name), tag)?
                }
                Removal::Version(_, Tag::File(_)) => false,
                Removal::Tree(_) => {
                    self.remove_below(&format!("{}/", self.own_key(name)?))?;
                    true
                }
            });
            done.resize(done.len() + run.len() - 1, true);
        }
        Ok(done)
    }

    /// Removes all keys that begin with `prefix`, a page at a time.
    pub(crate) fn remove_below(&self, prefix: &str) -> Result<()> {
        let name = self.bucket().describe(prefix);
        let mut folders = BTreeSet::from([prefix.to_owned()]);
        for _ in 0..PAGES_MAX {
            let keys = self.keys_below(prefix, &name)?;
            if keys.is_empty() {
                // SeaweedFS keeps and lists folders for a while after their last object is gone. They are removed from
                // the deepest up.
                let folders: Vec<_> = folders.into_iter().rev().collect();
                return self.remove_keys(&folders);
            }
            self.remove_keys(&keys)?;
            for key in &keys {
                let inside = key.strip_prefix(prefix).unwrap_or_default();
                let ends = inside.match_indices('/').map(|(at, _)| prefix.len() + at + 1);
                folders.extend(ends.map(|end| key[..end].to_owned()));
            }
        }
        let message = "other writers put objects there as fast as they are removed";
        Err(Error::new(ErrorKind::Transient, "clear", name, message))
    }

    /// The first page of keys that begin with `prefix`.
    fn keys_below(&self, prefix: &str, name: &str) -> Result<Vec<String>> {
        let page = self.objects_below(prefix, name)?;
        Ok(page.into_iter().map(|object| object.key).collect())
    }

    /// The first page of objects whose keys begin with `prefix`.
    fn objects_below(&self, prefix: &str, name: &str) -> Result<Vec<Contents>> {
        let mut query = vec![("list-type", "2"), ("max-keys", "1000")];
        if !prefix.is_empty() {
            query.push(("prefix", prefix));
        }
        let response = self.bucket().list_page(name, &query)?;
        let page = ListBucketResult::parse(response.body());
        let page = page.map_err(|_| self.not_s3("list", OsStr::new("")))?;
        Ok(page.contents)
    }

    /// Removes keys with as few requests as possible.
    pub(crate) fn remove_keys(&self, keys: &[String]) -> Result<()> {
        let name = self.describe(OsStr::new(""));
        for keys in keys.chunks(BATCH_KEYS) {
            let objects = keys.iter().map(|key| escaped(key));
            let objects: Vec<_> = objects
                .flat_map(|key| ["<Object><Key>".into(), key, "</Key></Object>".into()])
                .collect();
            let objects = objects.concat();
            let body = format!("<Delete><Quiet>true</Quiet>{objects}</Delete>");
            let digest = BASE64_STANDARD.encode(Md5::digest(&body));
            let request = BucketRequest {
                query: &[("delete", "")],
                ..BucketRequest::new(Method::POST, "remove", &name, "")
            };
            let content = RequestContent {
                headers: &[("content-md5", &digest)],
                body: body.as_bytes(),
                ..RequestContent::default()
            };
            let sent = self.bucket().send(&request, &content)?;
            let deleted: Deleted =
                parse(sent.body(), "DeleteResult").ok_or_else(|| self.not_s3("remove", OsStr::new("")))?;
            if let Some(error) = deleted.errors.first() {
                let message = format!("the service refused ({}: {})", error.code, error.message);
                let hint = "grant s3:DeleteObject, and check whether it is protected by object lock";
                let name = self.bucket().describe(&error.key);
                let kind = match error.code.as_str() {
                    "AccessDenied" => ErrorKind::Denied,
                    _ => ErrorKind::Invalid,
                };
                return Err(Error::new(kind, "remove", name, message).with_hint(hint));
            }
        }
        Ok(())
    }

    /// Aborts uploads below the prefix that were begun at least `age` ago. Returns the names of their objects.
    pub(crate) fn sweep_uploads(&self, age: Duration) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        for upload in self.uploads()? {
            if upload.is_older_than(age) {
                self.abort(&upload.key, &upload.upload_id)?;
                swept.push(self.bucket().describe(&upload.key));
            }
        }
        Ok(swept)
    }

    /// Removes probes directly below the prefix that were put at least `age` ago. Returns their names.
    pub(crate) fn sweep_probes(&self, age: Duration) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        let (prefix, name) = (format!("{}{PROBE}", self.prefix()), self.describe(OsStr::new("")));
        // One page is enough for the probes that killed processes leave in a week.
        for probe in self.objects_below(&prefix, &name)? {
            if probe.key.starts_with(&prefix) && probe.is_older_than(age) {
                let full_name = self.bucket().describe(&probe.key);
                self.remove_key(&probe.key, &full_name)?;
                swept.push(full_name);
            }
        }
        Ok(swept)
    }

    /// All open uploads below the prefix.
    pub(crate) fn uploads(&self) -> Result<Vec<OpenUpload>> {
        let name = self.describe(OsStr::new(""));
        let (mut all, mut after) = (Vec::new(), None::<(String, String)>);
        for _ in 0..PAGES_MAX {
            let mut query = vec![("max-uploads", "1000"), ("uploads", "")];
            if !self.prefix().is_empty() {
                query.push(("prefix", self.prefix()));
            }
            if let Some((key, id)) = &after {
                query.extend([("key-marker", key.as_str()), ("upload-id-marker", id)]);
            }
            query.sort_unstable();
            let response = self.bucket().list_page(&name, &query)?;
            let page: Uploads = parse(response.body(), "ListMultipartUploadsResult")
                .ok_or_else(|| self.not_s3("list", OsStr::new("")))?;
            // A service may list more than was requested.
            let own = page.open.into_iter();
            all.extend(own.filter(|upload| upload.key.starts_with(self.prefix())));
            let next = page.next_key_marker.filter(|_| page.is_truncated);
            let next = next.map(|key| (key, page.next_upload_id_marker.unwrap_or_default()));
            if next.is_none() || next == after {
                return Ok(all);
            }
            after = next;
        }
        Ok(all)
    }

    /// Aborts an upload. It is not an error if the upload does not exist.
    pub(crate) fn abort(&self, key: &str, id: &str) -> Result<()> {
        let name = self.bucket().describe(key);
        let response = self.bucket().request(&BucketRequest {
            query: &[("uploadId", id)],
            expected: &[200, 204, 404],
            ..BucketRequest::new(Method::DELETE, "abort the upload of", &name, key)
        });
        response.map(drop)
    }
}
