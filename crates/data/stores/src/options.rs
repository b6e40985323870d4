//! The options of stores: typed, with a struct for each kind of store.
//!
//! A command line fills in the fields. Programs that get names and values, such as the Python package, parse them here
//! ([`StoreOptions::parse`]). What is not given comes from the environment and from the files of each service.

use std::{path::PathBuf, time::Duration};

use straightway_cache::BYTES_DEFAULT;
use straightway_core::{Bytes, Error, ErrorKind, Result, nearest::nearest};
use straightway_https::Token;
use straightway_nvme::{Digests, Nqn, auth::Secret};
use straightway_nvme_host::{HostSettings, Portal};
use straightway_s3::{AccessKeys, Addressing, CredentialSource, CustomerKey, Environment, S3Access};

/// The options of all stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// S3 buckets.
    pub s3: S3Options,
    /// Web servers. The certificates are for S3 too.
    pub web: WebOptions,
    /// The cache of S3 and web servers; `None` is no cache.
    pub cache: Option<CacheOptions>,
    /// NVMe namespaces over TCP.
    pub nvme: NvmeOptions,
}

/// The options of S3 buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Options {
    /// The URL of the service, such as `http://127.0.0.1:8333`.
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    pub region: Option<String>,
    /// The source of the credentials that sign requests.
    pub credentials: Option<CredentialSource>,
    /// The position of the bucket's name in URLs.
    pub addressing: Addressing,
    /// Whether the caller pays for requests and traffic.
    pub requester_pays: Option<bool>,
    /// The encryption key of objects encrypted with a customer's key (SSE-C).
    pub customer_key: Option<CustomerKey>,
}

/// The options of web servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebOptions {
    /// The bearer token, for all hosts.
    pub token: Option<Token>,
    /// A PEM file of certificates that are trusted instead of the system's.
    pub ca_bundle: Option<PathBuf>,
}

/// The options of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Its folder.
    pub folder: PathBuf,
    /// Its maximum size.
    pub bytes_max: u64,
}

impl CacheOptions {
    /// A cache in this folder, with the default size.
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            bytes_max: BYTES_DEFAULT,
        }
    }
}

/// The options of NVMe namespaces over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeOptions {
    /// The folder with the identity of this host, in the files `hostnqn` and `hostid` of nvme-cli.
    pub identity: PathBuf,
    /// The NQN of this host.
    pub host: Option<Nqn>,
    /// The identifier of this host.
    pub host_id: Option<[u8; 16]>,
    /// The digests to request.
    pub digests: Option<Digests>,
    /// The timeout after which a silent target is given up.
    pub keep_alive: Option<Duration>,
    /// Additional addresses of the same subsystems.
    pub paths: Vec<Portal>,
    /// The secret of this host, for targets that require authentication.
    pub secret: Option<Secret>,
    /// The secret that targets must prove.
    pub controller_secret: Option<Secret>,
}

impl Default for NvmeOptions {
    fn default() -> Self {
        Self {
            identity: "/etc/nvme".into(),
            host: None,
            host_id: None,
            digests: None,
            keep_alive: None,
            paths: Vec::new(),
            secret: None,
            controller_secret: None,
        }
    }
}

/// The names that [`StoreOptions::parse`] knows.
const NAMES: [&str; 21] = [
    "endpoint_url",
    "region",
    "profile",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "anonymous",
    "addressing",
    "requester_pays",
    "sse_customer_key",
    "ca_bundle",
    "token",
    "cache",
    "cache_size",
    "nvme_hostnqn",
    "nvme_hostid",
    "nvme_digests",
    "nvme_paths",
    "nvme_keep_alive",
    "nvme_secret",
    "nvme_ctrl_secret",
];

impl StoreOptions {
    /// Parses options by name. Those of S3 may begin with `aws_`. Keys take precedence over a profile. No error shows
    /// the value of a key, a token or a secret.
    pub fn parse<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut parsed = Self::default();
        let mut cache_bytes = BYTES_DEFAULT;
        for (name, value) in options {
            match name {
                "cache" => parsed.cache = Some(CacheOptions::new(value.into())),
                "cache_size" => cache_bytes = value.parse::<Bytes>().map_err(|e| refused(name, &e.to_string()))?.0,
                "token" => parsed.web.token = Some(Token::new(value.trim())?),
                _ if name.starts_with("nvme_") => parsed.nvme.set(name, value)?,
                _ => match name.strip_prefix("aws_").unwrap_or(name) {
                    "ca_bundle" => parsed.web.ca_bundle = Some(value.into()),
                    short => parsed.s3.set(short, name, value)?,
                },
            }
        }
        if let Some(CredentialSource::Keys(keys)) = &parsed.s3.credentials {
            keys.check()?;
        }
        if let Some(cache) = &mut parsed.cache {
            cache.bytes_max = cache_bytes;
        }
        Ok(parsed)
    }
}

impl S3Options {
    /// Sets the option `short`, which the caller calls `name`.
    fn set(&mut self, short: &str, name: &str, value: &str) -> Result<()> {
        let own = || value.to_owned();
        match short {
            "endpoint_url" | "endpoint" => self.endpoint = Some(own()),
            "region" => self.region = Some(own()),
            "profile" => {
                let profile = Some(own());
                self.credentials.get_or_insert(CredentialSource::Found { profile });
            }
            "access_key_id" => self.keys().access_key_id = own(),
            "secret_access_key" => self.keys().secret_access_key = own(),
            "session_token" => self.keys().session_token = Some(own()),
            "anonymous" | "skip_signature" => {
                if parse_bool(name, value)? {
                    self.credentials = Some(CredentialSource::Anonymous);
                }
            }
            "addressing" => self.addressing = value.parse()?,
            "requester_pays" => self.requester_pays = Some(parse_bool(name, value)?),
            "sse_customer_key" => self.customer_key = Some(CustomerKey::new(value)?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn keys(&mut self) -> &mut AccessKeys {
        if !matches!(self.credentials, Some(CredentialSource::Keys(_))) {
            self.credentials = Some(CredentialSource::Keys(AccessKeys::default()));
        }
        match &mut self.credentials {
            Some(CredentialSource::Keys(keys)) => keys,
            _ => unreachable!("it was just set to keys"),
        }
    }

    /// The access to buckets. What is not given comes from the environment.
    pub(crate) fn access(&self, environment: Environment) -> S3Access {
        let usual = S3Access::of(environment);
        let credentials = match (&self.credentials, usual.credentials) {
            // The environment may forbid to look for credentials.
            (Some(CredentialSource::Found { .. }), usual @ CredentialSource::Anonymous) | (None, usual) => usual,
            (Some(given), _) => given.clone(),
        };
        S3Access {
            endpoint: self.endpoint.clone().or(usual.endpoint),
            region: self.region.clone().or(usual.region),
            credentials,
            addressing: self.addressing,
            requester_pays: self.requester_pays.unwrap_or(usual.requester_pays),
            customer_key: self.customer_key.clone(),
            environment: usual.environment,
        }
    }
}

impl NvmeOptions {
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "nvme_hostnqn" => self.host = Some(parse_nqn(value)?),
            "nvme_hostid" => {
                let id = parse_uuid(value.trim()).ok_or_else(|| refused(name, "it is not a UUID"))?;
                self.host_id = Some(id);
            }
            "nvme_digests" => self.digests = Some(parse_digests(value)?),
            "nvme_paths" => {
                let paths = value.split(',').map(str::trim).filter(|path| !path.is_empty());
                self.paths = paths.map(Portal::parse).collect::<Result<_>>()?;
            }
            "nvme_keep_alive" => self.keep_alive = Some(parse_keep_alive(value)?),
            "nvme_secret" => self.secret = Some(value.parse()?),
            "nvme_ctrl_secret" => self.controller_secret = Some(value.parse()?),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// The settings of this host. What is not given comes from the files of nvme-cli; without them, each process has a
    /// new identity.
    pub(crate) fn settings(&self) -> HostSettings {
        let mut settings = HostSettings::default();
        let read = |file: &str| std::fs::read_to_string(self.identity.join(file)).ok();
        let known = read("hostnqn").zip(read("hostid"));
        // Targets refuse one identifier with two names, so both are used or none.
        if let Some((nqn, id)) = known
            && let (Ok(host), Some(host_id)) = (parse_nqn(&nqn), parse_uuid(id.trim()))
        {
            (settings.host, settings.host_id) = (host, host_id);
        }
        HostSettings {
            host: self.host.clone().unwrap_or(settings.host),
            host_id: self.host_id.unwrap_or(settings.host_id),
            digests: self.digests.unwrap_or(settings.digests),
            keep_alive: self.keep_alive.unwrap_or(settings.keep_alive),
            paths: self.paths.clone(),
            secret: self.secret.clone(),
            controller_secret: self.controller_secret.clone(),
            ..settings
        }
    }
}

/// Parses the NQN of a host.
pub fn parse_nqn(text: &str) -> Result<Nqn> {
    Nqn::new(text.trim()).map_err(|error| refused("nvme_hostnqn", &error.to_string()))
}

/// Parses which digests are requested: none, header, data or both.
pub fn parse_digests(text: &str) -> Result<Digests> {
    let (header, data) = match text {
        "none" => (false, false),
        "header" => (true, false),
        "data" => (false, true),
        "both" => (true, true),
        _ => return Err(refused("nvme_digests", "it is not none, header, data or both")),
    };
    Ok(Digests { header, data })
}

/// Parses a keep-alive timeout in seconds.
pub fn parse_keep_alive(text: &str) -> Result<Duration> {
    let time = text.parse().ok().map(Duration::try_from_secs_f64);
    match time {
        Some(Ok(time)) if HostSettings::KEEP_ALIVE.contains(&time) => Ok(time),
        _ => Err(refused(
            "nvme_keep_alive",
            "it is not a number of seconds from 0.1 to 600",
        )),
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(&digits[2 * pair..2 * pair + 2], 16).ok()?;
    }
    Some(bytes)
}

fn parse_bool(name: &str, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "false" | "no" | "off" => Ok(false),
        "1" | "true" | "yes" | "on" => Ok(true),
        _ => Err(refused(name, &format!("`{text}` is neither true nor false"))),
    }
}

fn refused(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Invalid, "use option", name, why.to_owned())
}

fn unknown(name: &str) -> Error {
    let why = format!("there is no such option; known are {}", NAMES.join(", "));
    let error = refused(name, &why);
    match nearest(name.strip_prefix("aws_").unwrap_or(name), NAMES) {
        Some(near) => error.with_hint(format!("did you mean {near}?")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "aHVzaCBodXNoIGh1c2ggaHVzaCBodXNoIGh1c2ggMzI=";
    const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    /// A valid value of each option.
    fn valid(name: &str) -> &'static str {
        match name {
            "anonymous" => "false",
            "requester_pays" => "True",
            "addressing" => "path",
            "sse_customer_key" => KEY,
            "cache_size" => "20GiB",
            "nvme_hostnqn" => "nqn.2026-11.test:host",
            "nvme_hostid" => "30313233-3435-3637-3839-616263646566",
            "nvme_digests" => "both",
            "nvme_paths" => "10.0.0.2, [::1]:4421",
            "nvme_keep_alive" => "2.5",
            "nvme_secret" | "nvme_ctrl_secret" => SECRET,
            _ => "hush",
        }
    }

    #[test]
    fn a_mistyped_option_is_refused_with_the_one_that_was_meant() {
        let error = StoreOptions::parse([("aws_regoin", "x")]).unwrap_err();
        assert_eq!(error.hint(), Some("did you mean region?"));
    }

    #[test]
    fn all_options_are_parsed_and_no_secret_is_shown() {
        let options = StoreOptions::parse(NAMES.map(|name| (name, valid(name)))).unwrap();
        let StoreOptions { s3, web, cache, nvme } = &options;
        assert!(s3.requester_pays == Some(true) && s3.addressing == Addressing::Path);
        assert!(matches!(&s3.credentials, Some(CredentialSource::Keys(keys)) if keys.session_token.is_some()));
        assert_eq!(web.ca_bundle.as_deref(), Some("hush".as_ref()));
        assert_eq!(cache.as_ref().unwrap().bytes_max, 20 << 30);
        assert_eq!(nvme.host_id.as_ref(), Some(b"0123456789abcdef"));
        assert_eq!(
            (nvme.paths.len(), nvme.keep_alive),
            (2, Some(Duration::from_millis(2500)))
        );
        let StoreOptions { s3, web, nvme, .. } = &options;
        let shown = format!("{:?} {:?} {nvme:?}", s3.credentials, web.token);
        assert!(
            !shown.contains("hush") && !shown.contains(KEY) && !shown.contains("AAECAwQF"),
            "{shown}"
        );
        let prefixed = StoreOptions::parse([("aws_region", "here"), ("aws_ca_bundle", "/ca")]).unwrap();
        assert_eq!(prefixed.s3.region.as_deref(), Some("here"));
        assert_eq!(prefixed.web.ca_bundle, Some("/ca".into()));
    }

    #[test]
    fn wrong_options_are_refused_by_name_without_their_values() {
        for (name, value, word) in [
            ("sekret", "hush", "endpoint_url"),
            ("access_key_id", "hush", "secret_access_key"),
            ("requester_pays", "maybe", "requester_pays"),
            ("addressing", "both", "addressing"),
            ("cache_size", "many", "cache_size"),
            ("nvme_hostnqn", "", "nvme_hostnqn"),
            ("nvme_hostid", "zz", "nvme_hostid"),
            ("nvme_digests", "all", "nvme_digests"),
            ("nvme_paths", "a:b", "HOST[:PORT]"),
            ("nvme_keep_alive", "0", "nvme_keep_alive"),
            ("nvme_keep_alive", "0.0001", "nvme_keep_alive"),
            ("nvme_secret", "DHHC-1:00:hush:", "DH-HMAC-CHAP"),
            ("nvme_other", "hush", "nvme_paths"),
        ] {
            let error = StoreOptions::parse([(name, value)]).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("hush"), "{name}: {error}");
        }
    }

    #[test]
    fn options_take_precedence_over_the_environment() {
        let variables = [
            ("AWS_ENDPOINT_URL", "http://environment"),
            ("AWS_REGION", "environment"),
            ("AWS_REQUEST_PAYER", "requester"),
        ];
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let environment = Environment {
            variables: variables.map(own).into(),
            home: None,
        };
        let access = S3Options::default().access(environment.clone());
        assert_eq!(access.endpoint.as_deref(), Some("http://environment"));
        assert!(access.requester_pays);
        let options = [
            ("endpoint_url", "http://option"),
            ("requester_pays", "no"),
            ("profile", "mine"),
        ];
        let access = StoreOptions::parse(options).unwrap().s3.access(environment);
        assert_eq!(access.endpoint.as_deref(), Some("http://option"));
        assert_eq!(access.region.as_deref(), Some("environment"));
        assert!(!access.requester_pays);
        assert!(matches!(access.credentials, CredentialSource::Found { profile: Some(name) } if name == "mine"));
    }
}
