//! The stores of the command and the Python package, configured by options and by the environment, which is read here.
//!
//! Options have the names of [`S3Access::OPTIONS`] and [`straightway_nvme_host::HostSettings::OPTIONS`]; `token` is for
//! web servers, `cache` and `cache_size` are for S3 and web servers. A new kind of store is added here.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_cache::{BYTES_DEFAULT, Cache, CachedStore};
use straightway_core::{Bytes, Error, ErrorKind, Result, Scheme};
use straightway_https::{Https, Token};
use straightway_io::{Store, store::Registry};
use straightway_net::{Network, NetworkSettings, Proxies, Roots, Site};
use straightway_nvme_host::{NvmeTcp, Portal};
use straightway_s3::{Environment, S3, S3Access};

/// The host that `HF_TOKEN` is for.
const HUB: &str = "huggingface.co";

/// Options by name.
pub type StoreOptions = [(String, String)];

/// The registry of all stores.
pub fn registry(options: &StoreOptions) -> Result<Registry> {
    let StoreConfig {
        access,
        network,
        token,
        cache,
        nvme,
    } = StoreConfig::new(options)?;
    let (shared, kept) = (Arc::clone(&network), cache.clone());
    let mut stores = Registry::default().with(Scheme::S3, move |bucket| {
        let store = Arc::new(S3::new(bucket, &access, &shared)?);
        let endpoint = store.endpoint().to_owned();
        Ok(cached(kept.as_ref(), store, &endpoint))
    });
    stores = stores.with(Scheme::NvmeTcp, move |portal| {
        let store = NvmeTcp::new(Portal::parse(portal)?, nvme.clone());
        Ok(Arc::new(store))
    });
    for (scheme, prefix) in [(Scheme::Https, "https"), (Scheme::Http, "http")] {
        let (network, token, cache) = (Arc::clone(&network), token.clone(), cache.clone());
        stores = stores.with(scheme, move |host| {
            let site = site(prefix, host)?;
            let is_for = |given: &&ScopedToken| given.only.is_none_or(|only| only == host);
            let token = token
                .as_ref()
                .filter(is_for)
                .map(|given| given.token.clone());
            // The names of objects are complete URLs: no site is needed.
            Ok(cached(
                cache.as_ref(),
                Arc::new(Https::new(&network, site, token)?),
                "",
            ))
        });
    }
    Ok(stores)
}

/// A store, behind a cache if there is one.
fn cached(cache: Option<&Arc<Cache>>, store: Arc<dyn Store>, site: &str) -> Arc<dyn Store> {
    match cache {
        Some(cache) => Arc::new(CachedStore::new(store, cache, site)),
        None => store,
    }
}

/// Opens a bucket, for the doctor.
pub(crate) fn bucket(options: &StoreOptions, name: &str) -> Result<S3> {
    let config = StoreConfig::new(options)?;
    S3::new(name, &config.access, &config.network)
}

/// The environment variables that stores depend on, to detect changes.
pub fn variables() -> Vec<(String, String)> {
    let matters = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.starts_with("AWS_")
            || name.ends_with("_PROXY")
            || matches!(
                name.as_str(),
                "HF_TOKEN" | "HOME" | "SSL_CERT_FILE" | "SSL_CERT_DIR"
            )
    };
    let mut all: Vec<_> = environment().variables.into_iter().collect();
    all.retain(|(name, _)| matters(name));
    all.sort_unstable();
    all
}

/// A token, and the only host that it is for; `None` for a token that was given as an option.
#[derive(Clone)]
struct ScopedToken {
    only: Option<&'static str>,
    token: Token,
}

/// The configuration from options and the environment.
struct StoreConfig {
    access: S3Access,
    network: Arc<Network>,
    token: Option<ScopedToken>,
    cache: Option<Arc<Cache>>,
    nvme: straightway_nvme_host::HostSettings,
}

impl StoreConfig {
    fn new(options: &StoreOptions) -> Result<Self> {
        let mut access = S3Access::of(environment());
        let hub = access.environment.variables.get("HF_TOKEN");
        let hub = hub.filter(|token| !token.is_empty()).cloned();
        let mut token = match hub {
            Some(token) => Some(ScopedToken {
                only: Some(HUB),
                token: Token::new(token)?,
            }),
            None => None,
        };
        let (mut folder, mut cache_bytes) = (None, Bytes(BYTES_DEFAULT));
        let mut nvme = nvme_host();
        for (name, value) in options {
            match name.as_str() {
                "token" => {
                    token = Some(ScopedToken {
                        only: None,
                        token: Token::new(value.as_str())?,
                    });
                }
                "cache" => folder = Some(PathBuf::from(value)),
                "cache_size" => {
                    let parsed: Result<Bytes, _> = value.parse();
                    cache_bytes = parsed.map_err(|error| {
                        Error::new(ErrorKind::Invalid, "use option", name, error.to_string())
                    })?;
                }
                _ if name.starts_with("nvme_") => nvme.set(name, value)?,
                _ => access.set(name, value)?,
            }
        }
        access.check()?;
        let cache = match folder {
            Some(folder) => Some(open_cache(&folder, cache_bytes, &access)?),
            None => None,
        };
        let variable = |name: &str| access.environment.variables.get(name).cloned();
        let bundle = variable("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
        let network = Network::new(NetworkSettings {
            proxies: Proxies::from_variables(variable)?,
            roots: bundle.map_or(Roots::System, |path| Roots::File(PathBuf::from(path))),
            ..NetworkSettings::default()
        });
        Ok(Self {
            access,
            network,
            token,
            cache,
            nvme,
        })
    }
}

/// The NVMe host identity of this machine: that of nvme-cli, else a new one in each process.
fn nvme_host() -> straightway_nvme_host::HostSettings {
    let mut settings = straightway_nvme_host::HostSettings::default();
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let known = read("/etc/nvme/hostnqn").zip(read("/etc/nvme/hostid"));
    if let Some((nqn, id)) = known {
        let mut named = settings.clone();
        // Targets refuse one identifier with two names, so both are used or none.
        let is_set = named.set("nvme_hostnqn", &nqn).is_ok();
        if is_set && named.set("nvme_hostid", &id).is_ok() {
            settings = named;
        }
    }
    settings
}

/// Opens the cache in a folder.
fn open_cache(folder: &Path, bytes: Bytes, access: &S3Access) -> Result<Arc<Cache>> {
    if access.customer_key.is_some() {
        let why = "objects that are encrypted with a customer's key would be kept unencrypted";
        return Err(
            Error::new(ErrorKind::Invalid, "use the cache", folder.display(), why)
                .with_hint("read them without a cache"),
        );
    }
    Cache::open(folder, bytes.0).map(Arc::new)
}

/// The site of a web server.
fn site(scheme: &str, host: &str) -> Result<Site> {
    let url = format!("{scheme}://{host}/");
    let refuse = |_| Error::new(ErrorKind::Invalid, "open", &url, "it is not a URL");
    Site::of(&url.parse().map_err(refuse)?)
}

/// The environment of this process.
fn environment() -> Environment {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Environment {
        variables: std::env::vars_os().filter_map(text).collect(),
        home: std::env::home_dir(),
    }
}
