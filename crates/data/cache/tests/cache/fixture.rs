//! A web server with objects of odd lengths, and loads of them through a cache.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use straightway_cache::{Cache, CachedStore};
use straightway_core::{Choice, Extent, Move, Reason, Receipt, Result, Route, random::Seed};
use straightway_https::Https;
use straightway_io::{
    Executor, ExecutorParts, Objects, Region, Settings, Ticket,
    store::{Named, Store},
};
use straightway_net::{Network, Site, suited};
use straightway_webserver::{Server, ServerStep, short};

pub(crate) const MIB: usize = 1 << 20;

/// A server whose objects can be replaced.
pub(crate) struct Web {
    pub(crate) server: Server,
    /// The bytes of bodies sent.
    pub(crate) sent: Arc<AtomicU64>,
    seed: Arc<AtomicU64>,
    lengths: Vec<usize>,
}

/// The version of an object, and its bytes.
type Made = (u64, Arc<Vec<u8>>);

/// The bytes of an object, derived from its number and version.
pub(crate) fn content(number: usize, seed: u64, bytes: usize) -> Vec<u8> {
    Seed(seed).part(number as u64).bytes(bytes)
}

impl Web {
    /// A server with objects of these lengths.
    pub(crate) fn start(lengths: Vec<usize>) -> Self {
        let (sent, seed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let (count, version, known) = (Arc::clone(&sent), Arc::clone(&seed), lengths.clone());
        // Generating a large object again for each of its ranges would take too long.
        let made = Mutex::new(vec![None::<Made>; lengths.len()]);
        let server = Server::start(move |request| {
            let number = request.target.trim_start_matches('/').parse::<usize>();
            let Some(bytes) = number.as_ref().ok().and_then(|n| known.get(*n)) else {
                return short("404 Not Found", "");
            };
            let (number, seed) = (number.unwrap(), version.load(Ordering::SeqCst));
            let object = {
                let mut made = made.lock().unwrap();
                match &made[number] {
                    Some((of, object)) if *of == seed => Arc::clone(object),
                    _ => {
                        let object = Arc::new(content(number, seed, *bytes));
                        made[number] = Some((seed, Arc::clone(&object)));
                        object
                    }
                }
            };
            let steps = request.response(&object, &tag(number, seed));
            if let [ServerStep::Bytes(bytes)] = steps.as_slice() {
                count.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            }
            steps
        });
        Self {
            server,
            sent,
            seed,
            lengths,
        }
    }

    /// Replaces all objects.
    pub(crate) fn replace(&self, seed: u64) {
        self.seed.store(seed, Ordering::SeqCst);
    }

    /// The expected bytes of parts of objects.
    pub(crate) fn expected(&self, parts: &[(usize, Range<usize>)]) -> Vec<u8> {
        let seed = self.seed.load(Ordering::SeqCst);
        expected(parts, seed, &self.lengths)
    }

    /// All of every object.
    pub(crate) fn all(&self) -> Vec<(usize, Range<usize>)> {
        self.lengths
            .iter()
            .copied()
            .enumerate()
            .map(|(n, len)| (n, 0..len))
            .collect()
    }

    /// Loads parts of objects, and compares every byte.
    pub(crate) fn check(&self, cache: &Arc<Cache>, parts: &[(usize, Range<usize>)]) -> Load {
        let url = self.server.url("/");
        let opened = Opened::new(&url, cache, parts, ExecutorParts::default());
        let (sent, requests) = (self.sent.load(Ordering::SeqCst), self.server.requests());
        let (seen, receipt) = opened.load().unwrap();
        assert!(seen == self.expected(parts), "bytes differ");
        Load {
            sent: self.sent.load(Ordering::SeqCst) - sent,
            requests: self.server.requests() - requests,
            receipt,
        }
    }
}

/// The expected bytes of parts of objects of these lengths.
pub(crate) fn expected(parts: &[(usize, Range<usize>)], seed: u64, lengths: &[usize]) -> Vec<u8> {
    let mut expected = Vec::new();
    for (number, range) in parts {
        expected.extend_from_slice(&content(*number, seed, lengths[*number])[range.clone()]);
    }
    expected
}

fn tag(number: usize, seed: u64) -> String {
    format!("\"{number}-{seed}\"")
}

/// The traffic of a load after its objects were opened.
pub(crate) struct Load {
    /// Bytes that the server sent, with heads.
    pub(crate) sent: u64,
    pub(crate) requests: usize,
    pub(crate) receipt: Receipt,
}

impl Load {
    /// The bytes from sockets, and the bytes from the cache. There are no others.
    pub(crate) fn ways(&self) -> (u64, u64) {
        let of = |route, reason| {
            let rows = self.receipt.routes.iter();
            let rows = rows.filter(|row| (row.route, row.reason) == (route, reason));
            rows.map(|row| row.bytes).sum::<u64>()
        };
        let ways = (of(Route::Socket, Reason::Tcp), of(Route::Buffered, Reason::LocalCache));
        assert_eq!(ways.0 + ways.1, self.receipt.bytes, "{:?}", self.receipt.routes);
        ways
    }
}

/// Open objects and the parts to load.
pub(crate) struct Opened {
    objects: Objects,
    moves: Vec<Move>,
    bytes: u64,
    with: ExecutorParts,
}

impl Opened {
    /// Opens objects through a cache.
    pub(crate) fn new(url: &str, cache: &Arc<Cache>, parts: &[(usize, Range<usize>)], with: ExecutorParts) -> Self {
        let network = Network::new(straightway_net::NetworkSettings {
            // Sent bytes are counted, so hedges are off.
            hedges: false,
            ..straightway_net::NetworkSettings::default()
        });
        let site = Site::of(&url.parse().unwrap()).unwrap();
        let inner = Arc::new(Https::new(&network, site, None).unwrap());
        let store = Arc::new(CachedStore::new(inner, cache, ""));
        let names = parts.iter().map(|(number, _)| Named::new(number.to_string()));
        let handles = store.open(&names.collect::<Vec<_>>()).unwrap();
        let (mut moves, mut at) = (Vec::new(), 0);
        for (object, (_, range)) in (0..).zip(parts) {
            let extent = Extent::between(range.start as u64, range.end as u64);
            moves.push(Move { object, extent, at });
            at += extent.bytes;
        }
        Self {
            objects: Objects::new(store, handles),
            moves,
            bytes: at,
            with,
        }
    }

    /// Begins to load the parts into memory that is not checked.
    pub(crate) fn start(self) -> Result<(Executor, Ticket)> {
        let executor = Executor::with_parts(suited(Settings::default()), self.with)?;
        let region = Arc::new(Region::host(self.bytes)?);
        let ticket = executor.read(self.objects, self.moves, &region, Choice::Auto)?;
        Ok((executor, ticket))
    }

    /// Loads the parts.
    pub(crate) fn load(self) -> Result<(Vec<u8>, Receipt)> {
        let executor = Executor::with_parts(suited(Settings::default()), self.with)?;
        let mut region = Arc::new(Region::host(self.bytes.max(1))?);
        let ticket = executor.read(self.objects, self.moves, &region, Choice::Auto)?;
        let receipt = ticket.wait()?;
        let bytes = usize::try_from(self.bytes).unwrap();
        let region = Arc::get_mut(&mut region).expect("the transfer is over");
        Ok((region.as_slice()[..bytes].to_vec(), receipt))
    }
}

/// A cache in a fresh folder.
pub(crate) fn cache(bytes_max: u64) -> (tempfile::TempDir, Arc<Cache>) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache"), bytes_max).unwrap();
    (folder, Arc::new(cache))
}

/// The files in the shards of a cache.
pub(crate) fn files(cache: &Path) -> Vec<PathBuf> {
    let shards = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    let shards = shards.filter(|path| path.is_dir());
    let inside = shards.flat_map(|shard| fs::read_dir(shard).unwrap());
    inside.map(|entry| entry.unwrap().path()).collect()
}
