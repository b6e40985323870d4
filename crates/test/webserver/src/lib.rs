//! A web server for tests on loopback, with and without TLS.
//!
//! A handler gets each request and returns [`ServerStep`]s: bytes to send, pauses, and the end of the connection. So a
//! test can imitate any fault of a server, a proxy or a network. [`ReceivedRequest::response`] is the correct response
//! to a request for an object.
//!
//! [`Acceptor`] and [`message`] serve the proxies of `lab` too.

mod acceptor;
mod certificate;
pub mod message;

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use message::Reader;
use straightway_core::Lock;

pub use acceptor::Acceptor;
pub use certificate::Certificate;

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, if the request has a length.
    pub body: Vec<u8>,
    /// The number of requests that the server received before it.
    pub number: usize,
    /// The number of connections that were accepted before its own.
    pub connection: usize,
    /// The number of requests before it on its connection.
    pub nth: usize,
}

/// A step of a response.
#[derive(Clone, Debug)]
pub enum ServerStep {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends nothing for this long.
    Wait(Duration),
    /// Closes the connection.
    Close,
}

impl ReceivedRequest {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The requested range, cut to an object of `bytes`; `None` without a valid range that begins within it.
    pub fn range(&self, bytes: usize) -> Option<Range<usize>> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first < bytes).then(|| first..(last + 1).min(bytes))
    }

    /// The correct response for an object with this content and `ETag`.
    pub fn response(&self, content: &[u8], tag: &str) -> Vec<ServerStep> {
        vec![ServerStep::Bytes(self.response_bytes(content, tag))]
    }

    /// The same as bytes.
    pub fn response_bytes(&self, content: &[u8], tag: &str) -> Vec<u8> {
        let total = content.len();
        if self.header("if-match").is_some_and(|wanted| wanted != tag) {
            return head("412 Precondition Failed", &[("Content-Length", "0")]);
        }
        let (status, part, range) = match (self.header("range"), self.range(total)) {
            (None, _) => ("200 OK", 0..total, None),
            (Some(_), Some(range)) => {
                let content_range = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                ("206 Partial Content", range, Some(content_range))
            }
            (Some(_), None) => {
                let content_range = format!("bytes */{total}");
                let headers = [("Content-Length", "0"), ("Content-Range", content_range.as_str())];
                return head("416 Range Not Satisfiable", &headers);
            }
        };
        let length = part.len().to_string();
        let mut headers = vec![("Content-Length", length.as_str()), ("ETag", tag)];
        if let Some(range) = &range {
            headers.push(("Content-Range", range));
        }
        let mut bytes = head(status, &headers);
        if self.method != "HEAD" {
            bytes.extend_from_slice(&content[part]);
        }
        bytes
    }
}

/// The head of a response.
pub fn head(status: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// A response with more headers.
pub fn with_headers(mut response: Vec<u8>, headers: &[(&str, &str)]) -> Vec<u8> {
    let status_end = response.windows(2).position(|w| w == b"\r\n");
    let at = status_end.expect("a response has a status line") + 2;
    let lines = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    response.splice(at..at, lines.collect::<String>().into_bytes());
    response
}

/// A response with a short body.
pub fn short(status: &str, body: &str) -> Vec<ServerStep> {
    let length = body.len().to_string();
    let mut bytes = head(status, &[("Content-Length", &length)]);
    bytes.extend_from_slice(body.as_bytes());
    vec![ServerStep::Bytes(bytes)]
}

/// A running server. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    acceptor: Acceptor,
    shared: Arc<Shared>,
    certificate: Option<Certificate>,
}

type Handler = dyn Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    requests: AtomicUsize,
    connections: AtomicUsize,
    /// The connections that are open now.
    open: AtomicUsize,
    /// The highest value of `open`.
    open_max: AtomicUsize,
    is_over: AtomicBool,
    streams: Lock<Vec<TcpStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests", self.requests.load(Ordering::Relaxed))
    }
}

impl Server {
    /// Starts a server without TLS that responds with the steps `handler` returns.
    pub fn start(handler: impl Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync + 'static) -> Self {
        Self::run(Box::new(handler), None)
    }

    /// Starts a server with TLS, for `localhost` and `127.0.0.1`.
    pub fn start_tls(handler: impl Fn(&ReceivedRequest) -> Vec<ServerStep> + Send + Sync + 'static) -> Self {
        Self::run(Box::new(handler), Some(Certificate::new()))
    }

    fn run(handler: Box<Handler>, certificate: Option<Certificate>) -> Self {
        let shared = Arc::new(Shared {
            handler,
            requests: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            open_max: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            streams: Lock::default(),
        });
        let config = certificate.as_ref().map(Certificate::server_config);
        let serving = Arc::clone(&shared);
        let acceptor = Acceptor::start("127.0.0.1:0", move |stream| serving.accept(stream, config.as_ref()));
        Self {
            acceptor: acceptor.expect("loopback has ports"),
            shared,
            certificate,
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// The URL of a path on it.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address())
    }

    /// Its certificate.
    ///
    /// # Panics
    ///
    /// Without TLS.
    pub fn certificate(&self) -> &Certificate {
        self.certificate.as_ref().expect("it has TLS")
    }

    /// The number of requests received.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// The number of connections accepted.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The number of connections that are open.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// The largest number of connections open at the same time.
    pub fn open_max(&self) -> usize {
        self.shared.open_max.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let streams = self.shared.streams.lock();
        for stream in &*streams {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    fn accept(&self, stream: TcpStream, tls: Option<&Arc<rustls::ServerConfig>>) -> io::Result<()> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_max.fetch_max(open, Ordering::Relaxed);
        let clone = stream.try_clone()?;
        self.streams.lock().push(clone);
        let served = match tls {
            None => serve(stream, self, number),
            Some(config) => rustls::ServerConnection::new(Arc::clone(config))
                .map_err(io::Error::other)
                .and_then(|session| serve(rustls::StreamOwned::new(session, stream), self, number)),
        };
        self.open.fetch_sub(1, Ordering::Relaxed);
        served
    }
}

/// Serves one connection. It shuts the socket down at the end, since `streams` keeps a clone of it.
fn serve<S: Read + Write + Ends>(stream: S, shared: &Shared, connection: usize) -> io::Result<()> {
    let mut requests = Reader::new(stream);
    let served = serve_all(&mut requests, shared, connection);
    requests.stream().end();
    served
}

fn serve_all<S: Read + Write>(requests: &mut Reader<S>, shared: &Shared, connection: usize) -> io::Result<()> {
    for nth in 0.. {
        let Some(mut request) = read(requests)? else {
            return Ok(());
        };
        request.number = shared.requests.fetch_add(1, Ordering::Relaxed);
        (request.connection, request.nth) = (connection, nth);
        for step in (shared.handler)(&request) {
            match step {
                ServerStep::Bytes(bytes) => {
                    requests.stream().write_all(&bytes)?;
                    requests.stream().flush()?;
                }
                ServerStep::Wait(time) => std::thread::sleep(time),
                ServerStep::Close => return Ok(()),
            }
            if shared.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A stream whose two directions can be shut down.
trait Ends {
    fn end(&mut self);
}

impl Ends for TcpStream {
    fn end(&mut self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Ends for rustls::StreamOwned<rustls::ServerConnection, TcpStream> {
    fn end(&mut self) {
        self.sock.end();
    }
}

fn read<S: Read>(requests: &mut Reader<S>) -> io::Result<Option<ReceivedRequest>> {
    let Some(mut head) = requests.head()?.filter(|head| !head.target().is_empty()) else {
        return Ok(None);
    };
    requests.tell_length(&mut head)?;
    let length = usize::try_from(head.content_length()).map_err(io::Error::other)?;
    let mut body = vec![0; length];
    requests.body_exact(&mut body)?;
    let headers = head.headers.iter();
    Ok(Some(ReceivedRequest {
        method: head.method().to_owned(),
        target: head.target().to_owned(),
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect(),
        body,
        number: 0,
        connection: 0,
        nth: 0,
    }))
}
