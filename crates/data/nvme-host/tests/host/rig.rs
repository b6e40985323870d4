//! Shared by the tests: content, settings, and a manually driven engine.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Result, random::Seed};
use straightway_io::{
    Handle,
    engine::Engine,
    request::{Done, Io, Op},
    store::open_one,
};
use straightway_nvme::Digests;
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_sys::{Buf, IoPath, Slot};

use crate::target::{NQN, Target};

/// Bytes that differ everywhere.
pub(crate) fn content(bytes: usize) -> Vec<u8> {
    Seed::default().bytes(bytes)
}

/// Settings with short timeouts.
pub(crate) fn settings(digests: Digests) -> HostSettings {
    HostSettings {
        digests,
        connect_max: Duration::from_secs(2),
        command_max: Duration::from_secs(2),
        keep_alive: Duration::from_millis(1500),
        delay_first: Duration::from_millis(20),
        delay_max: Duration::from_millis(200),
        ..HostSettings::default()
    }
}

pub(crate) fn portal(target: &Target) -> Portal {
    Portal::new(&target.address.ip().to_string(), target.address.port())
}

pub(crate) fn store(target: &Target, settings: HostSettings) -> NvmeTcp {
    NvmeTcp::new(portal(target), settings)
}

/// Opens the first namespace of [`NQN`].
pub(crate) fn open(store: &NvmeTcp) -> Result<Arc<dyn Handle>> {
    open_as(store, NQN)
}

/// Opens the namespace of a subsystem.
pub(crate) fn open_as(store: &NvmeTcp, nqn: &str) -> Result<Arc<dyn Handle>> {
    open_one(store, OsStr::new(&format!("{nqn}/1")))
}

/// One I/O with its own slot, at an unaligned place in it.
pub(crate) fn io(op: Op, object: &Arc<dyn Handle>, offset: u64, bytes: usize, tag: u32) -> Io {
    let start = (tag as usize * 37) % 512;
    let slot = Slot::ring(1, (bytes + 512).next_multiple_of(4096)).unwrap().remove(0);
    Io {
        op,
        object: Arc::clone(object),
        by: IoPath::Direct,
        offset,
        buf: Buf::Slot(slot),
        start,
        bytes,
        tag,
    }
}

/// An engine; prints the reason if there is none.
pub(crate) fn engine(depth: u32) -> Option<NvmeEngine> {
    NvmeEngine::new(depth)
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
}

/// Runs all I/Os and returns them sorted by tag.
pub(crate) fn run(engine: &mut dyn Engine, ios: Vec<Io>) -> Vec<Done> {
    let count = ios.len();
    let mut ios: VecDeque<_> = ios.into();
    let mut done = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while done.len() < count {
        while let Some(io) = ios.pop_front() {
            if let Err(io) = engine.submit(io) {
                ios.push_front(io);
                break;
            }
        }
        engine.poll(&mut done, Duration::from_millis(200)).unwrap();
        assert!(Instant::now() < deadline, "{engine:?} lost an I/O");
    }
    done.sort_by_key(|done| done.io.tag);
    done
}

/// The bytes of an I/O.
pub(crate) fn bytes_of(io: &Io) -> Vec<u8> {
    let mut bytes = vec![0; io.bytes];
    io.spill(&mut bytes);
    bytes
}

/// The error text of the only I/O.
pub(crate) fn error_of(done: Vec<Done>) -> String {
    let done = done.into_iter().next().unwrap();
    let object = Arc::clone(&done.io.object);
    object.error("read", done.result.unwrap_err()).to_string()
}
