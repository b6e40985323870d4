//! One object: its address, the final address after redirects, and its token.

use std::{fmt, sync::Arc};

use straightway_core::{Error, ErrorKind, Result, SharedLock};
use straightway_net::{
    Client, FirstResponse, Head, HttpResponse, Judgement, Next, Remote, Service, Site, judge_status,
};

use crate::{redirect::Place, token::Token};

/// The most redirects that are followed for one object.
const REDIRECTS_MAX: usize = 8;

/// The address and the token of an object.
#[derive(Clone)]
pub(crate) struct Page {
    /// The address before redirects.
    named: Place,
    token: Option<Token>,
}

/// The limits on the first bytes of an object, which stay in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontLimits {
    /// The bytes to request.
    pub(crate) bytes: u32,
    /// The same if the server states no version of the object. It is then read in one response or not at all.
    pub(crate) unversioned_bytes: u32,
}

/// The service of an object at its final address.
struct PageService {
    page: Page,
    client: Client,
    name: String,
    /// The final address.
    place: Place,
    /// Whether the address may have expired, and is then resolved again: it came from a redirect, and was valid once. A
    /// request that resolves an address is never repeated this way, or it would resolve itself without end.
    is_renewable: bool,
    /// The head of a request. It changes only at a renewal, so readers do not wait.
    head: SharedLock<Vec<u8>>,
}

impl Page {
    pub(crate) fn new(site: Site, target: &str, token: Option<Token>) -> Self {
        let target = target.to_owned();
        Self {
            named: Place { site, target },
            token,
        }
    }

    /// Opens the object and follows redirects. Returns it with its final address.
    pub(crate) fn open(&self, name: &str, client: &Client, limits: FrontLimits) -> Result<(Remote, Place)> {
        let mut front_bytes = limits.bytes;
        let most = limits.unversioned_bytes;
        let mut place = self.named.clone();
        for _ in 0..=REDIRECTS_MAX {
            let remote = self.remote(name, place.clone(), client, false)?;
            match remote.first_response(front_bytes)? {
                FirstResponse::Found {
                    bytes, validator: None, ..
                } if bytes > u64::from(front_bytes) && bytes <= u64::from(most) => {
                    front_bytes = most;
                }
                FirstResponse::Found {
                    bytes,
                    validator,
                    front,
                } => {
                    let remote = self.remote(name, place.clone(), client, true)?;
                    return Ok((remote.found(bytes, validator, front), place));
                }
                FirstResponse::Redirect(location) => place = place.follow(&location, name)?,
            }
        }
        let why = format!("it redirects more than {REDIRECTS_MAX} times");
        Err(Error::new(ErrorKind::Unsupported, "open", name, why))
    }

    /// The object at an address. With `renews`, an address from a redirect is resolved again when it has expired.
    fn remote(&self, name: &str, place: Place, client: &Client, renews: bool) -> Result<Remote> {
        let origin = client.network().origin(&place.site)?;
        let head = self.head(&place);
        let service = PageService {
            is_renewable: renews && place != self.named,
            page: self.clone(),
            client: client.clone(),
            name: name.to_owned(),
            place,
            head: SharedLock::new(head),
        };
        let service: Arc<dyn Service> = Arc::new(service);
        Ok(Remote::known(name.to_owned(), 0, None, &origin, service, client))
    }

    /// The head of a request at an address. The token is sent only to its own site.
    fn head(&self, place: &Place) -> Vec<u8> {
        let (target, host) = (&place.target, place.site.authority());
        // The bytes of the object itself, not a compressed form.
        let mut head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n").into_bytes();
        let agent = concat!("User-Agent: straightway/", env!("CARGO_PKG_VERSION"), "\r\n");
        head.extend_from_slice(agent.as_bytes());
        if let Some(token) = self.token.as_ref().filter(|_| place.site == self.named.site) {
            token.write(&mut head);
        }
        head
    }
}

impl Service for PageService {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let head = self.head.read();
        out.extend_from_slice(&head);
        Ok(Head::Ready)
    }

    fn judge(&self, name: &str, response: &HttpResponse<'_>) -> Judgement {
        let judgement = judge_status(name, response);
        // The signed addresses of a hub expire after about an hour.
        let may_be_stale = matches!(response.status, 400 | 401 | 403 | 404 | 410);
        if self.is_renewable && may_be_stale {
            return Judgement {
                next: Next::Renew,
                ..judgement
            };
        }
        judgement
    }

    fn renew(&self) -> Result<()> {
        let limits = FrontLimits {
            bytes: 1,
            unversioned_bytes: 1,
        };
        let (_, place) = self.page.open(&self.name, &self.client, limits)?;
        if place.site != self.place.site {
            let why = "it is on another server now";
            return Err(Error::new(ErrorKind::Transient, "read", &self.name, why).with_hint("open it again"));
        }
        let head = self.page.head(&place);
        *self.head.write() = head;
        Ok(())
    }
}

impl fmt::Debug for PageService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageService").field(&self.name).finish()
    }
}
