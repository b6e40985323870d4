//! Buckets as stores: objects are opened and listed here. `upload`, `writing`, `removing` and `copying` have the rest.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
    time::Duration,
};

use http::{Method, header::RANGE};
use reqsign_core::time::Timestamp;
use straightway_core::{Direction, Error, Extent, Kind, Result, Survey};
use straightway_io::{
    engine::Engine,
    store::{
        Condition, Draft, Durability, Handle, LaneSpec, Like, Listing, Missing, Named, Page, Store,
        Tag, Tuning, Verb, Verbs, parts, text,
    },
};
use straightway_net::{
    FAMILY, First, Network, Origin, Remote, Site, TUNING, Upload, Validator, engine, together,
};

use crate::{
    access::Access,
    bucket::{Ask, Bucket, KeyService, PAGE_BYTES_MAX},
    upload::{PART_BYTES, commit_each, commit_in_order},
    writing::fresh_nonce,
    xml::{Contents, ListBucketResult},
};

/// The most names on one page.
const PAGE_NAMES_MAX: usize = 1000;

/// Objects that are opened side by side.
const OPENERS_MAX: usize = 32;

/// What the first request for an object asks for. It holds the header of nearly every safetensors file.
const FRONT_BYTES_MAX: usize = 1 << 20;

/// The same for all objects that are opened at once, whose first bytes are kept.
const FRONTS_BYTES_MAX: usize = 64 << 20;

/// How old an upload is before it counts as left by a writer that was killed.
pub(crate) const LEFT_AFTER: Duration = Duration::from_hours(7 * 24);

/// What the names of probes begin with.
pub(crate) const PROBE: &str = ".straightway-probe-";

/// What follows a key to name one version of it.
const VERSION_MARK: &str = "?versionId=";

/// Whether a text can be a tag: requests have it in a header.
fn is_tag(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A bucket, or what is below a prefix in it.
#[derive(Clone, Debug)]
pub struct S3 {
    bucket: Arc<Bucket>,
    origin: Arc<Origin>,
    /// What all keys begin with: nothing, or parts that end with `/`.
    prefix: String,
    /// The prefix that this store or the one that it lies in was opened with. Probes are put there.
    outermost: String,
}

impl S3 {
    /// A bucket that is reached like this. Nothing is asked yet.
    pub fn new(bucket: &str, access: &Access, network: &Arc<Network>) -> Result<Self> {
        let bucket = Bucket::new(bucket, access, network)?;
        let url = bucket.endpoint.origin.parse().map_err(|_| {
            let message = "it is no URL";
            Error::new(
                Kind::Invalid,
                "use the endpoint",
                &bucket.endpoint.origin,
                message,
            )
        })?;
        let origin = network.origin(&Site::of(&url)?)?;
        Ok(Self {
            bucket: Arc::new(bucket),
            origin,
            prefix: String::new(),
            outermost: String::new(),
        })
    }

    /// The address of the service that it is on.
    pub fn endpoint(&self) -> &str {
        &self.bucket.endpoint.service
    }

    /// The bucket.
    pub(crate) fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// The server that it is on.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// What all keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What is below a name.
    pub(crate) fn inside(&self, folder: &OsStr) -> Result<Self> {
        let (key, version) = self.key(folder)?;
        if version.is_some() {
            return Err(self.refuse(folder, "a prefix has no version"));
        }
        let prefix = match key.as_str() {
            "" => String::new(),
            key if key.ends_with('/') => key.to_owned(),
            key => format!("{key}/"),
        };
        let outermost = match self.prefix.as_str() {
            "" => prefix.clone(),
            _ => self.outermost.clone(),
        };
        Ok(Self {
            prefix,
            outermost,
            ..self.clone()
        })
    }

    /// The key of an object that is written or removed.
    pub(crate) fn own_key(&self, name: &OsStr) -> Result<String> {
        parts(self, name)?;
        let (key, version) = self.key(name)?;
        if version.is_some() {
            return Err(self.refuse(name, "a version of an object cannot be written or removed"));
        }
        Ok(key)
    }

    /// The key of an object that only finds out what the service does. A probe of a killed process is swept.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}{PROBE}{}", self.outermost, fresh_nonce())
    }

    /// The key of a name, and the version that it names.
    pub(crate) fn key(&self, name: &OsStr) -> Result<(String, Option<String>)> {
        let name_text = text(self, name)?;
        let (name_text, version) = match name_text.rsplit_once(VERSION_MARK) {
            Some((key, version)) if !version.is_empty() => (key, Some(version.to_owned())),
            _ => (name_text, None),
        };
        let key = format!("{}{name_text}", self.prefix);
        // The path of a URL has no such parts: clients and servers resolve them.
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(self.refuse(name, "a key with a part `.` or `..` cannot be asked for"));
        }
        Ok((key, version))
    }

    fn refuse(&self, name: &OsStr, why: &str) -> Error {
        Error::new(Kind::Invalid, "use the name", self.describe(name), why)
    }

    fn open_one(&self, named: &Named, front_bytes: u32) -> Result<Arc<dyn Handle>> {
        let (key, version) = self.key(&named.name)?;
        if key.is_empty() || key.len() == self.prefix.len() {
            let error = self.refuse(&named.name, "it is a bucket or a prefix, and no object");
            return Err(error.with_hint("name an object in it"));
        }
        let name = self.describe(&named.name);
        let service = Arc::new(KeyService::new(&self.bucket, key, version));
        let (origin, client) = (&self.origin, &self.bucket.client);
        let validator = match &named.tag {
            Some(Tag::Text(tag)) if is_tag(tag) => Some(Validator::Tag(tag.clone())),
            Some(Tag::Text(_)) => {
                return Err(self.refuse(&named.name, "its tag has odd characters"));
            }
            Some(Tag::File(_)) => return Err(self.refuse(&named.name, "it has the tag of a file")),
            None => None,
        };
        let bytes = named.bytes.filter(|_| validator.is_some());
        let asked = Arc::clone(&service);
        let remote = Remote::known(name, bytes.unwrap_or(0), validator, origin, service, client);
        if bytes.is_some() {
            return Ok(Arc::new(remote));
        }
        match remote.first(front_bytes)? {
            // Every object of S3 has a tag. Of an empty one the refusal of a range need not tell it.
            First::Found {
                bytes,
                validator,
                front,
            } if bytes == 0 || validator.is_some() => {
                Ok(Arc::new(remote.found(bytes, validator, front)))
            }
            First::Found { .. } => Err(self.not_s3("open", &named.name)),
            First::Redirect(_) => Err(self.redirected(&asked, remote.name())),
        }
    }

    /// The error of a service that is none of S3.
    pub(crate) fn not_s3(&self, operation: &'static str, name: &OsStr) -> Error {
        let service = &self.bucket.endpoint.service;
        let message = format!("{service} does not answer as S3 does");
        Error::new(Kind::Unsupported, operation, self.describe(name), message).with_hint(
            "check --endpoint or AWS_ENDPOINT_URL_S3: it must be the address of an S3 service",
        )
    }

    /// The error of a bucket that is elsewhere, by a second request that tells where.
    fn redirected(&self, service: &KeyService, name: &str) -> Error {
        let answer = self.bucket.ask(&Ask {
            method: Method::GET,
            operation: "open",
            name,
            key: &service.key,
            query: &service.query(),
            unsigned: &[(RANGE, "bytes=0-0")],
            expected: &[200, 206],
            body_bytes_max: PAGE_BYTES_MAX,
        });
        answer.err().unwrap_or_else(|| {
            let message = "the service redirects elsewhere, and then does not";
            Error::new(Kind::Transient, "open", name, message).with_hint("try again")
        })
    }

    /// One page of keys below the prefix, up to the next slash.
    fn page(&self, page: &Page) -> Result<ListBucketResult> {
        let names_max = page.names_max.clamp(1, PAGE_NAMES_MAX).to_string();
        let after = page
            .after
            .as_ref()
            .map(|after| after.to_string_lossy().into_owned());
        let token = after.as_deref().and_then(|after| after.split_once(' '));
        let mut query = vec![
            ("delimiter", "/"),
            ("list-type", "2"),
            ("max-keys", names_max.as_str()),
        ];
        if !self.prefix.is_empty() {
            query.push(("prefix", &self.prefix));
        }
        if let Some((_, token)) = token {
            query.push(("continuation-token", token));
        }
        let name = self.describe(OsStr::new(""));
        let answer = self.bucket.ask_for_page(&name, &query)?;
        ListBucketResult::parse(answer.body()).map_err(|_| self.not_s3("list", OsStr::new("")))
    }

    /// The name of a key of a listing; `None` for what stands for the folder itself.
    fn listed<'a>(&self, key: &'a str) -> Result<Option<&'a str>> {
        let refuse = |why: &str| {
            let name = self.bucket.describe(key);
            Err(Error::new(Kind::Invalid, "list", name, why)
                .with_hint("read it by its name, which can be given whole"))
        };
        let Some(name) = key.strip_prefix(&self.prefix) else {
            return refuse("the service lists it where it does not belong");
        };
        let part = name.strip_suffix('/').unwrap_or(name);
        match part {
            "" if name.is_empty() => Ok(None),
            "" => refuse("its key has an empty part, which no folder can be called"),
            "." | ".." => refuse("its key has a part `.` or `..`, which no folder can be called"),
            part if part.contains('/') => refuse("the service lists it where it does not belong"),
            _ => Ok(Some(name)),
        }
    }

    fn named(&self, object: Contents) -> Result<Option<Named>> {
        let Some(name) = self.listed(&object.key)? else {
            return Ok(None);
        };
        // A key that ends with a slash stands for a folder, and has no bytes.
        if name.ends_with('/') {
            return Ok(None);
        }
        let modified = object
            .last_modified
            .and_then(|time| time.parse::<Timestamp>().ok());
        Ok(Some(Named {
            name: name.into(),
            bytes: Some(object.size),
            tag: object.etag.filter(|tag| !tag.is_empty()).map(Tag::Text),
            modified: modified.map(Timestamp::as_system_time),
        }))
    }
}

impl Store for S3 {
    fn describe(&self, name: &OsStr) -> String {
        self.bucket
            .describe(&format!("{}{}", self.prefix, name.display()))
    }

    fn address(&self) -> String {
        format!("{} at {}", self.describe(OsStr::new("")), self.endpoint())
    }

    fn verbs(&self) -> Verbs {
        Verbs::of(&[
            Verb::List,
            Verb::Create,
            Verb::Put,
            Verb::PutIfAbsent,
            Verb::PutIfMatch,
            Verb::Remove,
            Verb::RemoveIfMatch,
        ])
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let front = (FRONTS_BYTES_MAX / objects.len().max(1)).min(FRONT_BYTES_MAX);
        let front = u32::try_from(front).expect("it is at most a MiB");
        // What a listing told is not asked again, and needs no thread.
        let is_known = |named: &Named| named.bytes.is_some() && named.tag.is_some();
        let openers = if objects.iter().all(is_known) {
            1
        } else {
            OPENERS_MAX
        };
        together(objects, openers, |named| self.open_one(named, front))
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        engine(self.bucket.client.network(), lane)
    }

    fn family(&self) -> &'static str {
        FAMILY
    }

    fn survey(
        &self,
        objects: &[Arc<dyn Handle>],
        _hulls: &[Option<Extent>],
        _: Direction,
    ) -> Result<Vec<Survey>> {
        let survey = |handle: &Arc<dyn Handle>| match Upload::of(handle) {
            Some(upload) => upload.survey(),
            None => self.origin.site().survey(),
        };
        Ok(objects.iter().map(survey).collect())
    }

    fn tuning(&self) -> Tuning {
        TUNING
    }

    fn kept_bytes_max(&self) -> u64 {
        PART_BYTES
    }

    fn list(&self, page: &Page) -> Result<Listing> {
        let found = self.page(page)?;
        let mut listing = Listing::default();
        for object in found.contents {
            listing.objects.extend(self.named(object)?);
        }
        for folder in found.common_prefixes {
            let name = self.listed(&folder.prefix)?;
            listing
                .folders
                .extend(name.map(|name| OsString::from(name.trim_end_matches('/'))));
        }
        if found.is_truncated {
            // Tokens have no order, and pages have: the number in front makes each later than the one before.
            let before = page
                .after
                .as_ref()
                .and_then(|after| after.to_str()?.split_once(' ')?.0.parse().ok());
            let number: u64 = before.unwrap_or(0);
            listing.next = found
                .next_continuation_token
                .map(|token| format!("{:012} {token}", number + 1).into());
            if listing.next.is_none() {
                let message = "the service cut the list off, and does not say where it goes on";
                let name = self.describe(OsStr::new(""));
                return Err(Error::new(Kind::Corrupt, "list", name, message));
            }
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.inside(folder)?))
    }

    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        Ok(Box::new(self.begin_upload(name, bytes)?))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        commit_in_order(drafts)
    }

    fn commit_each(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        commit_each(drafts)
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        let key = self.own_key(name)?;
        if *on == Condition::IfAbsent {
            self.prove_one_winner()?;
        }
        self.put_object(&key, &self.describe(name), bytes, on)
    }

    fn remove(&self, name: &OsStr, _: Durability) -> Result<()> {
        let key = self.own_key(name)?;
        self.remove_key(&key, &self.describe(name), None).map(drop)
    }

    fn remove_if_match(&self, name: &OsStr, tag: &Tag, _: Durability) -> Result<bool> {
        let Tag::Text(tag) = tag else {
            return Ok(false);
        };
        self.remove_version(&self.own_key(name)?, &self.describe(name), tag)
    }

    fn clear(&self, folder: &OsStr) -> Result<()> {
        let key = self.own_key(folder)?;
        self.remove_below(&format!("{key}/"))
    }

    fn copy_within(&self, from: &dyn Store, objects: &[(Named, OsString)]) -> Result<bool> {
        self.copy_objects(from, objects)
    }

    fn sweep(&self) {
        // Best effort: whoever may write need not be allowed to list uploads.
        let _ = self.sweep_uploads(LEFT_AFTER);
        let _ = self.sweep_probes(LEFT_AFTER);
    }

    fn sweep_drafts(&self, age: Duration) -> Result<Vec<String>> {
        let mut swept = self.sweep_uploads(age)?;
        swept.extend(self.sweep_probes(age)?);
        Ok(swept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_put_where_a_sweep_of_the_store_that_was_opened_finds_them() {
        let network = Network::new(straightway_net::Settings::default());
        let mut access = Access::default();
        access.set("endpoint_url", "http://127.0.0.1:9").unwrap();
        access.set("anonymous", "true").unwrap();
        let bucket = S3::new("lab", &access, &network).unwrap();
        assert!(bucket.probe_key().starts_with(PROBE));
        let job = bucket.inside("runs/one".as_ref()).unwrap();
        let step = job.inside("step-1".as_ref()).unwrap();
        for store in [job, step] {
            let key = store.probe_key();
            assert!(key.starts_with("runs/one/.straightway-probe-"), "{key}");
        }
    }
}
