//! The cost of receiving: this engine compared with a bare `recv` loop, on the same server and in turns.
//!
//! ```text
//! receive serve PORT MIB                 a server that sends an object of MIB MiB from memory
//! receive serve-tls MIB CA.pem           the same with TLS; prints its URL and writes its certificate
//! receive URL [ROUNDS] [CA.pem]          CPU seconds per GiB and rate of both, medians
//! ```
//!
//! Both use 8 connections and receive ranges of 8 MiB into memory of their own. The bare loop has a thread per
//! connection, checks nothing, and uses rustls for TLS. CPU time is that of this process (`getrusage`), so the server
//! must be another process.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::{
    env,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::Result;
use straightway_io::{
    Handle,
    engine::Engine,
    request::{Io, Op},
};
use straightway_net::{Client, Head, HttpEngine, Network, NetworkSettings, Remote, Roots, Service, Site};
use straightway_sys::{Buf, CpuTime, IoPath, Slot};

const CONNECTIONS: u32 = 8;
const RANGE_BYTES: usize = 8 << 20;

fn main() {
    let words: Vec<_> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port, mib] => serve(port.parse().unwrap(), mib.parse().unwrap()),
        ["serve-tls", mib, path] => serve_tls(mib.parse().unwrap(), path),
        [url] => compare(url, 5, None),
        [url, rounds] => compare(url, rounds.parse().unwrap(), None),
        [url, rounds, roots] => compare(url, rounds.parse().unwrap(), Some(roots)),
        _ => println!("receive serve PORT MIB | receive serve-tls MIB CA.pem | receive URL [ROUNDS] [CA.pem]"),
    }
}

/// Serves ranges of an object in memory forever.
fn serve(port: u16, mib: usize) {
    let object: Arc<Vec<u8>> = Arc::new((0..mib << 20).map(|at| (at / 4096).to_le_bytes()[0]).collect());
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for stream in listener.incoming().flatten() {
        let object = Arc::clone(&object);
        std::thread::spawn(move || {
            // A client that disconnects ends its connection.
            let _ = serve_one(stream, &object);
        });
    }
}

/// The same with TLS, with the server of the tests.
fn serve_tls(mib: usize, path: &str) {
    let object = vec![7; mib << 20];
    let server = straightway_webserver::Server::start_tls(move |request| request.response(&object, "\"1\""));
    server.certificate().write(path.as_ref()).unwrap();
    println!("{}", server.url("/x"));
    loop {
        std::thread::park();
    }
}

fn serve_one(mut stream: TcpStream, object: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = ([0; 4096], 0);
    loop {
        let end = loop {
            let end = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            match stream.read(&mut buffer[filled..])? {
                0 => return Ok(()),
                more => filled += more,
            }
        };
        let text = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
        let range = text.split("range: bytes=").nth(1).and_then(|rest| {
            let (first, last) = rest.lines().next()?.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        let (first, last): (usize, usize) = range.unwrap_or((0, object.len() - 1));
        let last = last.min(object.len() - 1);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{last}/{}\r\n\
             ETag: \"1\"\r\n\r\n",
            last + 1 - first,
            object.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(&object[first..=last])?;
        buffer.copy_within(end..filled, 0);
        filled -= end;
    }
}

#[derive(Debug)]
struct Plain(String);

impl Service for Plain {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(Head::Ready)
    }
}

/// The cost of a round.
#[derive(Clone, Copy)]
struct Cost {
    cpu_s_per_gib: f64,
    gib_per_s: f64,
}

fn measured(bytes: u64, run: impl FnOnce()) -> Cost {
    let (cpu, start) = (CpuTime::of_process(), Instant::now());
    run();
    let seconds = start.elapsed().as_secs_f64();
    let gib = bytes as f64 / (1_u64 << 30) as f64;
    Cost {
        cpu_s_per_gib: (CpuTime::of_process() - cpu).total_s() / gib,
        gib_per_s: gib / seconds,
    }
}

fn compare(url: &str, rounds: usize, roots: Option<&str>) {
    let url: http::Uri = url.parse().unwrap();
    let roots = roots.map_or(Roots::System, |path| Roots::File(path.into()));
    let network = Network::new(NetworkSettings {
        roots: roots.clone(),
        ..NetworkSettings::default()
    });
    let site = Site::of(&url).unwrap();
    let (path, host) = (url.path_and_query().unwrap(), site.authority());
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
    let origin = network.origin(&site).unwrap();
    let service = Arc::new(Plain(head.clone()));
    let client = Client::new(&network);
    let remote = Remote::open(url.to_string(), None, &origin, service, &client, 1).unwrap();
    let remote = Arc::new(remote);
    let bytes = remote.object().bytes;
    let mut engine = HttpEngine::new(CONNECTIONS, CONNECTIONS).unwrap();
    let mut slots = Slot::ring(CONNECTIONS as usize, RANGE_BYTES).unwrap();
    let bare = Bare::new(&site, head, bytes, &roots);
    let mut costs = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let own = measured(bytes, || {
            slots = read(&mut engine, &remote, std::mem::take(&mut slots));
        });
        let other = measured(bytes, || bare.read());
        // The first round makes the connections.
        if round > 0 {
            costs[0].push(own);
            costs[1].push(other);
        }
    }
    let median = |costs: &[Cost], of: fn(&Cost) -> f64| {
        let mut all: Vec<_> = costs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!("| {rounds} rounds of {} MiB | CPU s/GiB | GiB/s |", bytes >> 20);
    println!("|---|---|---|");
    for (name, costs) in ["this engine", "bare recv"].iter().zip(&costs) {
        let (cpu, rate) = (median(costs, |c| c.cpu_s_per_gib), median(costs, |c| c.gib_per_s));
        println!("| {name} | {cpu:.3} | {rate:.2} |");
    }
}

/// Reads the whole object with the engine.
fn read(engine: &mut HttpEngine, remote: &Arc<Remote>, mut slots: Vec<Slot>) -> Vec<Slot> {
    let bytes = remote.object().bytes;
    let (mut offset, mut left, mut done) = (0, bytes, Vec::new());
    while left > 0 {
        while offset < bytes
            && let Some(slot) = slots.pop()
        {
            let length = RANGE_BYTES.min(usize::try_from(bytes - offset).unwrap());
            let io = Io {
                op: Op::Read,
                object: Arc::clone(remote) as Arc<dyn Handle>,
                by: IoPath::Direct,
                offset,
                buf: Buf::Slot(slot),
                start: 0,
                bytes: length,
                tag: 0,
            };
            engine.submit(io).unwrap();
            offset += length as u64;
        }
        engine.poll(&mut done, Duration::from_secs(1)).unwrap();
        for one in done.drain(..) {
            left -= one.result.unwrap() as u64;
            let Buf::Slot(slot) = one.io.buf else {
                unreachable!("it went out with a slot")
            };
            slots.push(slot);
        }
    }
    slots
}

trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// Connections, each with a slot, and a receive loop without checks.
struct Bare {
    lanes: Vec<std::sync::Mutex<(Box<dyn Stream>, Slot)>>,
    head: String,
    bytes: u64,
}

impl Bare {
    fn new(site: &Site, head: String, bytes: u64, roots: &Roots) -> Self {
        let connect = || -> Box<dyn Stream> {
            let stream = TcpStream::connect((site.host.as_str(), site.port)).unwrap();
            stream.set_nodelay(true).unwrap();
            if !site.is_tls {
                return Box::new(stream);
            }
            let config = straightway_net::tls_config(roots).unwrap();
            let name = site.host.clone().try_into().unwrap();
            let session = rustls::ClientConnection::new(config, name).unwrap();
            Box::new(rustls::StreamOwned::new(session, stream))
        };
        let slots = Slot::ring(CONNECTIONS as usize, RANGE_BYTES).unwrap();
        let lanes = slots.into_iter().map(|slot| std::sync::Mutex::new((connect(), slot)));
        Self {
            lanes: lanes.collect(),
            head,
            bytes,
        }
    }

    fn read(&self) {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for lane in &self.lanes {
                scope.spawn(|| {
                    let mut lane = lane.lock().unwrap();
                    let (stream, slot) = &mut *lane;
                    loop {
                        let offset = next.fetch_add(RANGE_BYTES as u64, Ordering::Relaxed);
                        if offset >= self.bytes {
                            return;
                        }
                        let end = (offset + RANGE_BYTES as u64).min(self.bytes);
                        let length = usize::try_from(end - offset).unwrap();
                        self.get(stream, offset, &mut slot.as_mut_slice()[..length]);
                    }
                });
            }
        });
    }

    fn get(&self, stream: &mut Box<dyn Stream>, offset: u64, into: &mut [u8]) {
        let last = offset + into.len() as u64 - 1;
        let request = format!("{}Range: bytes={offset}-{last}\r\n\r\n", self.head);
        stream.write_all(request.as_bytes()).unwrap();
        let (mut scratch, mut filled) = ([0; 2048], 0);
        let body = loop {
            let more = stream.read(&mut scratch[filled..]).unwrap();
            assert!(more > 0, "the server closed the connection");
            filled += more;
            let end = scratch[..filled].windows(4).position(|w| w == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
        };
        let front = filled - body;
        into[..front].copy_from_slice(&scratch[body..filled]);
        stream.read_exact(&mut into[front..]).unwrap();
    }
}
