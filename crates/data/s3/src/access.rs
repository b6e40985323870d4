//! The settings to reach buckets: endpoint, region, addressing, credentials, and headers that every request carries.
//!
//! The environment is read at the edges (`cli`, `python`) and passed in as a map. Options of the caller take precedence
//! over the environment, and the environment over the profile in the AWS configuration file.

use std::{collections::HashMap, fmt, path::PathBuf};

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
#[derive(Clone, Debug)]
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
#[derive(Clone, Default)]
pub struct AccessKeys {
    /// The access key id.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKeys(hidden)")
    }
}

/// A customer's encryption key (SSE-C). `Debug` does not show it.
#[derive(Clone)]
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

    /// The options of [`S3Access::set`], with their descriptions.
    pub const OPTIONS: [(&'static str, &'static str); 11] = [
        ("endpoint_url", "the service, such as http://127.0.0.1:8333"),
        ("region", "the region that requests are signed for"),
        ("profile", "the profile in AWS's configuration files"),
        ("access_key_id", "the access key id"),
        ("secret_access_key", "the secret access key"),
        ("session_token", "the session token of temporary credentials"),
        ("anonymous", "true: requests are not signed"),
        ("addressing", "where the bucket's name goes: auto, path or virtual"),
        ("requester_pays", "true: the caller pays for requests"),
        (
            "sse_customer_key",
            "the key of objects encrypted with a customer's key, in base64",
        ),
        (
            "ca_bundle",
            "a PEM file of certificates that are trusted instead of the system's",
        ),
    ];

    /// Sets one option by name. The name may begin with `aws_`. Keys take precedence over a profile. No error shows the
    /// value of a key.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let own = |value: &str| value.to_owned();
        match name.strip_prefix("aws_").unwrap_or(name) {
            "endpoint_url" | "endpoint" => self.endpoint = Some(own(value)),
            "region" => self.region = Some(own(value)),
            "profile" => {
                if let CredentialSource::Found { profile } = &mut self.credentials {
                    *profile = Some(own(value));
                }
            }
            "access_key_id" => self.keys().access_key_id = own(value),
            "secret_access_key" => self.keys().secret_access_key = own(value),
            "session_token" => self.keys().session_token = Some(own(value)),
            "anonymous" | "skip_signature" if boolean(name, value)? => {
                self.credentials = CredentialSource::Anonymous;
            }
            "anonymous" | "skip_signature" => {}
            "addressing" => self.addressing = addressing(value)?,
            "requester_pays" => self.requester_pays = boolean(name, value)?,
            "sse_customer_key" => self.customer_key = Some(CustomerKey::new(value)?),
            "ca_bundle" => {
                let variables = &mut self.environment.variables;
                variables.insert("AWS_CA_BUNDLE".to_owned(), own(value));
            }
            _ => {
                let known: Vec<_> = Self::OPTIONS.iter().map(|(name, _)| *name).collect();
                let message = format!("there is no such option; known are {}", known.join(", "));
                return Err(Error::new(ErrorKind::Invalid, "use option", name, message));
            }
        }
        Ok(())
    }

    fn keys(&mut self) -> &mut AccessKeys {
        if !matches!(self.credentials, CredentialSource::Keys(_)) {
            self.credentials = CredentialSource::Keys(AccessKeys::default());
        }
        match &mut self.credentials {
            CredentialSource::Keys(keys) => keys,
            _ => unreachable!("it was just set to keys"),
        }
    }

    /// Fails if only one of the access key id and the secret access key was given.
    pub fn check(&self) -> Result<()> {
        let CredentialSource::Keys(keys) = &self.credentials else {
            return Ok(());
        };
        let missing = match (keys.access_key_id.as_str(), keys.secret_access_key.as_str()) {
            ("", _) => "access_key_id",
            (_, "") => "secret_access_key",
            _ => return Ok(()),
        };
        let message = "it is missing, but another key was given";
        Err(Error::new(ErrorKind::Invalid, "use option", missing, message)
            .with_hint("give access_key_id and secret_access_key together"))
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

fn boolean(name: &str, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "false" | "no" | "off" => Ok(false),
        _ if is_true(text) => Ok(true),
        _ => {
            let message = format!("`{text}` is neither true nor false");
            Err(Error::new(ErrorKind::Invalid, "use option", name, message))
        }
    }
}

fn addressing(text: &str) -> Result<Addressing> {
    match text {
        "auto" => Ok(Addressing::Auto),
        "path" => Ok(Addressing::Path),
        "virtual" => Ok(Addressing::Virtual),
        _ => {
            let message = format!("`{text}` is none of auto, path, virtual");
            Err(Error::new(ErrorKind::Invalid, "use option", "addressing", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment {
            variables: pairs.iter().map(own).collect(),
            home: None,
        }
    }

    #[test]
    fn the_endpoint_variable_of_s3_takes_precedence_over_the_general_one() {
        let both = [("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL_S3", "http://b")];
        assert_eq!(S3Access::of(environment(&both)).endpoint.as_deref(), Some("http://b"));
        assert_eq!(
            S3Access::of(environment(&both[..1])).endpoint.as_deref(),
            Some("http://a")
        );
        let ignored = [both[0], ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(S3Access::of(environment(&ignored)).endpoint, None);
        let region = S3Access::of(environment(&[("AWS_REGION", ""), ("AWS_DEFAULT_REGION", "eu-west-1")]));
        assert_eq!(region.region.as_deref(), Some("eu-west-1"));
    }

    #[test]
    fn options_are_set_by_name_and_unknown_ones_are_refused() {
        let mut access = S3Access::default();
        for (name, _) in S3Access::OPTIONS {
            let value = match name {
                "anonymous" => "false",
                "requester_pays" => "true",
                "addressing" => "path",
                "sse_customer_key" => &BASE64_STANDARD.encode([7; 32]),
                _ => "some",
            };
            access.set(name, value).unwrap();
            access.set(&format!("aws_{name}"), value).unwrap();
        }
        access.check().unwrap();
        assert!(access.requester_pays && access.addressing == Addressing::Path);
        assert!(matches!(&access.credentials, CredentialSource::Keys(keys) if keys.session_token.is_some()));
        let error = access.set("sekret", "hush").unwrap_err().to_string();
        assert!(error.contains("endpoint_url") && !error.contains("hush"), "{error}");
        assert!(access.set("requester_pays", "maybe").is_err());
    }

    #[test]
    fn a_missing_key_is_refused_by_name() {
        let mut access = S3Access::default();
        access.set("access_key_id", "AKID").unwrap();
        assert!(access.check().unwrap_err().to_string().contains("secret_access_key"));
    }

    #[test]
    fn debug_shows_no_key_and_no_variable() {
        let mut access = S3Access::of(environment(&[("AWS_SECRET_ACCESS_KEY", "hush-environment")]));
        access.set("secret_access_key", "hush-secret").unwrap();
        access.set("session_token", "hush-token").unwrap();
        let key = BASE64_STANDARD.encode(*b"hush hush hush hush hush hush 32");
        access.set("sse_customer_key", &key).unwrap();
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
