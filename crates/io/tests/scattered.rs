//! Reads into several regions of a GPU that stand for one, and whose memory comes while the read runs, over the stand-in.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

#[path = "fixture/files.rs"]
mod files;
#[path = "fixture/gpu.rs"]
#[expect(dead_code, reason = "for other tests")]
mod gpu;

use std::{sync::Arc, thread, time::Duration};

use files::{bytes_of, folder, write_file};
use gpu::{context, small, whole};
use straightway_core::{Choice, Extent, Kind, Move, Route};
use straightway_io::{Ask, Executor, Part, Progress, Region, Scattered};
use straightway_standin::Standin;
use straightway_sys::{
    Slot,
    cuda::{Context, DeviceMemory, Direction, Fence, Span, Stream},
};

const BYTES: u64 = 300_001;

/// Where the parts begin in the whole. Two begin at one place: the first of them is empty.
const STARTS: [u64; 7] = [0, 1, 70_000, 70_000, 70_512, 131_072, 299_999];

/// Memory of the library's, as an allocator hands it out.
fn allocated(context: &Context, bytes: u64) -> DeviceMemory {
    let segment = DeviceMemory::allocate(context, bytes as usize + 512).unwrap();
    Arc::new(segment).part(512, bytes as usize).unwrap()
}

/// The whole, without memory. Each part has some bytes before its own.
fn scattered(context: &Context) -> Scattered {
    let ends = STARTS.into_iter().skip(1).chain([BYTES]);
    let parts = STARTS.into_iter().zip(ends).map(|(from, end)| {
        let at = from % 256;
        let region = Arc::new(Region::late(context, at + (end - from).max(1)));
        Part { from, at, region }
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
fn bytes_land_across_the_borders_of_regions_whose_memory_comes_late() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            let folder = folder();
            let file = write_file(&folder.path().join("f"), BYTES as usize);
            let executor = Executor::new(small()).unwrap();
            let context = context().unwrap();
            let mut choices = vec![Choice::Auto, Choice::Only(Route::Buffered)];
            if file.alignment().is_some() {
                choices.push(Choice::Only(Route::Staged));
            }
            for choice in choices {
                let to = Arc::new(scattered(&context));
                let files = vec![Arc::clone(&file)];
                let job = executor.read_scattered(files, whole(&file), &to, choice);
                let mut job = job.unwrap();
                for number in 0..STARTS.len() {
                    thread::sleep(Duration::from_millis(3));
                    assert!(!job.is_done(), "the last memory is not there yet");
                    let region = &to.regions()[number];
                    region.give(allocated(&context, region.bytes())).unwrap();
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
fn a_read_whose_memory_never_comes_can_be_stopped() {
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
        thread::sleep(Duration::from_millis(20));
        progress.cancel();
        assert_eq!(job.wait().unwrap_err().kind(), Kind::Cancelled);
        drop((to, executor, context));
        standin.assert_clean();
    });
}

/// Work of the library's: it fills memory again and again.
fn busy(context: &Context, memory: &Arc<DeviceMemory>, stream: &Stream) -> Vec<Slot> {
    let mut slots = Slot::pinned_ring(context, 40, 4096).unwrap();
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
        .map(|slot| {
            stream
                .copy(Direction::ToDevice, slot, memory, &[span])
                .unwrap()
        })
        .collect();
    running.into_iter().map(|c| c.wait().unwrap()).collect()
}

/// Reads a file into memory that the library's stream still fills with something else, and answers what is there when
/// both are through; `is_fenced` is whether the memory has its mark.
fn read_beside_work(standin: &Standin, is_fenced: bool) -> Vec<u8> {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 4096);
    let executor = Executor::new(small()).unwrap();
    let context = context().unwrap();
    let region = Region::device(&context, 4096).unwrap();
    executor.prepare(&region).unwrap();
    let memory = Arc::new(DeviceMemory::allocate(&context, 4096).unwrap());
    let stream = Stream::new(&context).unwrap();
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
        lent = lent.after(&Arc::new(Fence::behind(&stream).unwrap()));
    }
    let part = Part {
        from: 0,
        at: 0,
        region: Arc::new(Region::late(&context, 4096)),
    };
    part.region.give(lent).unwrap();
    let to = Arc::new(Scattered::new(vec![part], 4096).unwrap());
    to.open(1);
    let job = executor.read_scattered(vec![file], move_all(), &to, Choice::Auto);
    let mut job = job.unwrap();
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
fn copies_wait_for_what_the_library_s_stream_still_does_with_the_memory() {
    for seed in 0..4 {
        Standin::run(&format!("seed={seed} delay_us_max=400"), |standin| {
            let seen = read_beside_work(standin, true);
            assert!(seen == bytes_of(4096), "the library's work came last");
            standin.assert_clean();
        });
    }
}

/// That the test above sees what it is about.
#[test]
fn without_its_mark_memory_would_hold_what_the_library_s_stream_wrote_last() {
    Standin::run("seed=1 delay_us_max=400", |standin| {
        assert!(read_beside_work(standin, false) == [0xEE; 4096]);
        standin.assert_clean();
    });
}

fn move_all() -> Vec<Move> {
    vec![Move {
        object: 0,
        extent: Extent::new(0, 4096),
        at: 0,
    }]
}

#[test]
fn bytes_for_a_gap_between_two_regions_are_an_error() {
    Standin::run("seed=4", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 4096);
        let executor = Executor::new(small()).unwrap();
        let context = context().unwrap();
        let part = |from: u64, bytes: u64| Part {
            from,
            at: 0,
            region: Arc::new(Region::late(&context, bytes)),
        };
        let to = Scattered::new(vec![part(0, 1000), part(1024, 3072)], 4096).unwrap();
        for region in to.regions() {
            region.give(allocated(&context, region.bytes())).unwrap();
        }
        to.open(2);
        let job = executor.read_scattered(vec![file], move_all(), &Arc::new(to), Choice::Auto);
        let error = job.unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("beyond"), "{error}");
        drop((executor, context));
        standin.assert_clean();
    });
}

#[test]
fn parts_that_do_not_make_a_whole_are_refused() {
    Standin::run("seed=3", |standin| {
        let context = context().unwrap();
        let part = |from: u64, bytes: u64| Part {
            from,
            at: 0,
            region: Arc::new(Region::late(&context, bytes)),
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
        let host = Part {
            from: 0,
            at: 0,
            region: Arc::new(Region::host(15).unwrap()),
        };
        assert!(Scattered::new(vec![host], 15).is_err());
        let region = Region::late(&context, 512);
        assert!(region.device_memory().is_none());
        assert!(region.give(allocated(&context, 511)).is_err());
        region.give(allocated(&context, 512)).unwrap();
        assert!(region.give(allocated(&context, 512)).is_err());
        drop((region, context));
        standin.assert_clean();
    });
}
