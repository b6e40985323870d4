//! A web server for tests on loopback, with and without TLS.
//!
//! A function gets each request and says in [`Step`]s what is sent: any bytes, pauses, and the end of the connection.
//! So a test can lie in every way that a server, a proxy or a network can. [`Asked::answer`] is the right answer to a
//! request for an object.

mod certificate;

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

pub use certificate::Certificate;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The method.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body, where a length was given.
    pub body: Vec<u8>,
    /// How many requests came before it.
    pub number: usize,
    /// How many connections were made before its own.
    pub connection: usize,
    /// How many requests came before it on its connection.
    pub nth: usize,
}

/// What is sent.
#[derive(Clone, Debug)]
pub enum Step {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing for this long.
    Wait(Duration),
    /// The connection ends.
    Close,
}

impl Asked {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The range that is asked for, cut to an object of `bytes`; `None` where there is none in it.
    pub fn range(&self, bytes: usize) -> Option<Range<usize>> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first < bytes).then(|| first..(last + 1).min(bytes))
    }

    /// The right answer to it, for an object with this content and tag.
    pub fn answer(&self, content: &[u8], tag: &str) -> Vec<Step> {
        vec![Step::Bytes(self.answer_bytes(content, tag))]
    }

    /// The same as bytes.
    pub fn answer_bytes(&self, content: &[u8], tag: &str) -> Vec<u8> {
        let total = content.len();
        if self.header("if-match").is_some_and(|wanted| wanted != tag) {
            return head("412 Precondition Failed", &[("Content-Length", "0")]);
        }
        let (status, part, range) = match (self.header("range"), self.range(total)) {
            (None, _) => ("200 OK", 0..total, None),
            (Some(_), Some(range)) => {
                let told = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                ("206 Partial Content", range, Some(told))
            }
            (Some(_), None) => {
                let told = format!("bytes */{total}");
                let headers = [("Content-Length", "0"), ("Content-Range", told.as_str())];
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

/// The head of an answer.
pub fn head(status: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// A short answer with a body.
pub fn short(status: &str, body: &str) -> Vec<Step> {
    let length = body.len().to_string();
    let mut bytes = head(status, &[("Content-Length", &length)]);
    bytes.extend_from_slice(body.as_bytes());
    vec![Step::Bytes(bytes)]
}

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
    certificate: Option<Certificate>,
}

type Answer = dyn Fn(&Asked) -> Vec<Step> + Send + Sync;

struct Shared {
    answer: Box<Answer>,
    requests: AtomicUsize,
    connections: AtomicUsize,
    /// The most connections at once.
    open: AtomicUsize,
    open_max: AtomicUsize,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests", self.requests.load(Ordering::Relaxed))
    }
}

impl Server {
    /// A server without TLS that answers as `answer` says.
    pub fn start(answer: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::run(Box::new(answer), None)
    }

    /// A server with TLS, for `localhost` and `127.0.0.1`.
    pub fn start_tls(answer: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::run(Box::new(answer), Some(Certificate::new()))
    }

    fn run(answer: Box<Answer>, certificate: Option<Certificate>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            answer,
            requests: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            open_max: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            streams: Mutex::default(),
        });
        let config = certificate.as_ref().map(Certificate::server_config);
        let serving = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || accept(&listener, &serving, config.as_ref()));
        Self {
            address,
            shared,
            accepting: Some(accepting),
            certificate,
        }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path on it.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.certificate.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Its certificate, where it has TLS.
    pub fn certificate(&self) -> &Certificate {
        self.certificate.as_ref().expect("it has TLS")
    }

    /// How many requests came.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The most connections that were open at once.
    pub fn open_max(&self) -> usize {
        self.shared.open_max.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let streams = self
            .shared
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for stream in &*streams {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        drop(streams);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, tls: Option<&Arc<rustls::ServerConfig>>) {
    for stream in listener.incoming() {
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let _ = stream.set_nodelay(true);
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let open = shared.open.fetch_add(1, Ordering::Relaxed) + 1;
        shared.open_max.fetch_max(open, Ordering::Relaxed);
        if let Ok(twin) = stream.try_clone() {
            let mut streams = shared
                .streams
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            streams.push(twin);
        }
        let (shared, tls) = (Arc::clone(shared), tls.cloned());
        std::thread::spawn(move || {
            // A client that goes away is no error of the server's.
            let _ = match tls {
                None => serve(stream, &shared, number),
                Some(config) => rustls::ServerConnection::new(config)
                    .map_err(io::Error::other)
                    .and_then(|session| {
                        serve(rustls::StreamOwned::new(session, stream), &shared, number)
                    }),
            };
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Serves one connection. Its socket is closed at the end, also where a twin of it is kept.
fn serve<S: Read + Write + Ends>(stream: S, shared: &Shared, connection: usize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let served = serve_all(&mut stream, shared, connection);
    stream.get_mut().end();
    served
}

fn serve_all<S: Read + Write>(
    stream: &mut BufReader<S>,
    shared: &Shared,
    connection: usize,
) -> io::Result<()> {
    for nth in 0.. {
        let Some(mut asked) = read(stream)? else {
            return Ok(());
        };
        asked.number = shared.requests.fetch_add(1, Ordering::Relaxed);
        (asked.connection, asked.nth) = (connection, nth);
        for step in (shared.answer)(&asked) {
            match step {
                Step::Bytes(bytes) => {
                    stream.get_mut().write_all(&bytes)?;
                    stream.get_mut().flush()?;
                }
                Step::Wait(time) => std::thread::sleep(time),
                Step::Close => return Ok(()),
            }
            if shared.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What can be closed for both sides.
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

fn read<S: Read>(stream: &mut BufReader<S>) -> io::Result<Option<Asked>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        lines.push(line.to_owned());
    }
    let mut words = lines
        .first()
        .map(|line| line.split(' '))
        .into_iter()
        .flatten();
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Ok(None);
    };
    let headers = lines[1..].iter().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let mut asked = Asked {
        method: method.to_owned(),
        target: target.to_owned(),
        headers: headers.collect(),
        body: Vec::new(),
        number: 0,
        connection: 0,
        nth: 0,
    };
    let length = asked
        .header("content-length")
        .and_then(|length| length.parse().ok());
    asked.body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut asked.body)?;
    Ok(Some(asked))
}
