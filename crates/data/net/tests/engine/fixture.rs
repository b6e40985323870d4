//! Shared by the tests of the engine: objects on a test server, and I/Os on them.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, Result, random::Seed};
use straightway_io::{
    Handle,
    engine::Engine,
    request::{Io, Op},
};
use straightway_net::{
    Client, Head, HttpEngine, Network, NetworkSettings, Origin, Remote, Roots, Service, Site, Validator,
};
use straightway_sys::{Buf, IoPath, Slot, Tries};
use straightway_webserver::Server;

/// The service of a plain web server.
#[derive(Debug)]
pub(crate) struct Plain {
    host: String,
    path: String,
}

impl Service for Plain {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let Self { host, path } = self;
        out.extend_from_slice(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
        Ok(Head::Ready)
    }
}

/// A server and a network that reaches it.
pub(crate) struct Lab {
    pub(crate) network: Arc<Network>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) client: Client,
    _folder: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new(server: &Server, settings: NetworkSettings) -> Self {
        Self::trusting(server, server, settings)
    }

    /// A network that reaches `server` but trusts the certificate of `trusted`.
    pub(crate) fn trusting(server: &Server, trusted: &Server, settings: NetworkSettings) -> Self {
        let url = server.url("/");
        let trusted = url.starts_with("https").then_some(trusted);
        Self::at(&url, trusted, settings)
    }

    /// A network that reaches a URL.
    pub(crate) fn at(url: &str, trusted: Option<&Server>, settings: NetworkSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url: http::Uri = url.parse().unwrap();
        let roots = trusted.map_or(Roots::System, |trusted| {
            let path = folder.path().join("ca.pem");
            trusted.certificate().write(&path).unwrap();
            Roots::File(path)
        });
        let network = Network::new(NetworkSettings { roots, ..settings });
        let origin = network.origin(&Site::of(&url).unwrap()).unwrap();
        let client = Client::new(&network);
        Self {
            network,
            origin,
            client,
            _folder: folder,
        }
    }

    fn service(&self, path: &str) -> Arc<dyn Service> {
        Arc::new(Plain {
            host: self.origin.site().authority(),
            path: path.to_owned(),
        })
    }

    pub(crate) fn try_open(&self, path: &str) -> Result<Arc<Remote>> {
        self.open_front(path, 100).map(Arc::new)
    }

    /// Opens an object by a request for its first bytes.
    pub(crate) fn open_front(&self, path: &str, front_bytes: u32) -> Result<Remote> {
        let name = format!("{}{path}", self.origin.site());
        Remote::open(name, None, &self.origin, self.service(path), &self.client, front_bytes)
    }

    pub(crate) fn open(&self, path: &str) -> Arc<Remote> {
        self.try_open(path).unwrap()
    }

    pub(crate) fn known(&self, path: &str, bytes: u64, tag: &str) -> Arc<Remote> {
        self.with(path, bytes, tag, self.service(path))
    }

    /// An object that uses `service`.
    pub(crate) fn with(&self, path: &str, bytes: u64, tag: &str, service: Arc<dyn Service>) -> Arc<Remote> {
        let validator = Some(Validator::Tag(tag.to_owned()));
        let remote = Remote::known(path.to_owned(), bytes, validator, &self.origin, service, &self.client);
        Arc::new(remote)
    }

    pub(crate) fn engine(&self, depth: u32) -> HttpEngine {
        HttpEngine::new(depth, self.network.settings().connections_max).unwrap()
    }
}

/// Settings with short timeouts.
pub(crate) fn impatient() -> NetworkSettings {
    NetworkSettings {
        stall_max: Duration::from_millis(300),
        connect_max: Duration::from_millis(300),
        attempts_max: 3,
        ..NetworkSettings::default()
    }
}

/// Pseudo-random bytes.
pub(crate) fn content(bytes: usize, seed: u64) -> Vec<u8> {
    Seed(seed).bytes(bytes)
}

/// The result of a read, with its retries and hedges.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) bytes: Vec<u8>,
    pub(crate) moved: usize,
    pub(crate) tries: Tries,
}

/// Reads the first `bytes` of an object in I/Os of `chunk`, as many at a time as the engine accepts.
pub(crate) fn read_all(
    engine: &mut dyn Engine,
    remote: &Arc<Remote>,
    bytes: usize,
    chunk: usize,
) -> Result<Got, Error> {
    read(engine, remote, 0, bytes, chunk)
}

/// Reads a range in one I/O.
pub(crate) fn read_range(
    engine: &mut dyn Engine,
    remote: &Arc<Remote>,
    offset: u64,
    bytes: usize,
) -> Result<Got, Error> {
    read(engine, remote, offset, bytes, bytes)
}

pub(crate) fn io(remote: &Arc<Remote>, op: Op, offset: u64, bytes: usize, tag: u32) -> Io {
    let slot = Slot::ring(1, bytes.max(1)).unwrap().remove(0);
    Io {
        op,
        object: Arc::clone(remote) as Arc<dyn Handle>,
        by: IoPath::Direct,
        offset,
        buf: Buf::Slot(slot),
        start: 0,
        bytes,
        tag,
    }
}

fn read(engine: &mut dyn Engine, remote: &Arc<Remote>, offset: u64, bytes: usize, chunk: usize) -> Result<Got, Error> {
    let mut got = Got {
        bytes: vec![0; bytes],
        moved: 0,
        tries: Tries::default(),
    };
    let mut ios: VecDeque<_> = (0..bytes.div_ceil(chunk))
        .map(|number| {
            let start = number * chunk;
            let length = chunk.min(bytes - start);
            io(
                remote,
                Op::Read,
                offset + start as u64,
                length,
                u32::try_from(number).unwrap(),
            )
        })
        .collect();
    let (mut left, mut done, mut failed) = (ios.len(), Vec::new(), None);
    let deadline = Instant::now() + Duration::from_mins(1);
    while left > 0 {
        while let Some(io) = ios.pop_front() {
            if let Err(io) = engine.submit(io) {
                ios.push_front(io);
                break;
            }
        }
        engine.poll(&mut done, Duration::from_millis(100)).unwrap();
        for one in done.drain(..) {
            left -= 1;
            got.tries.retries += one.tries.retries;
            got.tries.hedges_sent += one.tries.hedges_sent;
            got.tries.hedges_won += one.tries.hedges_won;
            let Buf::Slot(slot) = &one.io.buf else {
                panic!("it went out with a slot")
            };
            match one.result {
                Ok(moved) => {
                    let start = one.io.tag as usize * chunk;
                    got.bytes[start..start + moved].copy_from_slice(&slot.as_slice()[..moved]);
                    got.moved += moved;
                }
                Err(error) => failed = failed.or(Some(remote.error("read", error))),
            }
        }
        if failed.is_some() {
            left -= ios.len();
            ios.clear();
        }
        assert!(Instant::now() < deadline, "{engine:?} lost an I/O");
    }
    failed.map_or(Ok(got), Err)
}

pub(crate) fn writes_are_refused(engine: &mut dyn Engine, remote: &Arc<Remote>) {
    engine.submit(io(remote, Op::Write, 0, 10, 7)).unwrap();
    let mut done = Vec::new();
    assert_eq!(engine.poll(&mut done, Duration::ZERO).unwrap(), 1);
    assert!(done[0].result.is_err());
}
