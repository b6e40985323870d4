//! The options of commands for stores on a network.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use straightway_core::{Bytes, Result};
use straightway_https::Token;
use straightway_io::store::{Files, Registry, StoreExt};
use straightway_nvme::{Digests, Nqn};
use straightway_nvme_host::Portal;
use straightway_s3::{Addressing, CredentialSource, CustomerKey};
use straightway_stores::{
    CacheOptions, NvmeOptions, S3Options, Session, StoreOptions, WebOptions, parse_digests, parse_keep_alive, parse_nqn,
};

use crate::section::Section;

/// The maximum size of a file with a key or a token.
const KEY_BYTES_MAX: u64 = 4096;

/// Settings of stores on a network.
pub(crate) type StoreArgs = Section<StoreFlags>;

/// The cache for stores on a network.
pub(crate) type CacheArgs = Section<CacheFlags>;

/// Settings of stores on a network. The defaults come from the environment and the AWS configuration files.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Object stores")]
pub(crate) struct StoreFlags {
    /// The S3 service, such as `http://127.0.0.1:8333` [default: `AWS_ENDPOINT_URL_S3`, else AWS].
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,

    /// The region that requests are signed for [default: `AWS_REGION`].
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// The profile in the AWS configuration files [default: `AWS_PROFILE`].
    #[arg(long = "aws-profile", alias = "profile", value_name = "NAME")]
    profile: Option<String>,

    /// Do not sign requests: for public buckets.
    #[arg(long, conflicts_with = "profile")]
    anonymous: bool,

    /// Pay for requests to requester-pays buckets.
    #[arg(long)]
    requester_pays: bool,

    /// The position of the bucket's name in a URL: path, virtual (in front of the host) or auto.
    #[arg(long, value_name = "WHERE")]
    addressing: Option<Addressing>,

    /// A file with the key of objects that are encrypted with a customer's key (SSE-C), 32 bytes in base64.
    #[arg(long, value_name = "FILE")]
    sse_customer_key: Option<PathBuf>,

    /// A file with the bearer token of the web server [default: `HF_TOKEN` for huggingface.co].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A file of PEM certificates to trust instead of the system's [default: `AWS_CA_BUNDLE`].
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,

    /// NVMe/TCP: the NQN of this host [default: `/etc/nvme/hostnqn`, else a new one].
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    nvme_hostnqn: Option<Nqn>,

    /// NVMe/TCP: another address of the same subsystem; may be given several times.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = Portal::parse)]
    nvme_path: Vec<Portal>,

    /// NVMe/TCP: checksums of headers and data: none, header, data or both [default: none].
    #[arg(long, value_name = "WHICH", value_parser = parse_digests)]
    nvme_digests: Option<Digests>,

    /// NVMe/TCP: the timeout after which a silent target is given up [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = parse_keep_alive)]
    nvme_keep_alive: Option<Duration>,

    /// NVMe/TCP: a file with the DH-HMAC-CHAP secret of this host.
    #[arg(long, value_name = "FILE")]
    nvme_secret_file: Option<PathBuf>,

    /// NVMe/TCP: a file with the secret that the target has to prove.
    #[arg(long, value_name = "FILE", requires = "nvme_secret_file")]
    nvme_ctrl_secret_file: Option<PathBuf>,
}

/// The cache for stores on a network.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Object stores")]
pub(crate) struct CacheFlags {
    /// Cache the bytes that are read over the network in this folder. Processes can share it.
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,

    /// The maximum size of the cache; the least recently used bytes are evicted [default: 100GiB].
    #[arg(long, value_name = "SIZE", requires = "cache")]
    cache_size: Option<Bytes>,
}

impl CacheFlags {
    /// Whether there is a cache.
    pub(crate) fn is_given(&self) -> bool {
        self.cache.is_some()
    }

    fn options(&self) -> Option<CacheOptions> {
        let mut options = CacheOptions::new(self.cache.clone()?);
        if let Some(bytes) = self.cache_size {
            options.bytes_max = bytes.0;
        }
        Some(options)
    }
}

impl StoreFlags {
    /// The registry of all stores.
    pub(crate) fn stores(&self, session: &Session) -> Result<Arc<Registry>> {
        self.options().map(|options| session.stores(&options))
    }

    /// The registry of all stores; those on a network use the cache if one is given.
    pub(crate) fn stores_through(&self, cache: &CacheArgs, session: &Session) -> Result<Arc<Registry>> {
        let options = StoreOptions {
            cache: cache.options(),
            ..self.options()?
        };
        Ok(session.stores(&options))
    }

    /// The options of stores.
    pub(crate) fn options(&self) -> Result<StoreOptions> {
        let found = || {
            let profile = Some(self.profile.clone()?);
            Some(CredentialSource::Found { profile })
        };
        let anonymous = self.anonymous.then_some(CredentialSource::Anonymous);
        Ok(StoreOptions {
            s3: S3Options {
                endpoint: self.endpoint.clone(),
                region: self.region.clone(),
                credentials: anonymous.or_else(found),
                addressing: self.addressing.unwrap_or_default(),
                requester_pays: self.requester_pays.then_some(true),
                customer_key: secret(self.sse_customer_key.as_deref(), CustomerKey::new)?,
            },
            web: WebOptions {
                token: secret(self.token_file.as_deref(), |text| Token::new(text))?,
                ca_bundle: self.ca_bundle.clone(),
            },
            cache: None,
            nvme: NvmeOptions {
                host: self.nvme_hostnqn.clone(),
                digests: self.nvme_digests,
                keep_alive: self.nvme_keep_alive,
                paths: self.nvme_path.clone(),
                secret: secret(self.nvme_secret_file.as_deref(), str::parse)?,
                controller_secret: secret(self.nvme_ctrl_secret_file.as_deref(), str::parse)?,
                ..NvmeOptions::default()
            },
        })
    }
}

/// Reads a secret from a file. On a command line other users could see it.
fn secret<T>(path: Option<&Path>, parse: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let text = Files::default().get(path.as_os_str(), KEY_BYTES_MAX)?;
    parse(String::from_utf8_lossy(&text).trim()).map(Some)
}
