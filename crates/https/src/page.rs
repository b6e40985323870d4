//! How one object is asked for: where it is, where it was found to be, and with which token.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use straightway_core::{Error, Kind, Result};
use straightway_net::{
    Answer, Client, First, Head, Judgement, Next, Remote, Service, Site, Validator, judge_status,
};

use crate::{redirect::Place, token::Token};

/// Redirects that are followed for one object.
const REDIRECTS_MAX: usize = 8;

/// Where an object is said to be, and with which token it is asked for.
#[derive(Clone)]
pub(crate) struct Page {
    /// Where it was said to be.
    named: Place,
    token: Option<Token>,
}

/// How an object is asked for where it was found to be.
struct Found {
    page: Page,
    client: Client,
    name: String,
    /// Where that is. Addresses that a redirect gave may be signed and expire, so they are asked for anew.
    place: Place,
    is_redirected: bool,
    /// The head of a request. It changes only when it is renewed, so that reading it waits for nobody.
    head: RwLock<Vec<u8>>,
}

impl Page {
    pub(crate) fn new(site: Site, target: &str, token: Option<Token>) -> Self {
        let target = target.to_owned();
        Self {
            named: Place { site, target },
            token,
        }
    }

    /// Opens the object, wherever redirects lead; where a version is wanted, only that.
    pub(crate) fn open(
        &self,
        name: &str,
        wanted: Option<&str>,
        client: &Client,
        front_bytes: u32,
    ) -> Result<Remote> {
        let mut place = self.named.clone();
        for _ in 0..=REDIRECTS_MAX {
            // Compared and not asked for: a server that redirects may have tags of its own.
            let remote = self.remote(name, place.clone(), client)?;
            match remote.first(front_bytes)? {
                First::Found { validator, .. }
                    if wanted.is_some() && validator.as_ref().map(Validator::text) != wanted =>
                {
                    let why = "it is another version";
                    return Err(
                        Error::new(Kind::Corrupt, "open", name, why).with_hint("open it again")
                    );
                }
                First::Found {
                    bytes,
                    validator,
                    front,
                } => return Ok(remote.found(bytes, validator, front)),
                First::Redirect(location) => place = place.follow(&location, name)?,
            }
        }
        Err(too_many(name))
    }

    fn remote(&self, name: &str, place: Place, client: &Client) -> Result<Remote> {
        let origin = client.network().origin(&place.site)?;
        let head = self.head(&place);
        let found = Found {
            is_redirected: place != self.named,
            page: self.clone(),
            client: client.clone(),
            name: name.to_owned(),
            place,
            head: RwLock::new(head),
        };
        let service: Arc<dyn Service> = Arc::new(found);
        Ok(Remote::known(
            name.to_owned(),
            0,
            None,
            &origin,
            service,
            client,
        ))
    }

    /// The head of a request at a place. The token goes to the site that it is for alone.
    fn head(&self, place: &Place) -> Vec<u8> {
        let (target, host) = (&place.target, place.site.authority());
        let mut head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        let agent = concat!(
            "User-Agent: straightway/",
            env!("CARGO_PKG_VERSION"),
            "\r\n"
        );
        head.extend_from_slice(agent.as_bytes());
        if let Some(token) = self
            .token
            .as_ref()
            .filter(|_| place.site == self.named.site)
        {
            token.write(&mut head);
        }
        head
    }

    /// Where redirects lead now.
    fn find_again(&self, name: &str, client: &Client) -> Result<Place> {
        let mut place = self.named.clone();
        for _ in 0..=REDIRECTS_MAX {
            let remote = self.remote(name, place.clone(), client)?;
            match remote.first(1)? {
                First::Found { .. } => return Ok(place),
                First::Redirect(location) => place = place.follow(&location, name)?,
            }
        }
        Err(too_many(name))
    }
}

fn too_many(name: &str) -> Error {
    let why = format!("it redirects more than {REDIRECTS_MAX} times");
    Error::new(Kind::Unsupported, "open", name, why)
}

impl Service for Found {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let head = self.head.read().unwrap_or_else(PoisonError::into_inner);
        out.extend_from_slice(&head);
        Ok(Head::Ready)
    }

    fn judge(&self, name: &str, answer: &Answer<'_>) -> Judgement {
        let judgement = judge_status(name, answer);
        // Addresses that a hub gives are signed for an hour or so.
        let may_be_stale = matches!(answer.status, 400 | 401 | 403 | 404 | 410);
        if self.is_redirected && may_be_stale {
            return Judgement {
                next: Next::Renew,
                ..judgement
            };
        }
        judgement
    }

    fn renew(&self) -> Result<()> {
        let place = self.page.find_again(&self.name, &self.client)?;
        if place.site != self.place.site {
            let why = "it is on another server now";
            return Err(
                Error::new(Kind::Transient, "read", &self.name, why).with_hint("open it again")
            );
        }
        let head = self.page.head(&place);
        *self.head.write().unwrap_or_else(PoisonError::into_inner) = head;
        Ok(())
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Found").field(&self.name).finish()
    }
}
