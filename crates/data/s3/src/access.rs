//! The settings to reach buckets: endpoint, region, addressing, credentials, and headers that every request carries.
//!
//! The environment is read in the room `stores` and passed in as a map. The caller's options take precedence over it, and
//! it over the profile in the AWS configuration file.

use std::{collections::HashMap, fmt, path::PathBuf, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use md5::{Digest, Md5};
use straightway_core::{Error, ErrorKind, Result};

/// The region if none is configured, as in AWS's own clients.
pub const REGION_DEFAULT: &str = "us-east-1";

/// The length of a customer's encryption key: AES-256.
const CUSTOMER_KEY_BYTES: usize = 32;

/// The settings to reach buckets.
#[derive(Clone, Debug, Default)]
pub struct S3Access {
    /// The URL of the service, such as `http://127.0.0.1:8333`; `None` is AWS.
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    pub region: Option<String>,
    /// The position of the bucket's name in URLs.
    pub addressing: Addressing,
    /// The source of the credentials that sign requests.
    pub credentials: CredentialSource,
    /// Whether the caller pays for requests and traffic.
    pub requester_pays: bool,
    /// The encryption key of objects encrypted with a customer's key (SSE-C).
    pub customer_key: Option<CustomerKey>,
    /// The environment variables of the process.
    pub environment: Environment,
}

/// The position of the bucket's name in URLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// In the path for a custom endpoint or a name with dots, otherwise in the host name.
    #[default]
    Auto,
    /// In the path: `https://host/bucket/key`.
    Path,
    /// In the host name: `https://bucket.host/key`.
    Virtual,
}

/// The source of the credentials that sign requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// The environment, the profile or the machine, in the order of AWS's clients.
    Found {
        /// The profile in AWS's configuration files; `None` is `AWS_PROFILE` or `default`.
        profile: Option<String>,
    },
    /// These keys.
    Keys(AccessKeys),
    /// None: requests are not signed.
    Anonymous,
}

impl Default for CredentialSource {
    fn default() -> Self {
        Self::Found { profile: None }
    }
}

/// Access keys from the caller. `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AccessKeys {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl AccessKeys {
    /// Fails if only one of the access key id and the secret access key was given.
    pub fn check(&self) -> Result<()> {
        let missing = match (self.access_key_id.as_str(), self.secret_access_key.as_str()) {
            ("", _) => "access_key_id",
            (_, "") => "secret_access_key",
            _ => return Ok(()),
        };
        let message = "it is missing, but another key was given";
        Err(Error::new(ErrorKind::Invalid, "use option", missing, message)
            .with_hint("give access_key_id and secret_access_key together"))
    }
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKeys(hidden)")
    }
}

/// A customer's encryption key (SSE-C). `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct CustomerKey {
    pub(crate) key: String,
    pub(crate) digest: String,
}

impl CustomerKey {
    /// Parses a key of 256 bits in base64.
    pub fn new(text: &str) -> Result<Self> {
        let bytes = BASE64_STANDARD.decode(text.trim()).unwrap_or_default();
        if bytes.len() != CUSTOMER_KEY_BYTES {
            let message = "it is not 32 bytes in base64";
            let what = "the SSE customer key";
            return Err(
                Error::new(ErrorKind::Invalid, "use", what, message).with_hint("`openssl rand -base64 32` makes one")
            );
        }
        Ok(Self {
            digest: BASE64_STANDARD.encode(Md5::digest(&bytes)),
            key: BASE64_STANDARD.encode(bytes),
        })
    }
}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey(hidden)")
    }
}

/// A snapshot of the process's environment variables. `Debug` shows no values.
#[derive(Clone, Default)]
pub struct Environment {
    /// Variables by name.
    pub variables: HashMap<String, String>,
    /// The home folder.
    pub home: Option<PathBuf>,
}

impl Environment {
    /// An environment with these variables and no home folder.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            variables: variables.iter().map(own).collect(),
            home: None,
        }
    }

    /// The value of a variable; `None` if it is unset or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Whether the addresses of services in it are ignored.
    pub(crate) fn ignores_endpoints(&self) -> bool {
        self.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(is_true)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}

impl S3Access {
    /// The settings in the environment variables. The configuration file is read when a store is created.
    pub fn of(environment: Environment) -> Self {
        let get = |name: &str| environment.get(name).map(str::to_owned);
        let skips = |name: &str| environment.get(name).is_some_and(is_true);
        let endpoint = get("AWS_ENDPOINT_URL_S3").or_else(|| get("AWS_ENDPOINT_URL"));
        let credentials = if skips("AWS_SKIP_SIGNATURE") {
            CredentialSource::Anonymous
        } else {
            CredentialSource::default()
        };
        Self {
            endpoint: endpoint.filter(|_| !environment.ignores_endpoints()),
            region: get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION")),
            requester_pays: environment
                .get("AWS_REQUEST_PAYER")
                .is_some_and(|payer| payer == "requester" || is_true(payer)),
            credentials,
            environment,
            ..Self::default()
        }
    }

    /// The bucket service at this URL, with these keys.
    pub fn with_keys(endpoint: &str, access_key_id: &str, secret_access_key: &str) -> Self {
        Self {
            endpoint: Some(endpoint.to_owned()),
            credentials: CredentialSource::Keys(AccessKeys {
                access_key_id: access_key_id.to_owned(),
                secret_access_key: secret_access_key.to_owned(),
                session_token: None,
            }),
            ..Self::default()
        }
    }

    /// Fails if only one of the access key id and the secret access key was given.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.credentials {
            CredentialSource::Keys(keys) => keys.check(),
            CredentialSource::Found { .. } | CredentialSource::Anonymous => Ok(()),
        }
    }

    /// The profile in AWS's configuration files.
    pub(crate) fn profile(&self) -> &str {
        let asked = match &self.credentials {
            CredentialSource::Found { profile } => profile.as_deref(),
            _ => None,
        };
        let usual = || self.environment.get("AWS_PROFILE");
        asked.or_else(usual).unwrap_or("default")
    }
}

fn is_true(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

impl FromStr for Addressing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "path" => Ok(Self::Path),
            "virtual" => Ok(Self::Virtual),
            _ => {
                let message = format!("`{text}` is none of auto, path, virtual");
                Err(Error::new(ErrorKind::Invalid, "use option", "addressing", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_variable_of_s3_takes_precedence_over_the_general_one() {
        let both = [("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL_S3", "http://b")];
        assert_eq!(
            S3Access::of(Environment::of(&both)).endpoint.as_deref(),
            Some("http://b")
        );
        assert_eq!(
            S3Access::of(Environment::of(&both[..1])).endpoint.as_deref(),
            Some("http://a")
        );
        let ignored = [both[0], ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(S3Access::of(Environment::of(&ignored)).endpoint, None);
        let region = S3Access::of(Environment::of(&[
            ("AWS_REGION", ""),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
        ]));
        assert_eq!(region.region.as_deref(), Some("eu-west-1"));
    }

    #[test]
    fn debug_shows_no_key_and_no_variable() {
        let key = BASE64_STANDARD.encode(*b"hush hush hush hush hush hush 32");
        let access = S3Access {
            environment: Environment::of(&[("AWS_SECRET_ACCESS_KEY", "hush-environment")]),
            customer_key: Some(CustomerKey::new(&key).unwrap()),
            ..S3Access::with_keys("http://a", "hush-id", "hush-secret")
        };
        let shown = format!("{access:?}");
        assert!(!shown.contains("hush") && !shown.contains(&key), "{shown}");
    }

    #[test]
    fn a_customer_key_has_256_bits() {
        let error = CustomerKey::new("c2hvcnQ=").unwrap_err();
        assert!(!error.to_string().contains("c2hvcnQ"), "{error}");
        // From `openssl dgst -md5 -binary | base64` of 32 zero bytes.
        let key = CustomerKey::new(&BASE64_STANDARD.encode([0; 32])).unwrap();
        assert_eq!(key.digest, "cLyPS3KoaSFGi/joRB3OUQ==");
    }
}
