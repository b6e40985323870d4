//! Objects on web servers: `https://HOST/PATH` and `http://HOST/PATH`, read in ranges of one version.
//!
//! An object is opened by one request for its first bytes, whose response has its length and its version (`ETag`, or
//! `Last-Modified`). All later requests are conditional on that version. An object without a version is read in one
//! response if it is short, and refused otherwise. Redirects are followed when the object is opened, and ranges are
//! requested from the final address. So a model hub gets one request per file, and its content network serves the data.
//! A token is sent only to its own host.
//!
//! A web server has no listing that programs could rely on, and its objects are read-only.

mod page;
mod redirect;
mod token;

use std::{ffi::OsStr, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    engine::Engine,
    parallel,
    store::{Facts, Handle, LaneSpec, Named, Store, Tag, Verbs, text},
};
use straightway_net::{Client, FAMILY, Network, Remote, Site, TUNING, engine};

use page::{FrontLimits, Page};

pub use token::Token;

/// The most objects opened in parallel.
const OPENERS_MAX: usize = 16;

/// The first bytes of an object that stay in memory: they hold the header of most weight files.
const FRONT_BYTES: u32 = 64 << 10;

/// The longest object without a version that is read: all of it stays in memory.
const UNVERSIONED_BYTES_MAX: u32 = 8 << 20;

/// The limit of these bytes for all objects of one call.
const FRONTS_BYTES_MAX: u32 = 64 << 20;

/// The objects of one web server.
#[derive(Clone, Debug)]
pub struct Https {
    site: Site,
    client: Client,
    token: Option<Token>,
}

impl Https {
    /// The objects of a site. `token` is sent with every request to that site, and only to it.
    pub fn new(network: &Arc<Network>, site: Site, token: Option<Token>) -> Result<Self> {
        if token.is_some() && !site.is_tls && !is_loopback(&site) {
            let why = "a token would be sent without encryption";
            return Err(Error::new(ErrorKind::Invalid, "connect to", &site, why)
                .with_hint("use https://, or give no token for this host"));
        }
        let client = Client::new(network);
        Ok(Self { site, client, token })
    }

    /// Opens an object. If its version or its length is known, only that one is opened.
    fn open_one(&self, named: &Named, limits: FrontLimits) -> Result<Remote> {
        let name = self.describe(&named.name);
        let target = format!("/{}", text(self, &named.name)?);
        let page = Page::new(self.site.clone(), &target, self.token.clone());
        let (remote, _) = page.open(&name, &self.client, limits)?;
        let refuse =
            |why: String| Err(Error::new(ErrorKind::Precondition, "open", &name, why).with_hint("open it again"));
        // The version is compared, not requested: a server that redirects may have different tags.
        let wanted = named.tag.as_ref().filter(|tag| matches!(tag, Tag::Text(_)));
        if wanted.is_some() && remote.tag().as_ref() != wanted {
            return refuse("it is another version".to_owned());
        }
        let bytes = remote.object().bytes;
        match named.bytes.filter(|known| *known != bytes) {
            Some(known) => refuse(format!("its length changed from {known} to {bytes} bytes")),
            None => Ok(remote),
        }
    }
}

/// Whether a site is on this machine.
fn is_loopback(site: &Site) -> bool {
    let host = site.host.trim_matches(['[', ']']);
    let address: Option<std::net::IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

impl Store for Https {
    /// The URL, without its query, which may hold a signature.
    fn describe(&self, name: &OsStr) -> String {
        let name = name.to_string_lossy();
        let path = name.split_once('?').map_or(&*name, |(path, _)| path);
        format!("{}/{path}", self.site)
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            tuning: Some(TUNING),
            ..Facts::of(FAMILY)
        }
    }

    fn verbs(&self) -> Verbs {
        Verbs::default()
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let count = u32::try_from(objects.len()).unwrap_or(u32::MAX).max(1);
        let most = FRONTS_BYTES_MAX / count;
        let limits = FrontLimits {
            bytes: FRONT_BYTES.min(most).max(1),
            unversioned_bytes: UNVERSIONED_BYTES_MAX.min(most).max(1),
        };
        parallel::try_each(objects.iter(), OPENERS_MAX, |named| {
            Ok(Arc::new(self.open_one(named, limits)?) as Arc<dyn Handle>)
        })
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        engine(self.client.network(), lane)
    }
}
