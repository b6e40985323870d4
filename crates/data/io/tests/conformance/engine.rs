//! The contract of engines for single I/Os, plain and wrapped.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::Result;
use straightway_io::{
    Gds,
    engine::{Capabilities, Engine, EngineReport, inline::Inline, mixed::Mixed, pool::Pool, ring::Ring},
    request::{Done, Io},
    store::{Handle, Like, Store},
    wrapper::{
        faulty::{Faults, Faulty},
        traced::{Trace, Traced},
    },
};
use straightway_memory::Memory;
use straightway_sys::{Buf, File, IoPath, Op, Region, Slot, Window};

/// An open object of any store.
type Object = Arc<dyn Handle>;

const BYTES: usize = 8192;
/// The length of the test object.
pub(crate) const OBJECT_BYTES: u64 = 64 * BYTES as u64;

const SECOND: Duration = Duration::from_secs(1);

fn io(op: Op, object: &Object, by: IoPath, offset: u64, slot: Slot, tag: u32) -> Io {
    let bytes = slot.bytes();
    Io {
        op,
        object: Arc::clone(object),
        by,
        offset,
        buf: Buf::Slot(slot),
        start: 0,
        bytes,
        tag,
    }
}

/// Runs all I/Os to completion with any queue depth. Returns them sorted by tag.
fn run_all(engine: &mut dyn Engine, ios: Vec<Io>) -> Vec<Done> {
    let count = ios.len();
    let mut ios: std::collections::VecDeque<_> = ios.into();
    let mut done = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while done.len() < count {
        while let Some(io) = ios.pop_front() {
            if let Err(io) = engine.submit(io) {
                ios.push_front(io);
                break;
            }
        }
        engine.poll(&mut done, SECOND).unwrap();
        assert!(Instant::now() < deadline, "{engine:?} lost an I/O");
    }
    done.sort_by_key(|d| d.io.tag);
    done
}

fn pattern(tag: u32) -> u8 {
    (tag * 7 + 1) as u8
}

/// Writes 64 blocks in reverse order, reads them back, and compares each.
fn what_is_written_is_read(engine: &mut dyn Engine, object: &Object, by: IoPath) {
    let blocks: Vec<_> = Slot::ring(64, BYTES).unwrap();
    let writes = (0..64).rev().zip(blocks).map(|(tag, mut slot)| {
        slot.as_mut_slice().fill(pattern(tag));
        io(Op::Write, object, by, u64::from(tag) * BYTES as u64, slot, tag)
    });
    let written = run_all(engine, writes.collect());
    let tags: HashSet<_> = written.iter().map(|d| d.io.tag).collect();
    assert_eq!(tags.len(), 64, "every I/O completes once");
    let reads = written.into_iter().map(|done| {
        assert_eq!(done.result.unwrap(), BYTES);
        let Buf::Slot(mut slot) = done.io.buf else {
            panic!("it was submitted with a slot")
        };
        slot.as_mut_slice().fill(0xEE);
        io(Op::Read, object, by, done.io.offset, slot, done.io.tag)
    });
    for done in run_all(engine, reads.collect()) {
        assert_eq!(done.result.unwrap(), BYTES);
        let Buf::Slot(slot) = &done.io.buf else {
            panic!("it was submitted with a slot")
        };
        assert!(
            slot.as_slice().iter().all(|b| *b == pattern(done.io.tag)),
            "tag {}",
            done.io.tag
        );
    }
}

/// Reads across the end of the file and past it.
fn the_end_is_a_short_read(engine: &mut dyn Engine, object: &Object) {
    let end = 64 * BYTES as u64;
    let mut slots = Slot::ring(2, BYTES).unwrap();
    let past = io(Op::Read, object, IoPath::PageCache, end + 4096, slots.pop().unwrap(), 0);
    // Some stores support only reads of whole blocks.
    let left = 100_u64.next_multiple_of(object.block_bytes());
    let across = io(Op::Read, object, IoPath::PageCache, end - left, slots.pop().unwrap(), 1);
    let done = run_all(engine, vec![past, across]);
    assert_eq!(*done[0].result.as_ref().unwrap(), 0);
    assert_eq!(*done[1].result.as_ref().unwrap() as u64, left);
}

/// A full queue returns the I/O unchanged.
fn a_full_queue_gives_the_io_back(engine: &mut dyn Engine, object: &Object) {
    let depth = engine.capabilities().depth;
    let mut refused = None;
    let mut taken = 0;
    for (tag, slot) in (0..).zip(Slot::ring(depth + 1, 4096).unwrap()) {
        match engine.submit(io(Op::Read, object, IoPath::PageCache, 0, slot, tag)) {
            Ok(()) => taken += 1,
            Err(io) => refused = Some(io),
        }
    }
    assert_eq!(taken, depth);
    let refused = refused.expect("one more than fits");
    assert_eq!((refused.tag as usize, refused.bytes), (depth, 4096));
    let mut done = Vec::new();
    while done.len() < depth {
        engine.poll(&mut done, SECOND).unwrap();
    }
    run_all(engine, vec![refused]);
}

/// Reads straight into a region.
fn a_window_is_filled_in_place(engine: &mut dyn Engine, object: &Object) {
    let mut region = Arc::new(Region::host(3 * BYTES as u64).unwrap());
    let window = Window::new(&region, BYTES as u64, BYTES);
    let io = Io {
        op: Op::Read,
        object: Arc::clone(object),
        by: IoPath::PageCache,
        offset: 5 * BYTES as u64,
        buf: Buf::Window(window),
        start: 0,
        bytes: BYTES,
        tag: 0,
    };
    drop(run_all(engine, vec![io]));
    let bytes = Arc::get_mut(&mut region).expect("the I/O has released it").as_slice();
    assert!(bytes[..BYTES].iter().chain(&bytes[2 * BYTES..]).all(|b| *b == 0));
    assert!(bytes[BYTES..2 * BYTES].iter().all(|b| *b == pattern(5)));
}

/// The contract of an engine for files.
pub(crate) fn conforms(engine: &mut dyn Engine) {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = File::create(&folder.path().join("file"), 64 * BYTES as u64).unwrap();
    let by = if file.alignment().is_some() {
        IoPath::Direct
    } else {
        IoPath::PageCache
    };
    conforms_with(engine, &(Arc::new(file) as _), by);
}

/// The contract of an engine for objects in memory.
pub(crate) fn conforms_in_memory(engine: &mut dyn Engine) {
    conforms_with(engine, &in_memory(), IoPath::PageCache);
}

/// The contract of an engine, on a writable object of [`OBJECT_BYTES`].
pub(crate) fn conforms_with(engine: &mut dyn Engine, object: &Object, by: IoPath) {
    what_is_written_is_read(engine, object, by);
    what_is_written_is_read(engine, object, IoPath::PageCache);
    the_end_is_a_short_read(engine, object);
    a_full_queue_gives_the_io_back(engine, object);
    a_window_is_filled_in_place(engine, object);
    engine.rest();
    what_is_written_is_read(engine, object, IoPath::PageCache);
    let mut none = Vec::new();
    assert_eq!(engine.poll(&mut none, Duration::ZERO).unwrap(), 0, "nothing is left");
}

/// An object of 64 blocks in memory.
fn in_memory() -> Object {
    let store = Memory::new("test");
    let draft = store
        .create("object".as_ref(), 64 * BYTES as u64, &Like::Replaced)
        .unwrap();
    draft.handle()
}

/// io_uring. Without it, prints the reason, so that the test counts as skipped, and returns `None`.
fn ring(depth: u32) -> Option<Ring> {
    ring_of(depth, "skipped")
}

fn ring_of(depth: u32, word: &str) -> Option<Ring> {
    Ring::new(depth).inspect_err(|error| eprintln!("{word}: {error}")).ok()
}

#[test]
fn the_ring_conforms_at_any_depth() {
    for depth in [1, 2, 32] {
        if let Some(mut ring) = ring(depth) {
            conforms(&mut ring);
        }
    }
}

#[test]
fn the_pool_conforms_at_any_depth() {
    for depth in [1, 2, 16] {
        conforms(&mut Pool::new(depth).unwrap());
    }
}

#[test]
fn the_cached_engine_conforms() {
    conforms(&mut Inline::files(1));
}

#[test]
fn the_drive_and_the_page_cache_behind_one_queue_conform() {
    let make = || Ok(Box::new(Pool::new(4)?) as Box<dyn Engine>);
    conforms(&mut Mixed::new(4, make));
}

#[test]
fn an_engine_that_reads_and_one_that_writes_conform_together() {
    let pool = || Box::new(Pool::new(4).unwrap());
    conforms(&mut Mixed::of_legs(pool(), pool()));
    conforms(&mut Mixed::of_legs(pool(), Box::new(Inline::files(1))));
}

#[test]
fn an_engine_beside_cufile_runs_all_ios_of_host_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file: Object = Arc::new(File::create(&folder.path().join("file"), OBJECT_BYTES).unwrap());
    let mut engine = Mixed::with_cufile(Box::new(Pool::new(4).unwrap()), Gds::default(), 4);
    what_is_written_is_read(&mut engine, &file, IoPath::PageCache);
    the_end_is_a_short_read(&mut engine, &file);
    a_window_is_filled_in_place(&mut engine, &file);
}

/// An engine that counts what reaches it.
#[derive(Debug)]
struct Counting(Arc<AtomicUsize>);

impl Engine for Counting {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        Err(io)
    }

    fn poll(&mut self, _: &mut Vec<Done>, _: Duration) -> Result<usize> {
        Ok(0)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "counting",
            depth: 1,
        }
    }

    fn report(&mut self) -> EngineReport {
        EngineReport {
            warning: Some("it counts".to_owned()),
            ..EngineReport::default()
        }
    }

    fn cancel(&mut self, _: &dyn Fn(u32) -> bool) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn rest(&mut self) {
        self.0.fetch_add(100, Ordering::Relaxed);
    }
}

#[test]
fn an_engine_around_another_passes_everything_on() {
    type Wrap = fn(Box<dyn Engine>) -> Box<dyn Engine>;
    let wraps: [(&str, Wrap); 5] = [
        ("faulty", |inner| Box::new(Faulty::new(inner, Faults::default()))),
        ("traced", |inner| Box::new(Traced::new(inner, Trace::default()))),
        ("reads", |inner| {
            Box::new(Mixed::of_legs(inner, Box::new(Inline::files(1))))
        }),
        ("writes", |inner| {
            Box::new(Mixed::of_legs(Box::new(Inline::files(1)), inner))
        }),
        ("cuFile", |inner| Box::new(Mixed::with_cufile(inner, Gds::default(), 1))),
    ];
    for (name, wrap) in wraps {
        let reached = Arc::new(AtomicUsize::new(0));
        let mut engine = wrap(Box::new(Counting(Arc::clone(&reached))));
        engine.cancel(&|_| true);
        assert_eq!(reached.load(Ordering::Relaxed), 1, "{name}: cancellation");
        engine.rest();
        assert_eq!(reached.load(Ordering::Relaxed), 101, "{name}: rest");
        assert_eq!(engine.report().warning.as_deref(), Some("it counts"), "{name}: report");
    }
}

#[test]
fn an_object_of_another_store_is_an_error_and_its_buffer_is_returned() {
    let slots = || Slot::ring(1, BYTES).unwrap().remove(0);
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Inline::files(1)), Box::new(Pool::new(1).unwrap())];
    engines.extend(ring_of(4, "left out").map(|ring| Box::new(ring) as Box<dyn Engine>));
    for engine in &mut engines {
        let read = io(Op::Read, &in_memory(), IoPath::PageCache, 0, slots(), 7);
        let done = run_all(&mut **engine, vec![read]).remove(0);
        let error = done.io.object.error("read", done.result.unwrap_err());
        assert!(error.to_string().contains("memory:test/object"), "{error}");
        assert!(matches!(done.io.buf, Buf::Slot(_)));
    }
}

#[test]
fn memory_conforms() {
    conforms_in_memory(&mut straightway_memory::engine(8));
}

#[test]
fn wrappers_that_change_nothing_conform() {
    conforms_in_memory(&mut Faulty::new(
        Box::new(straightway_memory::engine(4)),
        Faults::default(),
    ));
    conforms_in_memory(&mut Traced::new(
        Box::new(straightway_memory::engine(4)),
        Trace::default(),
    ));
}

#[test]
fn late_and_reordered_completions_still_conform() {
    let faults = Faults {
        seed: 5,
        late_per_mille: 400,
        ..Faults::default()
    };
    conforms_in_memory(&mut Faulty::new(Box::new(straightway_memory::engine(16)), faults));
    conforms(&mut Faulty::new(Box::new(Pool::new(4).unwrap()), faults));
}

#[test]
fn a_faulty_engine_fails_and_shortens_as_often_as_configured() {
    let object = in_memory();
    let faults = Faults {
        seed: 9,
        error_per_mille: 250,
        error_code: 5,
        short_per_mille: 250,
        late_per_mille: 0,
    };
    let mut engine = Faulty::new(Box::new(straightway_memory::engine(64)), faults);
    let writes = (0..64).zip(Slot::ring(64, BYTES).unwrap());
    let writes = writes.map(|(tag, slot)| io(Op::Write, &object, IoPath::PageCache, 0, slot, tag));
    let done = run_all(&mut engine, writes.collect());
    let failed = done.iter().filter(|d| d.result.is_err()).count();
    let short = done
        .iter()
        .filter(|d| d.result.as_ref().is_ok_and(|n| *n < BYTES))
        .count();
    assert!(
        (4..30).contains(&failed) && (4..30).contains(&short),
        "{failed} {short}"
    );
    assert!(
        done.iter().all(|d| d.io.bytes == BYTES),
        "the I/O is returned with its original length"
    );
}

#[test]
fn a_trace_records_every_io() {
    let object = in_memory();
    let trace = Trace::default();
    let mut engine = Traced::new(Box::new(straightway_memory::engine(8)), trace.clone());
    what_is_written_is_read(&mut engine, &object, IoPath::PageCache);
    let events = trace.take();
    assert_eq!(events.len(), 128);
    assert!(events.iter().all(|e| e.bytes == BYTES && e.moved == Ok(BYTES)));
    assert!(trace.take().is_empty());
}
