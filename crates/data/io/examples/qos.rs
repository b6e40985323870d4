//! Measures shares and classes on a drive: short reads of class *now* during a flush, and jobs by weight, limit and
//! reservation. Prints JSON. `bench/qos.py` runs it together with fio.
//!
//! `qos FOLDER FLUSH_BYTES ROUND` runs one round. The round's number decides the order of the flushes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark that ends at the first error"
)]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::{Choice, Class, Extent, Move, Rate, Route, Share, random::Seed};
use straightway_io::{Ask, Executor, File, FileDraft, Region, Settings};

const BLOCK_BYTES: u64 = 64 << 10;
const READ_BYTES: u64 = 1 << 30;
const DIRECT: Choice = Choice::Only(Route::Direct);

fn whole(bytes: u64) -> Vec<Move> {
    vec![Extent::new(0, bytes).into()]
}

/// Flushes `region` to a new file and returns the bytes per second. The file is removed when the draft is dropped,
/// which the caller does outside of measurements: on a drive that discards freed blocks a removal delays reads by 10 ms
/// and more.
fn flush(executor: &Executor, folder: &Path, region: &Arc<Region>) -> (f64, FileDraft) {
    let draft = FileDraft::new(&folder.join("flush"), region.bytes()).unwrap();
    let files = vec![Arc::clone(draft.file())];
    let moves = whole(region.bytes());
    let ask = Ask {
        syncs: false,
        ..DIRECT.into()
    };
    let ticket = executor.write(region, files, moves, ask).unwrap();
    (ticket.wait().unwrap().rate_bytes_per_s, draft)
}

/// Removes the file of a flush and waits until the drive is idle.
fn settle_drive(draft: FileDraft) {
    drop(draft);
    drop(std::process::Command::new("sync").status());
    std::thread::sleep(Duration::from_secs(3));
}

/// Reads single blocks at random offsets until `stop`. Returns the sorted latencies in seconds.
fn short_reads(executor: &Executor, file: &Arc<File>, stop: &AtomicBool) -> Vec<f64> {
    let region = Arc::new(Region::host(BLOCK_BYTES).unwrap());
    let mut rng = Seed::default().rng();
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let offset = rng.below(READ_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        let one = vec![Move::from(Extent::new(offset, BLOCK_BYTES))];
        let start = Instant::now();
        let files = vec![Arc::clone(file)];
        let job = executor.read(files, one, &region, DIRECT).unwrap();
        job.wait().unwrap();
        latencies.push(start.elapsed().as_secs_f64());
    }
    latencies.sort_unstable_by(f64::total_cmp);
    latencies
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// The bytes per second of each share in the same `seconds`. All read the same file repeatedly.
fn race(executor: &Executor, file: &Arc<File>, shares: &[Share], seconds: f64) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let runs: Vec<_> = shares
            .iter()
            .map(|share| {
                let own = executor.sharing(*share, Class::Soon).unwrap();
                let stop = &stop;
                scope.spawn(move || {
                    let region = Arc::new(Region::host(READ_BYTES).unwrap());
                    let progress = Arc::default();
                    let mut ready = false;
                    let mut from = 0;
                    let mut last = 0;
                    let mut since = Instant::now();
                    while !stop.load(Ordering::Relaxed) {
                        let files = vec![Arc::clone(file)];
                        let moves = whole(READ_BYTES);
                        let ask = Ask::new(DIRECT, &progress);
                        let ticket = own.read(files, moves, &region, ask).unwrap();
                        while !ticket.is_done() && !stop.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(1));
                            last = progress.moved_bytes();
                            if !ready {
                                ready = true;
                                from = last;
                                since = Instant::now();
                            }
                        }
                        if stop.load(Ordering::Relaxed) {
                            // The rest is not measured.
                            ticket.cancel();
                            break;
                        }
                        ticket.wait().unwrap();
                    }
                    (last - from) as f64 / since.elapsed().as_secs_f64()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

fn main() {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().unwrap());
    let flush_bytes: u64 = args.next().unwrap().parse().unwrap();
    let round: u32 = args.next().unwrap().parse().unwrap();

    let executor = Executor::new(Settings {
        rate_measured: Some(Rate(1e12)),
        ..Settings::default()
    })
    .unwrap();
    let background = executor
        .sharing(Share::of(Class::Background), Class::Background)
        .unwrap();
    let now = executor.sharing(Share::of(Class::Now), Class::Now).unwrap();

    let mut snapshot = Region::host(flush_bytes).unwrap();
    // The memory of a snapshot has been written to.
    snapshot.as_mut_slice().fill(7);
    let snapshot = Arc::new(snapshot);
    let source = folder.join("source");
    if std::fs::metadata(&source).map_or(0, |meta| meta.len()) != READ_BYTES {
        let draft = FileDraft::new(&source, READ_BYTES).unwrap();
        let region = Arc::new(Region::host(READ_BYTES).unwrap());
        let files = vec![Arc::clone(draft.file())];
        let job = executor.write(&region, files, whole(READ_BYTES), DIRECT);
        job.unwrap().wait().unwrap();
        draft.commit().unwrap();
    }
    let file = Arc::new(File::open(&source).unwrap());

    reads_during_flush(round, &background, &now, &folder, &snapshot, &file);
    shares(round, &executor, &file);
}

/// Prints the effect of reads of class *now* and a flush on each other.
fn reads_during_flush(
    round: u32,
    background: &Executor,
    now: &Executor,
    folder: &Path,
    snapshot: &Arc<Region>,
    file: &Arc<File>,
) {
    let alone = || {
        let (rate, draft) = flush(background, folder, snapshot);
        settle_drive(draft);
        rate
    };
    // The first flush of a process differs from later ones: odd rounds begin with the reads.
    let first = round.is_multiple_of(2).then(alone);
    let stop = AtomicBool::new(false);
    let ((beside, draft), latencies) = std::thread::scope(|scope| {
        let reads = scope.spawn(|| short_reads(now, file, &stop));
        let written = flush(background, folder, snapshot);
        stop.store(true, Ordering::Relaxed);
        (written, reads.join().unwrap())
    });
    settle_drive(draft);
    // A last read of class *now* limits background jobs for a short time afterwards. Any effect beyond that is part of
    // this flush.
    let region = Arc::new(Region::host(BLOCK_BYTES).unwrap());
    let files = vec![Arc::clone(file)];
    let ticket = now.read(files, whole(BLOCK_BYTES), &region, DIRECT);
    ticket.unwrap().wait().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let (after, draft) = flush(background, folder, snapshot);
    settle_drive(draft);
    let alone = first.unwrap_or_else(alone);
    println!(
        "{{\"round\": {round}, \"flush_alone\": {alone}, \"flush_beside\": {beside}, \"flush_after\": {after}, \
         \"reads\": {}, \"read_p50_s\": {}, \"read_p99_s\": {}}}",
        latencies.len(),
        quantile(&latencies, 0.5),
        quantile(&latencies, 0.99)
    );
}

/// Prints the rates of jobs by weight, limit and reservation.
fn shares(round: u32, executor: &Executor, file: &Arc<File>) {
    let seconds = 4.0;
    let share = |weight| Share {
        weight,
        ..Share::default()
    };
    let rate = race(executor, file, &[share(1.0)], seconds)[0];
    let weights = race(executor, file, &[share(1.0), share(3.0)], seconds);
    let limit = Share {
        limit: Some(Rate(rate * 0.3)),
        ..share(1.0)
    };
    let limited = race(executor, file, &[limit, share(1.0)], seconds);
    let reservation = Share {
        reservation: Some(Rate(rate * 0.5)),
        ..share(0.01)
    };
    let reserved = race(executor, file, &[reservation, share(1.0)], seconds);
    println!(
        "{{\"round\": {round}, \"rate\": {rate}, \"weights_1_3\": {weights:?}, \
         \"limit_0.3\": {limited:?}, \"reservation_0.5\": {reserved:?}}}"
    );
}
