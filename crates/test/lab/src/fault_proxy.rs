//! An HTTP proxy between a client and a server that injects faults. The seed and the number of a request determine its
//! fault.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use straightway_core::{Lock, random::Seed};
use straightway_webserver::{
    Acceptor,
    message::{MessageHead, Reader},
};

use crate::fault::{ProxyFault, ProxyFaults};

/// Counters of a proxy.
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
    faults: Lock<ProxyFaults>,
    requests: AtomicU64,
    injected: AtomicU64,
    connections: AtomicU64,
}

/// A proxy on loopback. It ends when it is dropped.
pub struct FaultProxy {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

impl FaultProxy {
    /// Starts a proxy in front of `upstream`, a host and port.
    pub fn start(upstream: &str, faults: ProxyFaults) -> io::Result<Self> {
        Self::start_at("127.0.0.1:0", upstream, faults)
    }

    /// Starts a proxy at an address.
    pub fn start_at(address: &str, upstream: &str, faults: ProxyFaults) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            faults: Lock::new(faults),
            requests: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        let acceptor = Acceptor::start(address, move |client| serving.serve(&client))?;
        Ok(Self { acceptor, shared })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.acceptor.address())
    }

    /// Injects other faults from now on. Restarts the count of requests.
    pub fn set(&self, faults: ProxyFaults) {
        *self.shared.faults.lock() = faults;
        for counter in [&self.shared.requests, &self.shared.injected, &self.shared.connections] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.shared.requests.load(Ordering::Relaxed),
            faults: self.shared.injected.load(Ordering::Relaxed),
            connections: self.shared.connections.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultProxy({} to {})", self.acceptor.address(), self.shared.upstream)
    }
}

/// The action after a request.
enum After {
    Stay,
    Close,
    Reset,
}

impl Shared {
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let server = TcpStream::connect(&self.upstream)?;
        server.set_nodelay(true)?;
        let (mut requests, mut answers) = (Reader::new(client), Reader::new(&server));
        while let Some(mut request) = requests.head()? {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            let (fault, seed) = {
                let faults = self.faults.lock();
                (faults.of(number, &request), faults.seed)
            };
            if fault.is_some() {
                self.injected.fetch_add(1, Ordering::Relaxed);
            }
            let draw = Seed(seed ^ 0x5eed).part(number).0;
            expect(&mut request, client)?;
            requests.tell_length(&mut request)?;
            if let Some(After::Close | After::Reset) = before(fault, &mut request, client)? {
                return Ok(());
            }
            match forward(fault, &request, &mut requests, &server, client, draw)? {
                After::Stay => {}
                After::Close => return client.shutdown(Shutdown::Both),
                After::Reset => return Ok(set_socket_linger(client, Some(Duration::ZERO))?),
            }
            let has_body = request.method() != "HEAD";
            let Some(mut answer) = answers.answer(has_body)? else {
                return Ok(());
            };
            let body_bytes = if has_body { answer.content_length() } else { 0 };
            let mut work = Work {
                answers: &mut answers,
                client,
                body_bytes,
                draw,
            };
            if fault == Some(ProxyFault::LoseAnswer) {
                return client.shutdown(Shutdown::Both);
            }
            match work.run(fault, &mut answer)? {
                After::Stay => {}
                After::Close => return client.shutdown(Shutdown::Both),
                // With a linger time of zero, close sends a reset.
                After::Reset => return Ok(set_socket_linger(client, Some(Duration::ZERO))?),
            }
        }
        Ok(())
    }
}

/// Answers `Expect: 100-continue`.
fn expect(request: &mut MessageHead, mut client: &TcpStream) -> io::Result<()> {
    let waits = |value: &str| value.eq_ignore_ascii_case("100-continue");
    if request.get("expect").is_some_and(waits) {
        request.remove("expect");
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    Ok(())
}

/// Injects the faults that occur before the request is forwarded.
fn before(fault: Option<ProxyFault>, request: &mut MessageHead, mut client: &TcpStream) -> io::Result<Option<After>> {
    match fault {
        Some(ProxyFault::CutHead) => {
            client.shutdown(Shutdown::Both)?;
            return Ok(Some(After::Close));
        }
        Some(ProxyFault::Lose) => {
            // Until the client disconnects.
            let _ = client.read(&mut [0]);
            return Ok(Some(After::Close));
        }
        Some(ProxyFault::Stall(time)) => thread::sleep(time),
        Some(ProxyFault::Whole) => request.remove("range"),
        Some(ProxyFault::WrongRange | ProxyFault::WrongLength) => {
            if let Some((first, last)) = request.range().filter(|(_, last)| *last < u64::MAX) {
                let first = if first == 0 && last > 0 { 1 } else { first / 2 };
                request.set("Range", format!("bytes={first}-{last}"));
            }
        }
        _ => {}
    }
    Ok(None)
}

/// Forwards a request to the server, as far as a fault permits.
fn forward(
    fault: Option<ProxyFault>,
    request: &MessageHead,
    requests: &mut Reader<&TcpStream>,
    server: &TcpStream,
    mut client: &TcpStream,
    draw: u64,
) -> io::Result<After> {
    let bytes = request.content_length();
    let at = draw % bytes.max(1);
    match fault {
        Some(ProxyFault::RefuseUpload(status)) => {
            let body = format!("<Error><Code>Injected{status}</Code><Message>by the proxy</Message></Error>");
            let head = format!(
                "HTTP/1.1 {status} Injected\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            client.write_all(format!("{head}{body}").as_bytes())?;
            // The rest of the request is not read.
            thread::sleep(Duration::from_millis(20));
            return Ok(After::Close);
        }
        Some(ProxyFault::ErrorIn200) => {
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
        Some(ProxyFault::CutUpload) if bytes > 0 => {
            pass(requests, server, at)?;
            server.shutdown(Shutdown::Both)?;
            return Ok(After::Reset);
        }
        Some(ProxyFault::FlipUpload) if bytes > 0 => {
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

/// A response that is being forwarded.
struct Work<'a, 's> {
    answers: &'a mut Reader<&'s TcpStream>,
    client: &'a TcpStream,
    body_bytes: u64,
    draw: u64,
}

impl Work<'_, '_> {
    fn run(&mut self, fault: Option<ProxyFault>, answer: &mut MessageHead) -> io::Result<After> {
        let mut client = self.client;
        match fault {
            Some(ProxyFault::CutInHead) => {
                let head = answer.to_bytes();
                let cut = usize::try_from(self.draw).unwrap_or(0) % head.len();
                client.write_all(&head[..cut])?;
                return Ok(After::Close);
            }
            Some(ProxyFault::Status(status)) => {
                let body = format!("<Error><Code>Injected{status}</Code><Message>by the proxy</Message></Error>");
                let head = format!("HTTP/1.1 {status} Injected\r\nContent-Length: {}\r\n\r\n", body.len());
                client.write_all(format!("{head}{body}").as_bytes())?;
                return Ok(After::Close);
            }
            Some(ProxyFault::OtherTag) => {
                answer.set("ETag", "\"0123456789abcdef0123456789abcdef\"");
            }
            Some(ProxyFault::WrongLength) => answer.remove("content-range"),
            _ => {}
        }
        client.write_all(&answer.to_bytes())?;
        self.send_body(fault, answer)
    }

    fn send_body(&mut self, fault: Option<ProxyFault>, answer: &MessageHead) -> io::Result<After> {
        let mut client = self.client;
        let at = self.draw % self.body_bytes.max(1);
        match fault {
            Some(ProxyFault::CutBody) => {
                pass(self.answers, client, at)?;
                return Ok(After::Close);
            }
            Some(ProxyFault::Reset) => {
                pass(self.answers, client, at)?;
                return Ok(After::Reset);
            }
            Some(ProxyFault::StallBody(time)) => {
                pass(self.answers, client, at)?;
                thread::sleep(time);
                pass(self.answers, client, self.body_bytes - at)?;
            }
            Some(ProxyFault::Drip) => {
                let slow = self.body_bytes.min(40);
                for _ in 0..slow {
                    pass(self.answers, client, 1)?;
                    thread::sleep(Duration::from_millis(10));
                }
                pass(self.answers, client, self.body_bytes - slow)?;
            }
            Some(ProxyFault::FlipBit) => {
                pass(self.answers, client, at)?;
                let mut byte = [0];
                if self.body_bytes > 0 && self.answers.body(&mut byte)? == 1 {
                    client.write_all(&[byte[0] ^ 1])?;
                    pass(self.answers, client, self.body_bytes - at - 1)?;
                }
            }
            Some(ProxyFault::Twice) => {
                let mut body = vec![0; usize::try_from(self.body_bytes).unwrap_or(0)];
                self.answers.body_exact(&mut body)?;
                client.write_all(&body)?;
                client.write_all(&answer.to_bytes())?;
                client.write_all(&body)?;
            }
            Some(ProxyFault::Leftover) => {
                pass(self.answers, client, self.body_bytes)?;
                client.write_all(b"left over from another answer")?;
            }
            _ => pass(self.answers, client, self.body_bytes)?,
        }
        Ok(After::Stay)
    }
}

/// Forwards bytes of a body.
fn pass<R: Read>(from: &mut Reader<R>, mut to: impl Write, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(bytes.min(256 << 10)).unwrap_or(0)];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
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
