//! Sends one request and waits for its response on the caller's thread: for control planes.
//!
//! ureq does the work. It has no runtime and no threads, keeps connections alive, and bounds heads and bodies. This
//! module adds timeouts on progress, the same proxies and certificates as the data path, errors that name the object
//! without secrets, and connections that a forked child does not share with its parent.

use std::{
    fmt, io,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request, Response, Uri};
use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::Process;
use ureq::{
    Agent,
    config::AutoHeaderValue,
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};

use crate::{facilities::Facilities, network::Network, proxy::ProxyUrl, site::Site};

/// The longest body that [`Client::send`] accepts. An S3 listing page of 1,000 names is under 2 MiB.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// The longest time for such a body, in stall timeouts: 10 minutes. S3 sends blanks while it completes an upload, which
/// may take some minutes. A listing page needs 28 KB/s at most.
const BODY_STALLS_MAX: u32 = 30;

/// The longest head. A head that follows an interim response may be as long as ureq's buffer, 128 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The most idle connections that are kept.
const IDLE_MAX: usize = 64;

/// An extension of a request: the time that the server may work on it before it responds, in addition to the timeout on
/// progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkTime(pub Duration);

/// Sends requests. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    network: Arc<Network>,
    agents: Mutex<Option<Agents>>,
}

/// The connections of one process, by proxy.
#[derive(Clone)]
struct Agents {
    process: Process,
    direct: Agent,
    http_proxy: Option<Agent>,
    https_proxy: Option<Agent>,
}

impl Client {
    /// A client of a network.
    pub fn new(network: &Arc<Network>) -> Self {
        let network = Arc::clone(network);
        let agents = Mutex::new(None);
        Self {
            shared: Arc::new(Shared { network, agents }),
        }
    }

    /// Its network.
    pub fn network(&self) -> &Arc<Network> {
        &self.shared.network
    }

    /// Sends a request to an absolute URL once and returns the whole response, whatever its status. Redirects are not
    /// followed.
    pub fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>> {
        let url = request.uri().clone();
        let body_time_max = BODY_STALLS_MAX * self.network().settings().stall_max;
        let response = self.run_within(request, Some(body_time_max))?;
        let (parts, mut body) = response.into_parts();
        // ureq rejects a body whose length equals its limit.
        let limit = BODY_BYTES_MAX + 1;
        let body = match body.with_config().limit(limit).read_to_vec() {
            Err(ureq::Error::BodyExceedsLimit(_)) => Err(ureq::Error::BodyExceedsLimit(BODY_BYTES_MAX)),
            body => body,
        };
        let body = body.map_err(|error| request_error(&url, error))?;
        Ok(Response::from_parts(parts, body))
    }

    /// Sends a request and returns the response with its body unread. The caller limits the time for the body.
    pub(crate) fn run(&self, request: Request<Vec<u8>>) -> Result<Response<ureq::Body>> {
        self.run_within(request, None)
    }

    /// The same, with a limit on the time for the whole body of the response, to which the work time is added.
    fn run_within(&self, request: Request<Vec<u8>>, body_time_max: Option<Duration>) -> Result<Response<ureq::Body>> {
        let url = request.uri().clone();
        let site = Site::of(&url)?;
        let agent = self.agent(&site)?;
        let stall_max = self.network().settings().stall_max;
        let work_time = request.extensions().get::<WorkTime>().copied();
        let WorkTime(work_time) = work_time.unwrap_or_default();
        let read_max = stall_max + work_time;
        let body_time_max = body_time_max.map(|most| most + work_time);
        let takes_body = !matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS
        );
        let response = if takes_body || !request.body().is_empty() {
            let request = agent.configure_request(request);
            let request = request
                .timeout_per_read(Some(read_max))
                .timeout_recv_response(Some(read_max))
                .timeout_recv_body(body_time_max);
            agent.run(request.build())
        } else {
            let request = request.map(|_| ());
            let run = |head_bytes_max: usize| {
                let request = agent.configure_request(request.clone());
                let request = request
                    .max_response_header_size(head_bytes_max)
                    .timeout_per_read(Some(read_max))
                    .timeout_recv_response(Some(read_max))
                    .timeout_recv_body(body_time_max);
                agent.run(request.build())
            };
            match run(HEAD_BYTES_MAX) {
                // ureq counts the bytes after an interim response (103) to its head.
                Err(error @ ureq::Error::LargeResponseHeader(..)) => run(usize::MAX).map_err(|_| error),
                response => response,
            }
        };
        response.map_err(|error| request_error(&url, error))
    }

    /// The agent that holds the connections to a site.
    fn agent(&self, site: &Site) -> Result<Agent> {
        let proxies = &self.shared.network.settings().proxies;
        let agents = self.agents(site.is_tls)?;
        let agent = match (proxies.of(site), site.is_tls) {
            (None, _) => Some(agents.direct),
            (Some(_), false) => agents.http_proxy,
            (Some(_), true) => agents.https_proxy,
        };
        agent.ok_or_else(|| {
            let why = "the proxy cannot be used";
            Error::new(ErrorKind::Invalid, "connect to", site, why)
        })
    }

    /// The connections of this process. A forked child makes its own: on shared sockets its requests would mix with the
    /// parent's, and a thread that did not survive the fork may hold a lock.
    fn agents(&self, is_tls: bool) -> Result<Agents> {
        // Certificates are loaded only if they are needed.
        if is_tls {
            self.shared.network.facilities().tls()?;
        }
        let process = Process::this();
        match self.shared.agents.try_lock() {
            Ok(mut agents) => {
                let made = agents.as_ref();
                let fits = made.is_some_and(|made| made.process == process && (!is_tls || made.direct_has_roots()));
                if !fits {
                    *agents = Some(Agents::new(self.shared.network.facilities(), process)?);
                }
                Ok(agents.clone().expect("just made"))
            }
            // The lock is held briefly by another thread, or forever by a thread of the parent: use new connections.
            Err(_) => Agents::new(self.shared.network.facilities(), process),
        }
    }
}

impl Agents {
    fn new(network: &Facilities, process: Process) -> Result<Self> {
        let proxies = &network.settings().proxies;
        let through = |proxy: &Option<ProxyUrl>| {
            let proxy = proxy.as_ref().map(|proxy| agent(network, Some(proxy)));
            proxy.transpose()
        };
        Ok(Self {
            process,
            direct: agent(network, None)?,
            http_proxy: through(&proxies.http)?,
            https_proxy: through(&proxies.https)?,
        })
    }

    /// Whether it has the trusted certificates.
    fn direct_has_roots(&self) -> bool {
        let roots = self.direct.config().tls_config().root_certs();
        matches!(roots, RootCerts::Specific(certificates) if !certificates.is_empty())
    }
}

fn agent(network: &Facilities, proxy: Option<&ProxyUrl>) -> Result<Agent> {
    let settings = network.settings();
    let mut tls = TlsConfig::builder().provider(TlsProvider::Rustls);
    // Before the first use of TLS no certificate is trusted.
    let mut roots = RootCerts::new_with_certs(&[]);
    if let Some(known) = network.known_tls() {
        let certificates = known.certificates.iter();
        roots = certificates.map(|der| Certificate::from_der(der).to_owned()).into();
        tls = tls.unversioned_rustls_crypto_provider(Arc::clone(&known.provider));
    }
    let proxy = proxy.map(|proxy| {
        let builder = ureq::Proxy::builder(ureq::ProxyProtocol::Http)
            .host(&proxy.host)
            .port(proxy.port);
        let credentials = proxy.credentials.as_deref();
        let builder = match credentials.map(|c| c.split_once(':').unwrap_or((c, ""))) {
            Some((user, password)) => builder.username(user).password(password),
            None => builder,
        };
        builder.build().map_err(|_| {
            let why = "its host or port cannot be used";
            Error::new(ErrorKind::Invalid, "use", "the proxy", why)
        })
    });
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(proxy.transpose()?)
        .tls_config(tls.root_certs(roots).build())
        .user_agent(concat!("straightway/", env!("CARGO_PKG_VERSION")))
        .accept(AutoHeaderValue::None)
        .accept_encoding(AutoHeaderValue::None)
        .max_response_header_size(HEAD_BYTES_MAX)
        .max_idle_connections(IDLE_MAX)
        .max_idle_connections_per_host(IDLE_MAX)
        .timeout_connect(Some(settings.connect_max))
        .timeout_per_read(Some(settings.stall_max))
        .timeout_per_write(Some(settings.stall_max))
        .timeout_recv_response(Some(settings.stall_max))
        .build();
    Ok(config.new_agent())
}

/// The error of a failed request. The URL's query may hold a signature, so it is left out.
fn request_error(url: &Uri, error: ureq::Error) -> Error {
    let site = Site::of(url).map_or_else(|_| String::new(), |site| site.to_string());
    let target = format!("{site}{}", url.path());
    let (kind, why, hint) = match error {
        ureq::Error::Io(error) => return io_error(&target, error),
        ureq::Error::Rustls(error) => return untrusted(&target, &error),
        ureq::Error::Timeout(which) => (
            ErrorKind::Transient,
            format!("it timed out ({which})"),
            "check the network and the proxy",
        ),
        ureq::Error::HostNotFound => (
            ErrorKind::Transient,
            "its host has no address".to_owned(),
            "check the host's name",
        ),
        ureq::Error::BodyExceedsLimit(bytes) => (
            ErrorKind::Unsupported,
            format!("the response is longer than {bytes} bytes"),
            "check that the address is that of the right service",
        ),
        ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => (
            ErrorKind::Unsupported,
            "the response is not valid HTTP/1.1".to_owned(),
            "check that the address and the port are those of a web server",
        ),
        ureq::Error::ConnectProxyFailed(_) => (
            ErrorKind::Transient,
            "the proxy refused to open a tunnel".to_owned(),
            "check the proxy and its credentials",
        ),
        ureq::Error::Http(_) | ureq::Error::BadUri(_) => (
            ErrorKind::Invalid,
            "the request cannot be sent".to_owned(),
            "check the address",
        ),
        _ => (
            ErrorKind::Transient,
            "the connection failed".to_owned(),
            "check the network and the proxy",
        ),
    };
    Error::new(kind, "request", target, why).with_hint(hint)
}

/// The error of a connection that could not be made or that broke.
fn io_error(target: &str, error: io::Error) -> Error {
    let inner = error.get_ref();
    if let Some(error) = inner.and_then(|e| e.downcast_ref::<rustls::Error>()) {
        return untrusted(target, error);
    }
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "check the address and the port (also of a proxy), and that the server is running"
        }
        _ => "check the network, the server and the proxy, and how many files the process may open",
    };
    let error = if error.raw_os_error().is_some() {
        Error::os("request", target, error)
    } else {
        Error::new(ErrorKind::Transient, "request", target, error.to_string())
    };
    error.with_hint(hint)
}

/// The error of a failed TLS handshake.
pub(crate) fn untrusted(target: &str, error: &rustls::Error) -> Error {
    let (kind, hint) = match error {
        rustls::Error::InvalidCertificate(_) => (
            ErrorKind::Invalid,
            "name the file of the certificate authority, or check the clock and the host's name",
        ),
        _ => (ErrorKind::Transient, "check that the server speaks TLS there"),
    };
    Error::new(kind, "connect to", target, error.to_string()).with_hint(hint)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.shared.network).finish()
    }
}
