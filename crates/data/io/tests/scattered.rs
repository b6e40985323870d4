//! Reads into several regions of a GPU that act as one, with memory allocated while the read runs, over the stand-in.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;
#[path = "fixture/gpu.rs"]
#[expect(dead_code, reason = "for other tests")]
mod gpu;

use std::{sync::Arc, thread, time::Duration};

use files::{bytes_of, folder, write_file};
use gpu::{context, small, whole};
use straightway_core::{Choice, ErrorKind, Extent, Move, Route};
use straightway_io::{Ask, Executor, Progress, Region, Scattered, ScatteredPart};
use straightway_standin::Standin;
use straightway_sys::{
    RingSpace, Slot,
    cuda::{Context, CopyDirection, CudaStream, DeviceMemory, Span},
};

const BYTES: u64 = 300_001;

/// The offsets of the parts in the whole. Two have the same offset: the first of them is empty.
const STARTS: [u64; 7] = [0, 1, 70_000, 70_000, 70_512, 131_072, 299_999];

/// Memory as a library's allocator returns it.
fn allocated(context: &Context, bytes: u64) -> DeviceMemory {
    let segment = DeviceMemory::allocate(context, bytes as usize + 512).unwrap();
    Arc::new(segment).part(512, bytes as usize).unwrap()
}

/// The whole, without memory. Each part has some bytes before its own.
fn scattered(context: &Context) -> Scattered {
    let ends = STARTS.into_iter().skip(1).chain([BYTES]);
    let parts = STARTS.into_iter().zip(ends).map(|(from, end)| {
        let at = from % 256;
        let region = Arc::new(Region::deferred(context, at + (end - from).max(1)));
        ScatteredPart { from, at, region }
    });
    Scattered::new(parts.collect(), BYTES).unwrap()
}

/// Reads what the parts hold.
fn seen(whole: &Scattered) -> Vec<u8> {
    let ends = STARTS.into_iter().skip(1).chain([BYTES]);
    let mut all = Vec::new();
    for ((from, end), region) in STARTS.into_iter().zip(ends).zip(whole.regions()) {
        let mut bytes = vec![0; (end - from) as usize];
        let memory = region.device_memory().unwrap();
        memory.read((from % 256) as usize, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

#[test]
fn bytes_cross_the_borders_of_regions_that_are_allocated_late() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = folder();
            let file = write_file(&folder.path().join("f"), BYTES as usize);
            let executor = Executor::new(small()).unwrap();
            let context = context().unwrap();
            let mut choices = vec![Choice::Auto, Choice::Only(Route::Buffered)];
            if file.alignment().is_some() {
                choices.push(Choice::Only(Route::Staged));
            } else {
                eprintln!("left out: the staged route: no O_DIRECT here");
            }
            for choice in choices {
                let to = Arc::new(scattered(&context));
                let files = vec![Arc::clone(&file)];
                let job = executor.read_scattered(files, whole(&file), &to, choice);
                let job = job.unwrap();
                for number in 0..STARTS.len() {
                    // Time in which a read that does not wait for memory would finish.
                    thread::sleep(Duration::from_millis(3));
                    assert!(!job.is_done(), "the last memory is not allocated yet");
                    let region = &to.regions()[number];
                    region.provide(allocated(&context, region.bytes())).unwrap();
                    to.open(number + 1);
                }
                let receipt = job.wait().unwrap();
                assert_eq!(receipt.bytes, BYTES);
                assert!(seen(&to) == bytes_of(BYTES as usize), "by {choice:?}");
            }
            drop((executor, context));
            standin.assert_clean();
        });
    }
}

#[test]
fn a_read_whose_memory_is_never_allocated_can_be_cancelled() {
    Standin::run("seed=1", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), BYTES as usize);
        let executor = Executor::new(small()).unwrap();
        let context = context().unwrap();
        let to = Arc::new(scattered(&context));
        let progress = Arc::new(Progress::default());
        let ask = Ask::new(Choice::Auto, &progress);
        let job = executor.read_scattered(vec![Arc::clone(&file)], whole(&file), &to, ask);
        let job = job.unwrap();
        // Time in which the read usually starts. It is cancelled in any case, and a read that does not wait for memory
        // would finish.
        thread::sleep(Duration::from_millis(20));
        progress.cancel();
        assert_eq!(job.wait().unwrap_err().kind(), ErrorKind::Cancelled);
        drop((to, executor, context));
        standin.assert_clean();
    });
}

/// Work of a library that fills memory again and again.
fn busy(context: &Context, memory: &Arc<DeviceMemory>, stream: &CudaStream) -> Vec<Slot> {
    let mut slots = RingSpace::default().pinned_ring(context, 40, 4096).unwrap();
    for slot in &mut slots {
        slot.as_mut_slice().fill(0xEE);
    }
    let span = Span {
        slot_offset: 0,
        memory_offset: 0,
        bytes: 4096,
    };
    let running: Vec<_> = slots
        .into_iter()
        .map(|slot| stream.copy(CopyDirection::ToDevice, slot, memory, &[span]).unwrap())
        .collect();
    running.into_iter().map(|c| c.wait().unwrap()).collect()
}

/// Reads a file into memory that the library's stream still fills with other bytes. Returns the content when both have
/// finished; `is_fenced` tells whether the memory has its fence.
fn read_during_work(standin: &Standin, is_fenced: bool) -> Vec<u8> {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 4096);
    let executor = Executor::new(small()).unwrap();
    let context = context().unwrap();
    let region = Region::device(&context, 4096).unwrap();
    executor.prepare(&region).unwrap();
    let memory = Arc::new(DeviceMemory::allocate(&context, 4096).unwrap());
    let stream = CudaStream::new(&context).unwrap();
    let (pending, own) = (Arc::clone(&memory), context.clone());
    standin.hold();
    let work = {
        let stream = stream.clone();
        thread::spawn(move || busy(&own, &pending, &stream))
    };
    while standin.count("pending") < 80 {
        thread::sleep(Duration::from_millis(1));
    }
    let mut lent = memory.part(0, 4096).unwrap();
    if is_fenced {
        lent = lent.after(&Arc::new(stream.fence().unwrap()));
    }
    let part = ScatteredPart {
        from: 0,
        at: 0,
        region: Arc::new(Region::deferred(&context, 4096)),
    };
    part.region.provide(lent).unwrap();
    let to = Arc::new(Scattered::new(vec![part], 4096).unwrap());
    to.open(1);
    let job = executor.read_scattered(vec![file], move_all(), &to, Choice::Auto);
    let job = job.unwrap();
    // Time in which a read that does not wait for the held copies would finish.
    thread::sleep(Duration::from_millis(20));
    assert!(!job.is_done());
    standin.release();
    job.wait().unwrap();
    drop(work.join().unwrap());
    let mut bytes = vec![0; 4096];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn copies_wait_for_the_library_s_pending_work_on_the_memory() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=400"), |standin| {
            let seen = read_during_work(standin, true);
            assert!(seen == bytes_of(4096), "the library's writes came last");
            standin.assert_clean();
        });
    }
}

/// Shows that the test above can fail.
#[test]
fn without_a_fence_the_library_s_stream_overwrites_the_memory() {
    Standin::run("seed=1 delay_us_max=400", |standin| {
        assert!(read_during_work(standin, false) == [0xEE; 4096]);
        standin.assert_clean();
    });
}

fn move_all() -> Vec<Move> {
    vec![Extent::new(0, 4096).into()]
}

#[test]
fn bytes_for_a_gap_between_two_regions_are_an_error() {
    Standin::run("seed=4", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 4096);
        let executor = Executor::new(small()).unwrap();
        let context = context().unwrap();
        let part = |from: u64, bytes: u64| ScatteredPart {
            from,
            at: 0,
            region: Arc::new(Region::deferred(&context, bytes)),
        };
        let to = Scattered::new(vec![part(0, 1000), part(1024, 3072)], 4096).unwrap();
        for region in to.regions() {
            region.provide(allocated(&context, region.bytes())).unwrap();
        }
        to.open(2);
        let job = executor.read_scattered(vec![file], move_all(), &Arc::new(to), Choice::Auto);
        let error = job.unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("exceed its 1000 bytes"), "{error}");
        drop((executor, context));
        standin.assert_clean();
    });
}

#[test]
fn parts_that_do_not_form_a_whole_are_refused() {
    Standin::run("seed=3", |standin| {
        let context = context().unwrap();
        let part = |from: u64, bytes: u64| ScatteredPart {
            from,
            at: 0,
            region: Arc::new(Region::deferred(&context, bytes)),
        };
        assert!(Scattered::new(vec![part(0, 10), part(10, 5)], 15).is_ok());
        for parts in [
            vec![],
            vec![part(1, 14)],
            vec![part(0, 10), part(5, 5), part(3, 20)],
            vec![part(0, 10), part(16, 4)],
        ] {
            assert!(Scattered::new(parts, 15).is_err());
        }
        let host = ScatteredPart {
            from: 0,
            at: 0,
            region: Arc::new(Region::host(15).unwrap()),
        };
        assert!(Scattered::new(vec![host], 15).is_err());
        let region = Region::deferred(&context, 512);
        assert!(region.device_memory().is_none());
        assert!(region.provide(allocated(&context, 511)).is_err());
        region.provide(allocated(&context, 512)).unwrap();
        assert!(region.provide(allocated(&context, 512)).is_err());
        drop((region, context));
        standin.assert_clean();
    });
}
