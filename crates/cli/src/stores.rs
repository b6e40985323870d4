//! The stores that the command and the Python package know, by options and by the environment, which is read here.
//!
//! Options have the names of [`Access::OPTIONS`], and `token` for web servers. A new kind of store is added here.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use straightway_core::{Error, Kind, Result, Scheme};
use straightway_https::{Https, Token};
use straightway_io::store::Registry;
use straightway_net::{Network, Proxies, Roots, Settings, Site};
use straightway_s3::{Access, Environment, S3};

/// The host that `HF_TOKEN` is for.
const HUB: &str = "huggingface.co";

/// Options by name.
pub type Options = [(String, String)];

/// All stores.
pub fn registry(options: &Options) -> Result<Registry> {
    let Reached {
        access,
        network,
        token,
    } = Reached::new(options)?;
    let shared = Arc::clone(&network);
    let mut stores = Registry::default().with(Scheme::S3, move |bucket| {
        Ok(Arc::new(S3::new(bucket, &access, &shared)?))
    });
    for (scheme, prefix) in [(Scheme::Https, "https"), (Scheme::Http, "http")] {
        let (network, token) = (Arc::clone(&network), token.clone());
        stores = stores.with(scheme, move |host| {
            let site = site(prefix, host)?;
            let is_for = |given: &&Given| given.only.is_none_or(|only| only == host);
            let token = token
                .as_ref()
                .filter(is_for)
                .map(|given| given.token.clone());
            Ok(Arc::new(Https::new(&network, site, token)?))
        });
    }
    Ok(stores)
}

/// A bucket, for the doctor.
pub(crate) fn bucket(options: &Options, name: &str) -> Result<S3> {
    let reached = Reached::new(options)?;
    S3::new(name, &reached.access, &reached.network)
}

/// The variables of the process that stores depend on, to notice that one of them has changed.
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

/// A token, and the one host that it is for where it was not given with the call.
#[derive(Clone)]
struct Given {
    only: Option<&'static str>,
    token: Token,
}

/// What options and the environment say.
struct Reached {
    access: Access,
    network: Arc<Network>,
    token: Option<Given>,
}

impl Reached {
    fn new(options: &Options) -> Result<Self> {
        let mut access = Access::of(environment());
        let hub = access.environment.variables.get("HF_TOKEN");
        let hub = hub.filter(|token| !token.is_empty()).cloned();
        let mut token = match hub {
            Some(token) => Some(Given {
                only: Some(HUB),
                token: Token::new(token)?,
            }),
            None => None,
        };
        for (name, value) in options {
            if name == "token" {
                token = Some(Given {
                    only: None,
                    token: Token::new(value.as_str())?,
                });
            } else {
                access.set(name, value)?;
            }
        }
        access.check()?;
        let variable = |name: &str| access.environment.variables.get(name).cloned();
        let bundle = variable("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
        let network = Network::new(Settings {
            proxies: Proxies::from_variables(variable)?,
            roots: bundle.map_or(Roots::System, |path| Roots::File(PathBuf::from(path))),
            ..Settings::default()
        });
        Ok(Self {
            access,
            network,
            token,
        })
    }
}

/// A web server.
fn site(scheme: &str, host: &str) -> Result<Site> {
    let url = format!("{scheme}://{host}/");
    let refuse = |_| Error::new(Kind::Invalid, "open", &url, "it is no URL");
    Site::of(&url.parse().map_err(refuse)?)
}

/// The variables of this process.
fn environment() -> Environment {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Environment {
        variables: std::env::vars_os().filter_map(text).collect(),
        home: std::env::home_dir(),
    }
}
