//! The registry of all schemes. A new kind of store is added here.
//!
//! A kind of store is configured when its scheme is first used: a program that works with local files reads no
//! configuration of S3 or NVMe, and an error in it does not stop that program.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use straightway_cache::{Cache, CachedStore};
use straightway_core::{Error, ErrorKind, Lock, Result, Scheme};
use straightway_https::{Https, Token};
use straightway_io::{Store, store::Registry};
use straightway_net::{Network, NetworkSettings, Proxies, Roots, Site};
use straightway_nvme_host::{HostSettings, NvmeTcp, Portal};
use straightway_s3::{Environment, S3, S3Access};

use crate::options::StoreOptions;

/// The host that `HF_TOKEN` is for.
const HUB: &str = "huggingface.co";

/// The registry of all stores. What the options do not say comes from the environment.
pub fn registry(options: &StoreOptions, environment: Environment) -> Registry {
    let configuration = Arc::new(Configuration::new(options.clone(), environment));
    let of_s3 = Arc::clone(&configuration);
    let of_nvme = Arc::clone(&configuration);
    let mut stores = Registry::default()
        .with(Scheme::S3, move |bucket| {
            let store = Arc::new(of_s3.bucket(bucket)?);
            let endpoint = store.endpoint().to_owned();
            of_s3.cached(store, &endpoint)
        })
        .with(Scheme::NvmeTcp, move |portal| {
            let store = NvmeTcp::new(Portal::parse(portal)?, of_nvme.nvme().clone());
            Ok(Arc::new(store))
        });
    for (scheme, prefix) in [(Scheme::Https, "https"), (Scheme::Http, "http")] {
        let configuration = Arc::clone(&configuration);
        stores = stores.with(scheme, move |host| {
            let (network, token) = (configuration.network()?, configuration.token(host)?);
            let store = Https::new(&network, site(prefix, host)?, token)?;
            // The names of objects are complete URLs: no site is needed.
            configuration.cached(Arc::new(store), "")
        });
    }
    stores
}

/// The environment of this process.
pub fn environment() -> Environment {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    Environment {
        variables: std::env::vars_os().filter_map(text).collect(),
        home: std::env::home_dir(),
    }
}

/// The variables that stores depend on, to detect changes.
pub(crate) fn variables(environment: &Environment) -> Vec<(String, String)> {
    let matters = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.starts_with("AWS_")
            || name.ends_with("_PROXY")
            || matches!(name.as_str(), "HF_TOKEN" | "HOME" | "SSL_CERT_FILE" | "SSL_CERT_DIR")
    };
    let all = environment.variables.iter();
    let kept = all.filter(|(name, _)| matters(name));
    let mut kept: Vec<_> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    kept.sort_unstable();
    kept
}

/// The configuration of all stores. Each part is made when a store first needs it.
pub(crate) struct Configuration {
    options: StoreOptions,
    environment: Environment,
    access: OnceLock<S3Access>,
    network: OnceLock<Result<Arc<Network>>>,
    cache: Lock<Option<Arc<Cache>>>,
    nvme: OnceLock<HostSettings>,
}

impl Configuration {
    pub(crate) fn new(options: StoreOptions, environment: Environment) -> Self {
        Self {
            options,
            environment,
            access: OnceLock::new(),
            network: OnceLock::new(),
            cache: Lock::default(),
            nvme: OnceLock::new(),
        }
    }

    /// Opens a bucket.
    pub(crate) fn bucket(&self, name: &str) -> Result<S3> {
        let access = || self.options.s3.access(self.environment.clone());
        S3::new(name, self.access.get_or_init(access), &self.network()?)
    }

    /// The settings of this NVMe host.
    fn nvme(&self) -> &HostSettings {
        self.nvme.get_or_init(|| self.options.nvme.settings())
    }

    /// The network with the proxies and certificates of the environment.
    fn network(&self) -> Result<Arc<Network>> {
        let make = || {
            let variable = |name: &str| self.environment.variables.get(name).cloned();
            let named = variable("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
            let bundle = self.options.web.ca_bundle.clone().or(named.map(PathBuf::from));
            Ok(Network::new(NetworkSettings {
                proxies: Proxies::from_variables(variable)?,
                roots: bundle.map_or(Roots::System, Roots::File),
                ..NetworkSettings::default()
            }))
        };
        self.network.get_or_init(make).clone_again()
    }

    /// The token for a host.
    fn token(&self, host: &str) -> Result<Option<Token>> {
        if self.options.web.token.is_some() {
            return Ok(self.options.web.token.clone());
        }
        // Editors and shells often leave a blank or a line end after it.
        let text = self.environment.variables.get("HF_TOKEN").map(|text| text.trim());
        match text.filter(|text| host == HUB && !text.is_empty()) {
            Some(text) => Token::new(text)
                .map(Some)
                .map_err(|error| error.with_hint("check HF_TOKEN")),
            None => Ok(None),
        }
    }

    /// A store, behind the cache if there is one.
    fn cached(&self, store: Arc<dyn Store>, site: &str) -> Result<Arc<dyn Store>> {
        let Some(wanted) = &self.options.cache else {
            return Ok(store);
        };
        if self.options.s3.customer_key.is_some() {
            let why = "objects that are encrypted with a customer's key would be kept unencrypted";
            let folder = wanted.folder.display();
            return Err(
                Error::new(ErrorKind::Invalid, "use the cache", folder, why).with_hint("read them without a cache")
            );
        }
        // A failure is not kept: the user may repair the folder.
        let mut opened = self.cache.lock();
        let cache = match &*opened {
            Some(cache) => cache,
            None => opened.insert(Arc::new(Cache::open(&wanted.folder, wanted.bytes_max)?)),
        };
        Ok(Arc::new(CachedStore::new(store, cache, site)))
    }
}

/// A copy of a result, for another recipient.
trait CloneAgain<T> {
    fn clone_again(&self) -> Result<T>;
}

impl<T: Clone> CloneAgain<T> for Result<T> {
    fn clone_again(&self) -> Result<T> {
        match self {
            Ok(value) => Ok(value.clone()),
            Err(error) => Err(error.again()),
        }
    }
}

/// The site of a web server.
fn site(scheme: &str, host: &str) -> Result<Site> {
    let url = format!("{scheme}://{host}/");
    let refuse = |_| Error::new(ErrorKind::Invalid, "open", &url, "it is not a URL");
    Site::of(&url.parse().map_err(refuse)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(variables: &[(&str, &str)]) -> Configuration {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment = Environment {
            variables: variables.iter().map(own).collect(),
            home: None,
        };
        Configuration::new(StoreOptions::default(), environment)
    }

    #[test]
    fn an_unusable_proxy_or_token_is_reported_only_to_stores_that_need_it() {
        let web = configuration(&[("ALL_PROXY", "socks5h://127.0.0.1:1080"), ("HF_TOKEN", "two words")]);
        let error = web.network().unwrap_err();
        assert!(error.to_string().contains("the proxy"), "{error}");
        assert_eq!(web.token("files.example").unwrap(), None);
        let error = web.token(HUB).unwrap_err();
        assert_eq!(error.hint(), Some("check HF_TOKEN"));
    }

    #[test]
    fn blanks_around_the_token_of_the_hub_are_ignored() {
        let web = configuration(&[("HF_TOKEN", " hf_abc \n")]);
        let token = Token::new("hf_abc").unwrap();
        assert_eq!(web.token(HUB).unwrap(), Some(token));
        assert_eq!(web.token("files.example").unwrap(), None);
        assert!(web.network().is_ok());
    }
}
