//! The host process: it runs until it is killed or an error occurs.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::Write as _,
    ops::Range,
    path::Path,
    process::exit,
    sync::Arc,
    time::Duration,
};

use straightway_core::random::{Rng, Seed};
use straightway_io::{
    Handle,
    engine::Engine as _,
    request::{Io, Op},
    store::{StoreExt, open_one},
};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_sys::{Buf, IoPath, Slot};

use crate::{
    NQN,
    model::{BLOCK, BLOCKS, BLOCKS_MAX, block},
};

const DEPTH: u32 = 16;

struct Host {
    engine: NvmeEngine,
    object: Arc<dyn Handle>,
    log: File,
}

/// Writes, reads back and flushes, starting at a generation.
pub(crate) fn run(port: u16, first: u64, folder: &Path) -> ! {
    let log = OpenOptions::new().append(true).open(folder.join("log")).unwrap();
    let settings = HostSettings {
        keep_alive: Duration::from_secs(1),
        delay_first: Duration::from_millis(20),
        delay_max: Duration::from_millis(200),
        attempts_max: 60,
        retries_max: 20,
        ..HostSettings::default()
    };
    let store = NvmeTcp::new(Portal::new("127.0.0.1", port), settings);
    let object = open_one(&store, OsStr::new(&format!("{NQN}/1")));
    let mut log = log;
    let object = object.unwrap_or_else(|error| end(&mut log, &format!("cannot open: {error}")));
    let mut host = Host {
        engine: NvmeEngine::new(DEPTH).unwrap(),
        object,
        log,
    };
    let mut rng = Seed(first).rng();
    for generation in first.. {
        let extents = extents(&mut rng);
        let mut text = String::new();
        for extent in &extents {
            let (from, to) = (extent.start, extent.end);
            writeln!(text, "w {generation} {from} {to}").unwrap();
        }
        host.log.write_all(text.as_bytes()).unwrap();
        host.transfer(Op::Write, generation, &extents);
        host.transfer(Op::Read, generation, &extents);
        if rng.below(3) == 0 {
            if let Err(error) = store.sync(&[Arc::clone(&host.object)]) {
                end(&mut host.log, &format!("cannot flush: {error}"));
            }
            let line = format!("f {generation}\n");
            host.log.write_all(line.as_bytes()).unwrap();
        }
    }
    unreachable!("generations do not end")
}

/// Logs the cause and exits.
fn end(log: &mut File, why: &str) -> ! {
    log.write_all(format!("{}\n", why.replace('\n', " ")).as_bytes())
        .unwrap();
    exit(3)
}

/// Random extents that do not overlap.
fn extents(rng: &mut Rng) -> Vec<Range<usize>> {
    let mut extents: Vec<Range<usize>> = Vec::new();
    for _ in 0..=rng.below(u64::from(DEPTH) - 1) {
        let count = 1 + rng.below(BLOCKS_MAX) as usize;
        let from = rng.index(BLOCKS - count);
        let is_free = |other: &Range<usize>| from >= other.end || other.start >= from + count;
        if extents.iter().all(is_free) {
            extents.push(from..from + count);
        }
    }
    extents
}

impl Host {
    /// Writes or reads all extents at once. Data that was read must match.
    fn transfer(&mut self, op: Op, generation: u64, extents: &[Range<usize>]) {
        for (extent, tag) in extents.iter().zip(0..) {
            let bytes = extent.len() * BLOCK;
            let slot = Slot::ring(1, bytes).unwrap().remove(0);
            let mut io = Io {
                op,
                object: Arc::clone(&self.object),
                by: IoPath::Direct,
                offset: (extent.start * BLOCK) as u64,
                buf: Buf::Slot(slot),
                start: 0,
                bytes,
                tag,
            };
            if op == Op::Write {
                io.fill(&content(extent, generation));
            }
            self.engine.submit(io).unwrap();
        }
        let mut done = Vec::new();
        while done.len() < extents.len() {
            let polled = self.engine.poll(&mut done, Duration::from_secs(1));
            polled.unwrap();
        }
        for one in done {
            let extent = &extents[one.io.tag as usize];
            let why = match &one.result {
                Ok(moved) if *moved == one.io.bytes => None,
                Ok(moved) => Some(format!("wrong: {moved} bytes were transferred")),
                Err(error) => Some(format!("cannot transfer: {error}")),
            };
            if let Some(why) = why {
                end(&mut self.log, &why);
            }
            let mut bytes = vec![0; one.io.bytes];
            one.io.spill(&mut bytes);
            if bytes != content(extent, generation) {
                let why = format!("wrong: blocks {extent:?} are not of generation {generation}");
                end(&mut self.log, &why);
            }
        }
    }
}

/// The content of an extent.
fn content(extent: &Range<usize>, generation: u64) -> Vec<u8> {
    let blocks = extent.clone().map(|number| block(number, generation));
    blocks.flatten().collect()
}
