//! Buckets as stores: opens and lists objects. The rest is in `upload`, `writing`, `removing` and `copying`.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
    time::Duration,
};

use http::{Method, header::RANGE};
use reqsign_core::time::Timestamp;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    engine::Engine,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Sweep, Tag, Verb, Verbs, parts, text,
    },
};
use straightway_net::{
    FAMILY, FirstResponse, Network, OBJECT_BYTES_MAX, Origin, Remote, Site, TUNING, Validator, engine, run_parallel,
};

use crate::{
    access::S3Access,
    bucket::{Bucket, BucketRequest, KeyService, PAGE_BYTES_MAX},
    upload::{PART_BYTES, commit_each, commit_in_order},
    writing::fresh_nonce,
    xml::{Contents, ListBucketResult},
};

/// The most names on one page.
const PAGE_NAMES_MAX: usize = 1000;

/// The most objects opened in parallel.
const OPENERS_MAX: usize = 32;

/// The bytes requested when an object is opened. They hold the header of nearly every safetensors file.
const FRONT_BYTES_MAX: usize = 1 << 20;

/// The same for all objects of one call together, since their first bytes stay in memory.
const FRONTS_BYTES_MAX: usize = 64 << 20;

/// The age at which an upload or a probe counts as left behind by a killed writer.
pub(crate) const STALE_AFTER: Duration = Duration::from_hours(7 * 24);

/// The prefix of the names of probes.
pub(crate) const PROBE: &str = ".straightway-probe-";

/// The separator between a key and its version id.
const VERSION_MARK: &str = "?versionId=";

/// Whether an object can be opened without a request: its length and its version are known. A length of 0 is not believed:
/// nothing would be requested of the object, so a wrong one would never be noticed. Nor is an impossible one.
fn is_known(named: &Named) -> bool {
    named.bytes.is_some_and(|bytes| (1..=OBJECT_BYTES_MAX).contains(&bytes)) && named.tag.is_some()
}

/// Whether a text can be a tag, which is sent in a header.
fn is_tag(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A bucket, or a prefix in it.
#[derive(Clone, Debug)]
pub struct S3 {
    bucket: Arc<Bucket>,
    origin: Arc<Origin>,
    /// The prefix of all keys: empty, or ending with `/`.
    prefix: String,
    /// The prefix of the outermost store that this one was derived from. Probes are put there.
    outermost: String,
}

impl S3 {
    /// A bucket with these settings. No request is sent yet.
    pub fn new(bucket: &str, access: &S3Access, network: &Arc<Network>) -> Result<Self> {
        let bucket = Bucket::new(bucket, access, network)?;
        let url = bucket.endpoint.origin.parse().map_err(|_| {
            let message = "it is not a URL";
            Error::new(ErrorKind::Invalid, "use the endpoint", &bucket.endpoint.origin, message)
        })?;
        let origin = network.origin(&Site::of(&url)?)?;
        Ok(Self {
            bucket: Arc::new(bucket),
            origin,
            prefix: String::new(),
            outermost: String::new(),
        })
    }

    /// The URL of its service.
    pub fn endpoint(&self) -> &str {
        &self.bucket.endpoint.service
    }

    /// The bucket.
    pub(crate) fn bucket(&self) -> &Arc<Bucket> {
        &self.bucket
    }

    /// Its server.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The store of the objects below a name.
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

    /// The key of an object to write or remove.
    pub(crate) fn own_key(&self, name: &OsStr) -> Result<String> {
        parts(self, name)?;
        let (key, version) = self.key(name)?;
        if version.is_some() {
            return Err(self.refuse(name, "a version of an object cannot be written or removed"));
        }
        Ok(key)
    }

    /// The key of an object that probes a feature of the service. Probes of killed processes are swept.
    pub(crate) fn probe_key(&self) -> String {
        format!("{}{PROBE}{}", self.outermost, fresh_nonce())
    }

    /// The key and the version of a name.
    pub(crate) fn key(&self, name: &OsStr) -> Result<(String, Option<String>)> {
        let name_text = text(self, name)?;
        let (name_text, version) = match name_text.rsplit_once(VERSION_MARK) {
            Some((key, version)) if !version.is_empty() => (key, Some(version.to_owned())),
            _ => (name_text, None),
        };
        let key = format!("{}{name_text}", self.prefix);
        // Clients and servers resolve such parts in the path of a URL.
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(self.refuse(name, "a key with a part `.` or `..` cannot be requested"));
        }
        Ok((key, version))
    }

    fn refuse(&self, name: &OsStr, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, "use the name", self.describe(name), why)
    }

    fn open_one(&self, named: &Named, front_bytes: u32) -> Result<Arc<dyn Handle>> {
        let (key, version) = self.key(&named.name)?;
        if key.is_empty() || key.len() == self.prefix.len() {
            let error = self.refuse(&named.name, "it is a bucket or a prefix, not an object");
            return Err(error.with_hint("name an object in it"));
        }
        let name = self.describe(&named.name);
        let service = Arc::new(KeyService::new(&self.bucket, key, version));
        let (origin, client) = (&self.origin, &self.bucket.client);
        let validator = match &named.tag {
            Some(Tag::Text(tag)) if is_tag(tag) => Some(Validator::Tag(tag.clone())),
            Some(Tag::Text(_)) => {
                return Err(self.refuse(&named.name, "its tag has invalid characters"));
            }
            Some(Tag::File(_)) => return Err(self.refuse(&named.name, "it has the tag of a file")),
            None => None,
        };
        let known_bytes = named.bytes.filter(|_| validator.is_some());
        let bytes = known_bytes.filter(|_| is_known(named));
        let key_service = Arc::clone(&service);
        let remote = Remote::known(name, bytes.unwrap_or(0), validator, origin, service, client);
        if bytes.is_some() {
            return Ok(Arc::new(remote));
        }
        match remote.first_response(front_bytes)? {
            // Every object of S3 has a tag, but the refused range of an empty object may come without it.
            FirstResponse::Found { bytes, .. } if known_bytes.is_some_and(|known| known != bytes) => {
                let known = known_bytes.unwrap_or_default();
                let why = format!("its length is {bytes} bytes, but the listing of the same version said {known}");
                let hint = "the service or a gateway in front of it is faulty: open it by its name";
                Err(Error::new(ErrorKind::Corrupt, "open", remote.name(), why).with_hint(hint))
            }
            FirstResponse::Found {
                bytes,
                validator,
                front,
            } if bytes == 0 || validator.is_some() => Ok(Arc::new(remote.found(bytes, validator, front))),
            FirstResponse::Found { .. } => Err(self.not_s3("open", &named.name)),
            FirstResponse::Redirect(_) => Err(self.redirected(&key_service, remote.name())),
        }
    }

    /// The error of a service that is not S3.
    pub(crate) fn not_s3(&self, operation: &'static str, name: &OsStr) -> Error {
        let service = &self.bucket.endpoint.service;
        let message = format!("{service} does not respond like an S3 service");
        Error::new(ErrorKind::Unsupported, operation, self.describe(name), message)
            .with_hint("check ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3: it must be the address of an S3 service")
    }

    /// The error of a redirected bucket, from a second request whose response names the location.
    fn redirected(&self, service: &KeyService, name: &str) -> Error {
        let response = self.bucket.request(&BucketRequest {
            method: Method::GET,
            operation: "open",
            name,
            key: &service.key,
            query: &service.query(),
            unsigned: &[(RANGE, "bytes=0-0")],
            expected: &[200, 206],
            body_bytes_max: PAGE_BYTES_MAX,
        });
        response.err().unwrap_or_else(|| {
            let message = "the service redirected one request but not the next";
            Error::new(ErrorKind::Transient, "open", name, message).with_hint("try again")
        })
    }

    /// One page of keys below the prefix, up to the next slash.
    fn page(&self, page: &ListPage) -> Result<ListBucketResult> {
        let names_max = page.names_max.clamp(1, PAGE_NAMES_MAX).to_string();
        let after = page.after.as_ref().map(|after| after.to_string_lossy().into_owned());
        let token = after.as_deref().and_then(|after| after.split_once(' '));
        let mut query = vec![("delimiter", "/"), ("list-type", "2"), ("max-keys", names_max.as_str())];
        if !self.prefix.is_empty() {
            query.push(("prefix", &self.prefix));
        }
        if let Some((_, token)) = token {
            query.push(("continuation-token", token));
        }
        let name = self.describe(OsStr::new(""));
        let response = self.bucket.list_page(&name, &query)?;
        ListBucketResult::parse(response.body()).map_err(|_| self.not_s3("list", OsStr::new("")))
    }

    /// The start of the page after `page`, from the continuation token that the service sent with it.
    fn start_after(&self, page: &ListPage, token: Option<String>) -> Result<OsString> {
        let refuse = |why: &str| {
            let name = self.describe(OsStr::new(""));
            Err(Error::new(ErrorKind::Corrupt, "list", name, why).with_hint(
                "the service or a gateway in front of it is faulty: list a prefix with fewer than 1,000 names, or \
                 check ⟦endpoint⟧",
            ))
        };
        let sent = page.after.as_ref().and_then(|after| after.to_str()?.split_once(' '));
        let Some(token) = token else {
            return refuse("the listing is truncated, but the service sent no continuation token");
        };
        // A service that ignores the token sends the same page forever.
        if sent.is_some_and(|(_, sent)| sent == token) {
            return refuse("the service sent the same continuation token again");
        }
        // Continuation tokens have no order, but pages need one: the number in front orders them.
        let number: Option<u64> = sent.and_then(|(number, _)| number.parse().ok());
        Ok(format!("{:012} {token}", number.unwrap_or(0) + 1).into())
    }

    /// The name of a listed key; `None` for the folder itself.
    fn listed<'a>(&self, key: &'a str) -> Result<Option<&'a str>> {
        let refuse = |why: &str| {
            let name = self.bucket.describe(key);
            Err(Error::new(ErrorKind::Invalid, "list", name, why).with_hint("open it by its full name"))
        };
        let Some(name) = key.strip_prefix(&self.prefix) else {
            return refuse("the service listed it under the wrong prefix");
        };
        let part = name.strip_suffix('/').unwrap_or(name);
        match part {
            "" if name.is_empty() => Ok(None),
            "" => refuse("its key has an empty part, which cannot be the name of a folder"),
            "." | ".." => refuse("its key has a part `.` or `..`, which cannot be the name of a folder"),
            part if part.contains('/') => refuse("the service listed it under the wrong prefix"),
            _ => Ok(Some(name)),
        }
    }

    fn named(&self, object: Contents) -> Result<Option<Named>> {
        let Some(name) = self.listed(&object.key)? else {
            return Ok(None);
        };
        // A key that ends with a slash represents a folder and has no bytes.
        if name.ends_with('/') {
            return Ok(None);
        }
        let modified = object.last_modified.and_then(|time| time.parse::<Timestamp>().ok());
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
        self.bucket.describe(&format!("{}{}", self.prefix, name.display()))
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            service: Some(self.endpoint()),
            tuning: Some(TUNING),
            kept_bytes_max: PART_BYTES,
            ..Facts::of(FAMILY)
        }
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
        // Objects known from a listing need no request and no thread.
        let openers = if objects.iter().all(is_known) { 1 } else { OPENERS_MAX };
        run_parallel(objects, openers, |named| self.open_one(named, front))
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        engine(self.bucket.client.network(), lane)
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
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
            listing.next = Some(self.start_after(page, found.next_continuation_token)?);
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, _: Missing) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(self.inside(folder)?))
    }

    fn create(&self, name: &OsStr, bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        Ok(Box::new(self.begin_upload(name, bytes)?))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        match mode {
            CommitMode::InOrder => commit_in_order(drafts),
            CommitMode::Each => commit_each(drafts),
        }
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        let key = self.own_key(name)?;
        if *on == Condition::IfAbsent {
            self.prove_one_winner()?;
        }
        self.put_object(&key, &self.describe(name), bytes, on)
    }

    fn remove_all(&self, removals: &[Removal<'_>], _: Durability) -> Result<Vec<bool>> {
        self.remove_in_order(removals)
    }

    fn copy_within(&self, from: &dyn Store, objects: &[(Named, OsString)]) -> Result<bool> {
        self.copy_objects(from, objects)
    }

    fn sweep(&self, which: Sweep) -> Result<Vec<String>> {
        let Sweep::OlderThan(age) = which else {
            // Only our own probes: an old upload below the prefix may belong to another program that will resume it.
            return self.sweep_probes(STALE_AFTER);
        };
        let mut swept = self.sweep_uploads(age)?;
        swept.extend(self.sweep_probes(age)?);
        Ok(swept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_put_under_the_prefix_of_the_outermost_store() {
        let network = Network::new(straightway_net::NetworkSettings::default());
        let mut access = S3Access::default();
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
