//! A bucket, or a prefix in it: the keys of its objects, and their names in messages.

use std::{ffi::OsStr, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::{parts, text};
use straightway_net::{Network, Origin};

use crate::{access::S3Access, bucket::Bucket};

/// The prefix of the names of probes.
pub(crate) const PROBE: &str = ".straightway-probe-";

/// The separator between a key and its version id.
const VERSION_MARK: &str = "?versionId=";

/// A new unique nonce.
pub(crate) fn fresh_nonce() -> String {
    format!("{:016x}", straightway_io::nonce())
}

/// A bucket, or a prefix in it.
#[derive(Clone, Debug)]
pub struct S3 {
    bucket: Arc<Bucket>,
    /// The prefix of all keys: empty, or ending with `/`.
    prefix: String,
    /// The prefix of the outermost store that this one was derived from. Probes are put there.
    outermost: String,
}

impl S3 {
    /// A bucket with these settings. No request is sent yet.
    pub fn new(bucket: &str, access: &S3Access, network: &Arc<Network>) -> Result<Self> {
        Ok(Self {
            bucket: Arc::new(Bucket::new(bucket, access, network)?),
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
        &self.bucket.origin
    }

    /// The name of an object in messages.
    pub(crate) fn describe(&self, name: &OsStr) -> String {
        self.bucket.describe(&format!("{}{}", self.prefix, name.display()))
    }

    /// The prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The store of the objects below a name.
    pub(crate) fn inside(&self, folder: &OsStr) -> Result<Self> {
        let (key, version) = self.key(folder)?;
        if version.is_some() {
            let why = "it is a version of an object, and a prefix has no version";
            return Err(Error::new(
                ErrorKind::NotFolder,
                "use the name",
                self.describe(folder),
                why,
            ));
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

    /// The error of a name that cannot be used.
    pub(crate) fn refuse(&self, name: &OsStr, why: &str) -> Error {
        Error::new(ErrorKind::Invalid, "use the name", self.describe(name), why)
    }

    /// The error of a service that is not S3.
    pub(crate) fn not_s3(&self, operation: &'static str, name: &OsStr) -> Error {
        let service = &self.bucket.endpoint.service;
        let message = format!("{service} does not respond like an S3 service");
        Error::new(ErrorKind::Unsupported, operation, self.describe(name), message)
            .with_hint("check ⟦endpoint⟧ or AWS_ENDPOINT_URL_S3: it must be the address of an S3 service")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::CredentialSource;

    #[test]
    fn probes_are_put_under_the_prefix_of_the_outermost_store() {
        let network = Network::new(straightway_net::NetworkSettings::default());
        let access = S3Access {
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            credentials: CredentialSource::Anonymous,
            ..S3Access::default()
        };
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
