//! A byte relay between a client and a server that breaks connections. It does not interpret the bytes, so it works in
//! front of a TLS server: broken handshakes, damaged records, and connections that end without notice.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;
use straightway_core::random::Seed;
use straightway_webserver::Acceptor;

/// The maximum number of bytes from the server before a connection breaks. A handshake has a few thousand.
const PLACE_MAX: u64 = 400_000;

/// The length of a pause.
const PAUSE: Duration = Duration::from_millis(300);

/// The way in which a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// It is closed.
    Cut,
    /// It is reset.
    Reset,
    /// One bit is flipped.
    Flip,
    /// No bytes pass for a while.
    Pause,
}

/// A relay on loopback. It ends when it is dropped.
#[derive(Debug)]
pub struct ByteRelay {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    seed: u64,
    /// The percentage of connections to break.
    broken_percent: u64,
    connections: AtomicU64,
    broken: AtomicU64,
}

impl ByteRelay {
    /// Starts a relay that breaks `broken_percent` of the connections to `upstream`. The seed and the number of a
    /// connection determine whether, how and where it breaks.
    pub fn start(upstream: SocketAddr, seed: u64, broken_percent: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream,
            seed,
            broken_percent,
            connections: AtomicU64::new(0),
            broken: AtomicU64::new(0),
        });
        let relaying = Arc::clone(&shared);
        let acceptor = Acceptor::start("127.0.0.1:0", move |client| relaying.relay(&client))?;
        Ok(Self { acceptor, shared })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// The number of connections that it broke.
    pub fn broken(&self) -> u64 {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// The way a connection breaks, and the number of bytes from the server before that.
    fn planned_break(&self, number: u64) -> Option<(Break, u64)> {
        let mut rng = Seed(self.seed).part(number).rng();
        if rng.below(100) >= self.broken_percent {
            return None;
        }
        let kind = *rng.pick(&[Break::Cut, Break::Reset, Break::Flip, Break::Pause]);
        // About as many breaks in the handshake as after it.
        let most = PLACE_MAX >> rng.below(10);
        Some((kind, rng.below(most)))
    }

    fn relay(&self, client: &TcpStream) -> io::Result<()> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let server = TcpStream::connect(self.upstream)?;
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let upwards = thread::spawn(move || {
            let _ = io::copy(&mut &from, &mut &to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let passed = self.pass(&server, client, self.planned_break(number));
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        let _ = upwards.join();
        passed
    }

    fn pass(&self, mut server: &TcpStream, mut client: &TcpStream, fate: Option<(Break, u64)>) -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let (mut passed, mut fate) = (0, fate);
        loop {
            let read = server.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            let end = passed + read as u64;
            let mut bytes = &mut buffer[..read];
            if let Some((kind, place)) = fate.take_if(|(_, place)| *place < end) {
                self.broken.fetch_add(1, Ordering::Relaxed);
                let at = usize::try_from(place - passed).unwrap_or(0);
                if kind == Break::Flip {
                    bytes[at] ^= 4;
                } else {
                    client.write_all(&bytes[..at])?;
                    bytes = &mut bytes[at..];
                }
                match kind {
                    Break::Cut => return Ok(()),
                    // With a linger time of zero, close sends a reset.
                    Break::Reset => return Ok(set_socket_linger(client, Some(Duration::ZERO))?),
                    Break::Pause => thread::sleep(PAUSE),
                    Break::Flip => {}
                }
            }
            client.write_all(bytes)?;
            passed = end;
        }
    }
}
