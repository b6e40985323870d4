//! Four paths under load, of which one after another is reset or stops responding.
//!
//! Reads and writes continue meanwhile and are verified. The stall is the longest latency of an I/O.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use straightway_io::{Handle, StoreExt as _, engine::Engine as _, request::Op, store::open_one};
use straightway_lab::{PduRelay, RelayMode};
use straightway_nvme::{Digests, Nqn};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_nvme_target::{Config, NamespaceSource, Target};

use crate::rig::{bytes_of, content, engine, io, run, settings};

const NQN: &str = "nqn.2026-11.org.example:cuts";
const PIECE: usize = 64 << 10;
/// The number of pieces that are only read, and of pieces that are written repeatedly.
const READ: usize = 64;
const WRITTEN: usize = 512;
const DEPTH: u32 = 32;
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// The environment variable for the number of cuts; the default is two.
const COUNT: &str = "STRAIGHTWAY_NVME_CUTS";

/// The content of a piece in a generation. Pieces that are only read have generation 0.
fn piece(number: usize, generation: u64) -> Vec<u8> {
    static BASE: LazyLock<Vec<u8>> = LazyLock::new(|| content(PIECE));
    let mut bytes = BASE.clone();
    let mark = (number as u64) << 32 | generation;
    for chunk in bytes.chunks_mut(4096) {
        chunk[..8].copy_from_slice(&mark.to_le_bytes());
    }
    bytes
}

/// A continuous load of I/Os and its results.
struct Load {
    engine: NvmeEngine,
    object: Arc<dyn Handle>,
    /// The last completed generation of each written piece.
    written: Vec<u64>,
    /// Outstanding I/Os by tag: the piece, its generation, and the start time.
    open: BTreeMap<u32, (usize, u64, Instant)>,
    /// Pieces whose writes were repeated, and the time when they may get other data.
    resting: BTreeMap<usize, Instant>,
    next: usize,
    stall: Duration,
    count: u64,
}

impl Load {
    fn submit(&mut self, tag: u32) {
        self.next += 1;
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        let is_read = !self.next.is_multiple_of(4);
        let number = if is_read {
            self.next % READ
        } else {
            let mut pieces = (0..).map(|step| READ + (self.next / 4 + step) % WRITTEN);
            let is_free =
                |number: &usize| !self.resting.contains_key(number) && self.open.values().all(|o| o.0 != *number);
            pieces.find(is_free).unwrap()
        };
        let (op, generation) = if is_read {
            (Op::Read, 0)
        } else {
            (Op::Write, self.written[number - READ] + 1)
        };
        let mut one = io(op, &self.object, (number * PIECE) as u64, PIECE, tag);
        if !is_read {
            one.fill(&piece(number, generation));
        }
        self.open.insert(tag, (number, generation, now));
        self.engine.submit(one).unwrap();
    }

    /// Keeps all I/Os running for a while.
    fn go_on(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut done = Vec::new();
        while Instant::now() < end {
            for tag in 0..DEPTH {
                if !self.open.contains_key(&tag) {
                    self.submit(tag);
                }
            }
            self.take(&mut done);
        }
    }

    fn take(&mut self, done: &mut Vec<straightway_io::request::Done>) {
        self.engine.poll(done, Duration::from_millis(20)).unwrap();
        for one in done.drain(..) {
            let (number, generation, since) = self.open.remove(&one.io.tag).unwrap();
            self.stall = self.stall.max(since.elapsed());
            self.count += 1;
            assert_eq!(one.result.unwrap(), PIECE);
            if one.io.op == Op::Read {
                assert!(bytes_of(&one.io) == piece(number, 0), "piece {number} is wrong");
            } else {
                self.written[number - READ] = generation;
                if one.tries.retries > 0 {
                    let until = Instant::now() + KEEP_ALIVE * 2 + Duration::from_secs(2);
                    self.resting.insert(number, until);
                }
            }
        }
    }

    /// Finishes all I/Os and verifies everything that was written.
    fn finish(mut self, store: &NvmeTcp) {
        let mut done = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.open.is_empty() {
            self.take(&mut done);
            assert!(Instant::now() < deadline, "{:?}", self.engine);
        }
        store.sync(&[Arc::clone(&self.object)]).unwrap();
        let reads = (0..WRITTEN).zip(0..).map(|(number, tag)| {
            let at = ((READ + number) * PIECE) as u64;
            io(Op::Read, &self.object, at, PIECE, tag)
        });
        let reads = run(&mut self.engine, reads.collect());
        for (number, (one, generation)) in reads.iter().zip(&self.written).enumerate() {
            assert_eq!(*one.result.as_ref().unwrap(), PIECE);
            let is_right = bytes_of(&one.io) == piece(READ + number, *generation);
            assert!(is_right, "piece {number} is not of generation {generation}");
        }
    }
}

#[test]
fn one_of_four_paths_is_cut_under_load_and_nothing_is_lost() {
    let Some(engine) = engine(DEPTH) else { return };
    let cuts = std::env::var(COUNT).map_or(2, |count| count.parse().unwrap());
    let name = "memory".to_owned();
    let bytes = ((READ + WRITTEN) * PIECE) as u64;
    let address = "127.0.0.1:0".parse().unwrap();
    let sources = vec![NamespaceSource::Memory { name, bytes }];
    let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
    config.is_writable = true;
    let target = Target::start(&config).unwrap();
    let relays: Vec<_> = (0..4).map(|_| PduRelay::start(target.addresses()[0])).collect();
    let portal = |relay: &PduRelay| Portal::new("127.0.0.1", relay.address().port());
    let settings = HostSettings {
        keep_alive: KEEP_ALIVE,
        // Only the keep-alive may detect a path that stops responding.
        command_max: Duration::from_mins(1),
        attempts_max: 1000,
        paths: relays[1..].iter().map(portal).collect(),
        ..settings(Digests::default())
    };
    let store = NvmeTcp::new(portal(&relays[0]), settings);
    let object = open_one(&store, OsStr::new(&format!("{NQN}/1"))).unwrap();
    let mut load = Load {
        engine,
        object,
        written: vec![0; WRITTEN],
        open: BTreeMap::new(),
        resting: BTreeMap::new(),
        next: 0,
        stall: Duration::ZERO,
        count: 0,
    };
    let firsts = (0..READ + WRITTEN).zip(0..).map(|(number, tag)| {
        let mut one = io(Op::Write, &load.object, (number * PIECE) as u64, PIECE, tag);
        one.fill(&piece(number, 0));
        one
    });
    let firsts: Vec<_> = firsts.collect();
    run(&mut load.engine, firsts);
    // Time to connect all paths.
    load.go_on(Duration::from_millis(500));
    for cut in 0..cuts {
        let relay = &relays[cut / 2 % 4];
        let (mode, bound) = if cut % 2 == 0 {
            (RelayMode::Reset, Duration::from_secs(1))
        } else {
            (RelayMode::Blackhole, KEEP_ALIVE + Duration::from_secs(1))
        };
        // Other load may stall the machine for most of a second. The path is then cut again.
        let is_short = (0..5).any(|_| {
            load.stall = Duration::ZERO;
            let before = load.count;
            relay.set_mode(mode);
            load.go_on(bound + Duration::from_millis(300));
            let open = load.open.values().map(|(_, _, since)| since.elapsed());
            let stall = open.fold(load.stall, Duration::max);
            let count = load.count - before;
            eprintln!("cut {cut}: {mode:?}, stall {} ms, {count} I/Os", stall.as_millis());
            relay.set_mode(RelayMode::Pass);
            load.go_on(Duration::from_millis(500));
            stall <= bound
        });
        assert!(is_short, "{mode:?}: an I/O takes longer than {bound:?}");
    }
    load.finish(&store);
}
