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
        web,
        cache,
        nvme,
    } = StoreConfig::new(options, environment())?;
    let web = Arc::new(web);
    let (shared, kept) = (Arc::clone(&web), cache.clone());
    let mut stores = Registry::default().with(Scheme::S3, move |bucket| {
        let store = Arc::new(S3::new(bucket, &access, &shared.network()?)?);
        let endpoint = store.endpoint().to_owned();
        Ok(cached(kept.as_ref(), store, &endpoint))
    });
    stores = stores.with(Scheme::NvmeTcp, move |portal| {
        let store = NvmeTcp::new(Portal::parse(portal)?, nvme.clone());
        Ok(Arc::new(store))
    });
    for (scheme, prefix) in [(Scheme::Https, "https"), (Scheme::Http, "http")] {
        let (web, cache) = (Arc::clone(&web), cache.clone());
        stores = stores.with(scheme, move |host| {
            let store = Https::new(&web.network()?, site(prefix, host)?, web.token(host)?)?;
            // The names of objects are complete URLs: no site is needed.
            Ok(cached(cache.as_ref(), Arc::new(store), ""))
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
    let config = StoreConfig::new(options, environment())?;
    S3::new(name, &config.access, &config.web.network()?)
}

/// The environment variables that stores depend on, to detect changes.
pub fn variables() -> Vec<(String, String)> {
    let matters = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.starts_with("AWS_")
            || name.ends_with("_PROXY")
            || matches!(name.as_str(), "HF_TOKEN" | "HOME" | "SSL_CERT_FILE" | "SSL_CERT_DIR")
    };
    let mut all: Vec<_> = environment().variables.into_iter().collect();
    all.retain(|(name, _)| matters(name));
    all.sort_unstable();
    all
}

/// The network and the tokens. An error in a variable of the environment is reported when a store needs that variable:
/// an unusable proxy does not stop a command on local files.
struct Web {
    network: Result<Arc<Network>>,
    /// The token that was given as an option, for all hosts.
    token: Option<Token>,
    /// The token in `HF_TOKEN`, for the hub.
    hub_token: Option<Result<Token>>,
}

impl Web {
    fn network(&self) -> Result<Arc<Network>> {
        let network = self.network.as_ref();
        network.map(Arc::clone).map_err(Error::again)
    }

    /// The token for a host.
    fn token(&self, host: &str) -> Result<Option<Token>> {
        if self.token.is_some() {
            return Ok(self.token.clone());
        }
        let token = self.hub_token.as_ref().filter(|_| host == HUB);
        let token = token.map(|token| token.as_ref().cloned().map_err(Error::again));
        token.transpose()
    }
}

/// The configuration from options and the environment.
struct StoreConfig {
    access: S3Access,
    web: Web,
    cache: Option<Arc<Cache>>,
    nvme: straightway_nvme_host::HostSettings,
}

impl StoreConfig {
    fn new(options: &StoreOptions, environment: Environment) -> Result<Self> {
        let mut access = S3Access::of(environment);
        let mut token = None;
        let (mut folder, mut cache_bytes) = (None, Bytes(BYTES_DEFAULT));
        let mut nvme = nvme_host();
        for (name, value) in options {
            match name.as_str() {
                "token" => token = Some(Token::new(value.trim())?),
                "cache" => folder = Some(PathBuf::from(value)),
                "cache_size" => {
                    let parsed: Result<Bytes, _> = value.parse();
                    cache_bytes = parsed
                        .map_err(|error| Error::new(ErrorKind::Invalid, "use option", name, error.to_string()))?;
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
        let web = Web {
            network: network(&access.environment),
            token,
            hub_token: hub_token(&access.environment),
        };
        Ok(Self {
            access,
            web,
            cache,
            nvme,
        })
    }
}

/// The network with the proxies and certificates of the environment.
fn network(environment: &Environment) -> Result<Arc<Network>> {
    let variable = |name: &str| environment.variables.get(name).cloned();
    let bundle = variable("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
    Ok(Network::new(NetworkSettings {
        proxies: Proxies::from_variables(variable)?,
        roots: bundle.map_or(Roots::System, |path| Roots::File(PathBuf::from(path))),
        ..NetworkSettings::default()
    }))
}

/// The token of the hub in the environment. Editors and shells often leave a blank or a line end after it.
fn hub_token(environment: &Environment) -> Option<Result<Token>> {
    let text = environment.variables.get("HF_TOKEN")?.trim();
    let token = || Token::new(text).map_err(|error| error.with_hint("check HF_TOKEN"));
    (!text.is_empty()).then(token)
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
        return Err(Error::new(ErrorKind::Invalid, "use the cache", folder.display(), why)
            .with_hint("read them without a cache"));
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
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    Environment {
        variables: std::env::vars_os().filter_map(text).collect(),
        home: std::env::home_dir(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(variables: &[(&str, &str)]) -> Web {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment = Environment {
            variables: variables.iter().map(own).collect(),
            home: None,
        };
        StoreConfig::new(&[], environment).unwrap().web
    }

    #[test]
    fn an_unusable_proxy_or_token_is_reported_only_to_stores_that_need_it() {
        let web = web(&[("ALL_PROXY", "socks5h://127.0.0.1:1080"), ("HF_TOKEN", "two words")]);
        let error = web.network().unwrap_err();
        assert!(error.to_string().contains("the proxy"), "{error}");
        assert_eq!(web.token("files.example").unwrap(), None);
        let error = web.token(HUB).unwrap_err();
        assert_eq!(error.hint(), Some("check HF_TOKEN"));
    }

    #[test]
    fn blanks_around_the_token_of_the_hub_are_ignored() {
        let web = web(&[("HF_TOKEN", " hf_abc \n")]);
        let token = Token::new("hf_abc").unwrap();
        assert_eq!(web.token(HUB).unwrap(), Some(token));
        assert_eq!(web.token("files.example").unwrap(), None);
        assert!(web.network().is_ok());
    }
}
