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
    parallel,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, Sweep, Tag, Verb, Verbs,
    },
};
use straightway_net::{FAMILY, FirstResponse, OBJECT_BYTES_MAX, Remote, TUNING, Validator, engine};

use crate::{
    bucket::BucketRequest,
    key_service::KeyService,
    s3::S3,
    upload::{PART_BYTES, commit_each, commit_in_order},
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

/// Whether an object can be opened without a request: its length and its version are known. A length of 0 is not believed:
/// nothing would be requested of the object, so a wrong one would never be noticed. Nor is an impossible one.
fn is_known(named: &Named) -> bool {
    named.bytes.is_some_and(|bytes| (1..=OBJECT_BYTES_MAX).contains(&bytes)) && named.tag.is_some()
}

/// Whether a text can be a tag, which is sent in a header.
fn is_tag(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

impl S3 {
    fn open_one(&self, named: &Named, front_bytes: u32) -> Result<Arc<dyn Handle>> {
        let (key, version) = self.key(&named.name)?;
        if key.is_empty() || key.len() == self.prefix().len() {
            let error = self.refuse(&named.name, "it is a bucket or a prefix, not an object");
            return Err(error.with_hint("name an object in it"));
        }
        let name = self.describe(&named.name);
        let service = Arc::new(KeyService::new(self.bucket(), key, version));
        let (origin, client) = (self.origin(), &self.bucket().client);
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

    /// The error of a redirected bucket, from a second request whose response names the location.
    fn redirected(&self, service: &KeyService, name: &str) -> Error {
        let response = self.bucket().request(&BucketRequest {
            query: &service.query(),
            unsigned: &[(RANGE, "bytes=0-0")],
            expected: &[200, 206],
            ..BucketRequest::new(Method::GET, "open", name, &service.key)
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
        if !self.prefix().is_empty() {
            query.push(("prefix", self.prefix()));
        }
        if let Some((_, token)) = token {
            query.push(("continuation-token", token));
        }
        let name = self.describe(OsStr::new(""));
        let response = self.bucket().list_page(&name, &query)?;
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
            let name = self.bucket().describe(key);
            Err(Error::new(ErrorKind::Invalid, "list", name, why).with_hint("open it by its full name"))
        };
        let Some(name) = key.strip_prefix(self.prefix()) else {
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
        Self::describe(self, name)
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
        parallel::try_each(objects.iter(), openers, |named| self.open_one(named, front))
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        engine(self.bucket().client.network(), lane)
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
