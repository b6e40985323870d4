//! A proxy between a client and an HTTP server that injects faults. Which request gets which fault follows from a seed
//! and the number of the request.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;

use crate::head::{Head, Reader};

/// A lie or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed before the answer.
    CutHead,
    /// The connection is closed somewhere in the head of the answer.
    CutInHead,
    /// The connection is closed somewhere in the body.
    CutBody,
    /// The answer comes late.
    Stall(Duration),
    /// The body stops somewhere for a while.
    StallBody(Duration),
    /// The body comes in pieces of some bytes, with pauses, for a while.
    Drip,
    /// The answer never comes, and the connection stays open.
    Lose,
    /// An error of the server.
    Status(u16),
    /// The body of another range, which its head says.
    WrongRange,
    /// The body of another range, under a head that does not say which.
    WrongLength,
    /// The whole object with status 200.
    Whole,
    /// Another `ETag`.
    OtherTag,
    /// The answer twice.
    Twice,
    /// Bytes after the body.
    Leftover,
    /// One bit of the body is another. Only a checksum tells.
    FlipBit,
    /// The connection is reset.
    Reset,
    /// A request that changes something is carried out, and its answer is lost.
    LoseAnswer,
    /// The connection is closed somewhere in the body of a request that changes something.
    CutUpload,
    /// One bit of the body of a request that changes something is another.
    FlipUpload,
    /// A request that changes something is refused before its body was taken.
    RefuseUpload(u16),
    /// A request that changes something is answered with status 200 and an error.
    ErrorIn200,
}

impl Fault {
    /// Whether it is one of requests that change something.
    fn is_of_writes(self) -> bool {
        matches!(
            self,
            Self::LoseAnswer
                | Self::CutUpload
                | Self::FlipUpload
                | Self::RefuseUpload(_)
                | Self::ErrorIn200
        )
    }
}

/// Faults, and how often each comes, in parts of 10,000.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// What the choice follows from.
    pub seed: u64,
    /// Each fault and its share.
    pub shares: Vec<(Fault, u32)>,
    /// Only requests whose target has this text.
    pub only: Option<String>,
    /// As many requests at the beginning get no fault.
    pub after: u64,
}

impl Faults {
    /// The fault of a request.
    fn of(&self, number: u64, request: &Head) -> Option<Fault> {
        let only = self.only.as_deref().unwrap_or_default();
        let is_write = matches!(request.method(), "PUT" | "POST" | "DELETE");
        let is_other = !is_write && request.method() != "GET";
        if number < self.after || is_other || !request.target().contains(only) {
            return None;
        }
        let mut draw =
            u32::try_from(random(self.seed, number) % 10_000).expect("it is below 10,000");
        for (fault, share) in &self.shares {
            match draw.checked_sub(*share) {
                None => return Some(*fault).filter(|fault| fault.is_of_writes() == is_write),
                Some(rest) => draw = rest,
            }
        }
        None
    }
}

/// `stall:3s=100` and the like: the fault, and its share of 10,000.
impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let time = || {
            let seconds = value
                .trim_end_matches('s')
                .parse()
                .map_err(|_| format!("{text}: no time"))?;
            Ok::<_, String>(Duration::from_secs_f64(seconds))
        };
        Ok(match name {
            "cut-head" => Self::CutHead,
            "cut-in-head" => Self::CutInHead,
            "cut-body" => Self::CutBody,
            "stall" => Self::Stall(time()?),
            "stall-body" => Self::StallBody(time()?),
            "drip" => Self::Drip,
            "lose" => Self::Lose,
            "status" => Self::Status(value.parse().map_err(|_| format!("{text}: no status"))?),
            "wrong-range" => Self::WrongRange,
            "wrong-length" => Self::WrongLength,
            "whole" => Self::Whole,
            "other-tag" => Self::OtherTag,
            "twice" => Self::Twice,
            "leftover" => Self::Leftover,
            "flip-bit" => Self::FlipBit,
            "reset" => Self::Reset,
            "lose-answer" => Self::LoseAnswer,
            "cut-upload" => Self::CutUpload,
            "flip-upload" => Self::FlipUpload,
            "refuse-upload" => {
                Self::RefuseUpload(value.parse().map_err(|_| format!("{text}: no status"))?)
            }
            "error-in-200" => Self::ErrorIn200,
            _ => return Err(format!("{text} is no fault")),
        })
    }
}

/// What went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Faults.
    pub faults: u64,
    /// Connections of clients.
    pub connections: u64,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    faults: Mutex<Faults>,
    requests: AtomicU64,
    injected: AtomicU64,
    connections: AtomicU64,
    is_over: AtomicBool,
}

/// A proxy on loopback. It ends when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, a host and port.
    pub fn start(upstream: &str, faults: Faults) -> io::Result<Self> {
        Self::start_at("127.0.0.1:0", upstream, faults)
    }

    /// The same, at an address.
    pub fn start_at(address: &str, upstream: &str, faults: Faults) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            faults: Mutex::new(faults),
            requests: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                shared.connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    // A client or server that goes away ends this connection, and nothing else.
                    let _ = stream.and_then(|stream| shared.serve(&stream));
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Its address, as an URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Injects other faults from now on. Requests are counted from the beginning again.
    pub fn set(&self, faults: Faults) {
        *self
            .shared
            .faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = faults;
        for counter in [
            &self.shared.requests,
            &self.shared.injected,
            &self.shared.connections,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// What went through.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.shared.requests.load(Ordering::Relaxed),
            faults: self.shared.injected.load(Ordering::Relaxed),
            connections: self.shared.connections.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({} to {})", self.address, self.shared.upstream)
    }
}

/// What a connection does after a request.
enum After {
    Stay,
    Close,
    Reset,
}

impl Shared {
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let server = TcpStream::connect(&self.upstream)?;
        server.set_nodelay(true)?;
        let (mut requests, mut answers) = (Reader::new(client), Reader::new(&server));
        while let Some(mut request) = requests.head()? {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let (fault, seed) = {
                let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                (faults.of(number, &request), faults.seed)
            };
            if fault.is_some() {
                self.injected.fetch_add(1, Ordering::Relaxed);
            }
            let draw = random(seed ^ 0x5eed, number);
            if let Some(After::Close | After::Reset) = before(fault, &mut request, client)? {
                return Ok(());
            }
            match forward(fault, &request, &mut requests, &server, client, draw)? {
                After::Stay => {}
                After::Close => return client.shutdown(Shutdown::Both),
                After::Reset => return Ok(set_socket_linger(client, Some(Duration::ZERO))?),
            }
            let Some(mut answer) = answers.head()? else {
                return Ok(());
            };
            let body_bytes = if request.method() == "HEAD" {
                0
            } else {
                answer.content_length()
            };
            let mut work = Work {
                answers: &mut answers,
                client,
                body_bytes,
                draw,
            };
            if fault == Some(Fault::LoseAnswer) {
                return client.shutdown(Shutdown::Both);
            }
            match work.run(fault, &mut answer)? {
                After::Stay => {}
                After::Close => return client.shutdown(Shutdown::Both),
                // Without lingering a close is a reset.
                After::Reset => return Ok(set_socket_linger(client, Some(Duration::ZERO))?),
            }
        }
        Ok(())
    }
}

/// What happens before the server is asked.
fn before(
    fault: Option<Fault>,
    request: &mut Head,
    mut client: &TcpStream,
) -> io::Result<Option<After>> {
    match fault {
        Some(Fault::CutHead) => {
            client.shutdown(Shutdown::Both)?;
            return Ok(Some(After::Close));
        }
        Some(Fault::Lose) => {
            // Until the client gives up.
            let _ = client.read(&mut [0]);
            return Ok(Some(After::Close));
        }
        Some(Fault::Stall(time)) => thread::sleep(time),
        Some(Fault::Whole) => request.remove("range"),
        Some(Fault::WrongRange | Fault::WrongLength) => {
            if let Some((first, last)) = request.range().filter(|(_, last)| *last < u64::MAX) {
                let first = if first == 0 && last > 0 { 1 } else { first / 2 };
                request.set("Range", format!("bytes={first}-{last}"));
            }
        }
        _ => {}
    }
    Ok(None)
}

/// Passes a request on to the server, as far as a fault lets it.
fn forward(
    fault: Option<Fault>,
    request: &Head,
    requests: &mut Reader<&TcpStream>,
    server: &TcpStream,
    mut client: &TcpStream,
    draw: u64,
) -> io::Result<After> {
    let bytes = request.content_length();
    let at = draw % bytes.max(1);
    match fault {
        Some(Fault::RefuseUpload(status)) => {
            let body = format!(
                "<Error><Code>Injected{status}</Code><Message>by the proxy</Message></Error>"
            );
            let head = format!(
                "HTTP/1.1 {status} Injected\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            client.write_all(format!("{head}{body}").as_bytes())?;
            // What the client still sends is not taken.
            thread::sleep(Duration::from_millis(20));
            return Ok(After::Close);
        }
        Some(Fault::ErrorIn200) => {
            pass(requests, io::sink(), bytes)?;
            let body = "\n\n<?xml version=\"1.0\"?><Error><Code>InternalError</Code><Message>late</Message></Error>";
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all(format!("{head}{body}").as_bytes())?;
            return Ok(After::Close);
        }
        _ => {}
    }
    (&*server).write_all(&request.to_bytes())?;
    match fault {
        Some(Fault::CutUpload) if bytes > 0 => {
            pass(requests, server, at)?;
            server.shutdown(Shutdown::Both)?;
            return Ok(After::Reset);
        }
        Some(Fault::FlipUpload) if bytes > 0 => {
            pass(requests, server, at)?;
            let mut byte = [0];
            if requests.body(&mut byte)? == 1 {
                (&*server).write_all(&[byte[0] ^ 1])?;
                pass(requests, server, bytes - at - 1)?;
            }
        }
        _ => pass(requests, server, bytes)?,
    }
    Ok(After::Stay)
}

/// An answer on its way.
struct Work<'a, 's> {
    answers: &'a mut Reader<&'s TcpStream>,
    client: &'a TcpStream,
    body_bytes: u64,
    draw: u64,
}

impl Work<'_, '_> {
    fn run(&mut self, fault: Option<Fault>, answer: &mut Head) -> io::Result<After> {
        let mut client = self.client;
        let at = self.draw % self.body_bytes.max(1);
        match fault {
            Some(Fault::CutInHead) => {
                let head = answer.to_bytes();
                let cut = usize::try_from(self.draw).unwrap_or(0) % head.len();
                client.write_all(&head[..cut])?;
                return Ok(After::Close);
            }
            Some(Fault::Status(status)) => {
                let body = format!(
                    "<Error><Code>Injected{status}</Code><Message>by the proxy</Message></Error>"
                );
                let head = format!(
                    "HTTP/1.1 {status} Injected\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                client.write_all(format!("{head}{body}").as_bytes())?;
                return Ok(After::Close);
            }
            Some(Fault::OtherTag) => answer.set("ETag", "\"0123456789abcdef0123456789abcdef\""),
            Some(Fault::WrongLength) => answer.remove("content-range"),
            _ => {}
        }
        client.write_all(&answer.to_bytes())?;
        match fault {
            Some(Fault::CutBody) => {
                pass(self.answers, client, at)?;
                return Ok(After::Close);
            }
            Some(Fault::Reset) => {
                pass(self.answers, client, at)?;
                return Ok(After::Reset);
            }
            Some(Fault::StallBody(time)) => {
                pass(self.answers, client, at)?;
                thread::sleep(time);
                pass(self.answers, client, self.body_bytes - at)?;
            }
            Some(Fault::Drip) => {
                let slow = self.body_bytes.min(40);
                for _ in 0..slow {
                    pass(self.answers, client, 1)?;
                    thread::sleep(Duration::from_millis(10));
                }
                pass(self.answers, client, self.body_bytes - slow)?;
            }
            Some(Fault::FlipBit) => {
                pass(self.answers, client, at)?;
                let mut byte = [0];
                if self.body_bytes > 0 && self.answers.body(&mut byte)? == 1 {
                    client.write_all(&[byte[0] ^ 1])?;
                    pass(self.answers, client, self.body_bytes - at - 1)?;
                }
            }
            Some(Fault::Twice) => {
                let mut body = Vec::new();
                collect(self.answers, &mut body, self.body_bytes)?;
                client.write_all(&body)?;
                client.write_all(&answer.to_bytes())?;
                client.write_all(&body)?;
            }
            Some(Fault::Leftover) => {
                pass(self.answers, client, self.body_bytes)?;
                client.write_all(b"left over from another answer")?;
            }
            _ => pass(self.answers, client, self.body_bytes)?,
        }
        Ok(After::Stay)
    }
}

/// Passes bytes of a body on.
fn pass<R: Read>(from: &mut Reader<R>, mut to: impl Write, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(bytes.min(256 << 10)).unwrap_or(0)];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        match from.body(&mut buffer[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                to.write_all(&buffer[..read])?;
                left -= read as u64;
            }
        }
    }
    Ok(())
}

fn collect<R: Read>(from: &mut Reader<R>, into: &mut Vec<u8>, bytes: u64) -> io::Result<()> {
    into.resize(usize::try_from(bytes).unwrap_or(0), 0);
    let mut at = 0;
    while at < into.len() {
        match from.body(&mut into[at..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => at += read,
        }
    }
    Ok(())
}

/// A number that follows from a seed and another number: splitmix64.
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
