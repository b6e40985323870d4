//! The options of commands for stores on a network.

use std::path::{Path, PathBuf};

use straightway_core::{Bytes, Result};
use straightway_io::store::{Files, Registry, StoreExt};
use straightway_s3::S3;

use crate::stores;

/// The maximum size of a file with a key or a token.
const KEY_BYTES_MAX: u64 = 4096;

/// Settings of stores on a network. The defaults come from the environment and the AWS configuration files.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Object stores")]
pub(crate) struct StoreArgs {
    /// The S3 service, such as `http://127.0.0.1:8333` [default: `AWS_ENDPOINT_URL_S3`, else AWS].
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,

    /// The region that requests are signed for [default: `AWS_REGION`].
    #[arg(long, value_name = "NAME")]
    region: Option<String>,

    /// The profile in the AWS configuration files [default: `AWS_PROFILE`].
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// Do not sign requests: for public buckets.
    #[arg(long, conflicts_with = "profile")]
    anonymous: bool,

    /// Pay for requests to requester-pays buckets.
    #[arg(long)]
    requester_pays: bool,

    /// The position of the bucket's name in a URL: path, virtual (in front of the host) or auto.
    #[arg(long, value_name = "WHERE")]
    addressing: Option<String>,

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
    #[arg(long, value_name = "NQN")]
    nvme_hostnqn: Option<String>,

    /// NVMe/TCP: another address of the same subsystem; may be given several times.
    #[arg(long, value_name = "HOST[:PORT]")]
    nvme_path: Vec<String>,

    /// NVMe/TCP: checksums of headers and data: none, header, data or both [default: none].
    #[arg(long, value_name = "WHICH")]
    nvme_digests: Option<String>,

    /// NVMe/TCP: the timeout after which a silent target is given up [default: 5].
    #[arg(long, value_name = "SECONDS")]
    nvme_keep_alive: Option<String>,

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
pub(crate) struct CacheArgs {
    /// Cache the bytes that are read over the network in this folder. Processes can share it.
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,

    /// The maximum size of the cache; the least recently used bytes are evicted [default: 100GiB].
    #[arg(long, value_name = "SIZE", requires = "cache")]
    cache_size: Option<Bytes>,
}

impl CacheArgs {
    /// Whether there is a cache.
    pub(crate) fn is_given(&self) -> bool {
        self.cache.is_some()
    }
}

impl StoreArgs {
    /// The registry of all stores.
    pub(crate) fn stores(&self) -> Result<Registry> {
        stores::registry(&self.options()?)
    }

    /// The registry of all stores; those on a network use the cache if one is given.
    pub(crate) fn stores_through(&self, cache: &CacheArgs) -> Result<Registry> {
        let folder = cache.cache.as_ref().map(|path| path.to_string_lossy());
        let size = cache.cache_size.map(|bytes| bytes.0.to_string());
        let mut options = self.options()?;
        options.extend(folder.map(|folder| ("cache".to_owned(), folder.into_owned())));
        options.extend(size.map(|size| ("cache_size".to_owned(), size)));
        stores::registry(&options)
    }

    /// Opens a bucket, for the doctor.
    pub(crate) fn bucket(&self, name: &str) -> Result<S3> {
        stores::bucket(&self.options()?, name)
    }

    fn options(&self) -> Result<Vec<(String, String)>> {
        let yes = |is: bool| is.then(|| "true".to_owned());
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let read = |path: &Option<PathBuf>| path.as_deref().map(secret).transpose();
        let paths = (!self.nvme_path.is_empty()).then(|| self.nvme_path.join(","));
        let options = [
            ("endpoint_url", self.endpoint.clone()),
            ("region", self.region.clone()),
            ("profile", self.profile.clone()),
            ("anonymous", yes(self.anonymous)),
            ("requester_pays", yes(self.requester_pays)),
            ("addressing", self.addressing.clone()),
            ("sse_customer_key", read(&self.sse_customer_key)?),
            ("token", read(&self.token_file)?),
            ("ca_bundle", self.ca_bundle.as_ref().map(path)),
            ("nvme_hostnqn", self.nvme_hostnqn.clone()),
            ("nvme_paths", paths),
            ("nvme_digests", self.nvme_digests.clone()),
            ("nvme_keep_alive", self.nvme_keep_alive.clone()),
            ("nvme_secret", read(&self.nvme_secret_file)?),
            ("nvme_ctrl_secret", read(&self.nvme_ctrl_secret_file)?),
        ];
        let given = options.into_iter();
        Ok(given
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect())
    }
}

/// Reads a secret from a file. On a command line other users could see it.
fn secret(path: &Path) -> Result<String> {
    let text = Files::default().get(path.as_os_str(), KEY_BYTES_MAX)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}
