//! Copies inside the service: their bytes do not come here.
//!
//! One request copies an object of up to 5 GiB. A longer one is copied in parts, as an upload is. Both name the version
//! that is copied.

use std::{any::Any, ffi::OsString};

use http::Method;
use straightway_core::{Error, Kind, Result};
use straightway_io::store::{Named, Store, Tag};
use straightway_net::together;

use crate::{
    bucket::{Ask, Cargo},
    endpoint::in_path,
    store::S3,
    upload::Completion,
    writing::{ANSWER_BYTES_MAX, fresh_nonce},
    xml::{CopyPart, escaped, parse},
};

/// The longest object that one request copies, by S3.
const WHOLE_BYTES_MAX: u64 = 5 << 30;

/// A part of a longer one: 5 TiB have 10,000.
const PART_BYTES: u64 = 512 << 20;

/// Requests side by side.
const COPIERS_MAX: usize = 16;

impl S3 {
    /// Copies objects inside the service. `false` where they are in another one.
    pub(crate) fn copy_objects(
        &self,
        from: &dyn Store,
        objects: &[(Named, OsString)],
    ) -> Result<bool> {
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
        together(objects, COPIERS_MAX, |(named, to)| {
            self.copy_object(from, named, to)
        })?;
        Ok(true)
    }

    /// Whether the service refuses to copy an object whose version is not the one that is named. One that does not could
    /// mix two versions. The shortest of the objects is tried, once for a bucket.
    fn copies_versions(&self, from: &Self, objects: &[(Named, OsString)]) -> Result<bool> {
        let known = objects.iter().filter(|(named, _)| named.bytes.is_some());
        let shortest = known
            .min_by_key(|(named, _)| named.bytes)
            .or(objects.first());
        let Some((named, _)) = shortest else {
            return Ok(true);
        };
        self.bucket().habits.copies_versions(|| {
            let (source_key, _) = from.key(&named.name)?;
            let key = self.probe_key();
            let told = self.bucket().describe(&key);
            let request = Ask {
                method: Method::PUT,
                operation: "copy",
                name: &from.describe(&named.name),
                key: &key,
                query: &[],
                unsigned: &[],
                expected: &[200, 412],
                body_bytes_max: ANSWER_BYTES_MAX,
            };
            let source = format!("/{}/{}", from.bucket().name, in_path(&source_key));
            let cargo = Cargo {
                headers: &[
                    ("x-amz-copy-source", &source),
                    (
                        "x-amz-copy-source-if-match",
                        "\"00000000000000000000000000000000\"",
                    ),
                ],
                body: b"",
            };
            let is_refused = self.bucket().send(&request, &cargo)?.answer.status() == 412;
            if !is_refused {
                self.remove_key(&key, &told, None)?;
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
            return Err(Error::new(Kind::Invalid, "copy", source_name, message));
        }
        let (bytes, tag) = if let (Some(bytes), Some(tag)) = (named.bytes, &named.tag) {
            (bytes, Some(tag.clone()))
        } else {
            let opened = from.open(std::slice::from_ref(named))?.remove(0);
            (opened.object().bytes, opened.tag())
        };
        let Some(Tag::Text(tag)) = tag else {
            return Err(from.not_s3("copy", &named.name));
        };
        let mut place = format!("/{}/{}", from.bucket().name, in_path(&source_key));
        if let Some(version) = version {
            place = format!("{place}?versionId={version}");
        }
        let copied = Copied {
            source: &place,
            tag: &tag,
            name: &source_name,
            key: &key,
        };
        if bytes <= WHOLE_BYTES_MAX {
            return self.copy_part(&copied, &[], None).map(drop);
        }
        self.copy_in_parts(&copied, bytes)
    }

    /// Copies a whole object, or a range of it as a part of an upload. Answers what the service calls that.
    fn copy_part(
        &self,
        copied: &Copied<'_>,
        query: &[(&str, &str)],
        range: Option<&str>,
    ) -> Result<String> {
        let mut headers = vec![
            ("x-amz-copy-source", copied.source),
            ("x-amz-copy-source-if-match", copied.tag),
        ];
        headers.extend(range.map(|range| ("x-amz-copy-source-range", range)));
        let request = Ask {
            method: Method::PUT,
            operation: "copy",
            name: copied.name,
            key: copied.key,
            query,
            unsigned: &[],
            expected: &[200, 412],
            body_bytes_max: ANSWER_BYTES_MAX,
        };
        let cargo = Cargo {
            headers: &headers,
            body: b"",
        };
        let answer = self.bucket().send(&request, &cargo)?.answer;
        if answer.status() == 412 {
            let message = "it was replaced while it was copied";
            let error = Error::new(Kind::Corrupt, "copy", copied.name, message);
            return Err(error.with_hint("copy it again; nothing of two versions was mixed"));
        }
        let root = if query.is_empty() {
            "CopyObjectResult"
        } else {
            "CopyPartResult"
        };
        let told: Option<CopyPart> = parse(answer.body(), root);
        told.map(|told| told.etag)
            .ok_or_else(|| self.not_s3("copy", copied.key.as_ref()))
    }

    fn copy_in_parts(&self, copied: &Copied<'_>, bytes: u64) -> Result<()> {
        let nonce = fresh_nonce();
        let id = self.initiate(copied.key, copied.name, &nonce, false)?;
        let starts: Vec<_> = (0..bytes.div_ceil(PART_BYTES))
            .map(|number| number * PART_BYTES)
            .collect();
        let tags = together(&starts, COPIERS_MAX, |start| {
            let range = format!("bytes={start}-{}", bytes.min(start + PART_BYTES) - 1);
            let number = (start / PART_BYTES + 1).to_string();
            let query = [("partNumber", number.as_str()), ("uploadId", &id)];
            self.copy_part(copied, &query, Some(&range))
        });
        let done = tags.and_then(|tags| {
            let part = |(number, tag): (usize, &String)| {
                let (number, tag) = (number + 1, escaped(tag));
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
            };
            self.complete(&Completion {
                key: copied.key,
                name: copied.name,
                id: &id,
                nonce: &nonce,
                parts: tags.iter().enumerate().map(part).collect(),
                sum: None,
            })
        });
        done.inspect_err(|_| {
            // What cannot be ended now is swept later.
            let _ = self.abort(copied.key, &id);
        })
    }
}

/// What is copied, and to which key.
struct Copied<'a> {
    /// The bucket and key as a header has them.
    source: &'a str,
    tag: &'a str,
    /// What errors call it.
    name: &'a str,
    key: &'a str,
}
