//! Lanes that fail, hang or panic, and the jobs that follow.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc::channel,
    },
    time::{Duration, Instant},
};

use straightway_core::{Choice, Class, Direction, Extent, Move, Place, Route, Share};
use straightway_sys::{File, Region};

use super::*;
use crate::{
    board::{Posted, Wake},
    engine::{Capabilities, Engine, pool::Pool},
    job::Job,
    lane::{Parts, Ring, Settle},
    parts::{ExecutorParts, Outfit},
    request::{Done, Io},
    settings::Settings,
    stage::HostStage,
    tallies::Tallies,
    tally::Tally,
    tenant::{Reservations, Tenant, Traffic, now_s},
    track::Track,
};

const CHUNK_BYTES: u64 = 4096;
const CHUNKS: u64 = 8;

/// The fault of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// The first I/O fails, and the others stay in flight until the gate opens.
    Hangs,
    /// The first poll panics.
    Panics,
    /// Every poll fails, and no I/O completes.
    Breaks,
    /// All I/Os stay in flight until the gate opens.
    Silent,
}

/// An engine that holds completions back behind a gate.
#[derive(Debug)]
struct Gated {
    pool: Pool,
    trouble: Trouble,
    open: Arc<AtomicBool>,
    behind: Vec<Done>,
}

impl Engine for Gated {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        self.pool.submit(io)
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let before = done.len();
        self.pool.poll(&mut self.behind, timeout)?;
        assert!(self.trouble != Trouble::Panics, "an engine that panics, for a test");
        if self.trouble == Trouble::Breaks {
            let message = "an engine that breaks, for a test";
            return Err(Error::new(ErrorKind::Transient, "use", "an engine", message));
        }
        if self.trouble == Trouble::None || self.open.load(Ordering::Relaxed) {
            done.append(&mut self.behind);
        } else if self.trouble == Trouble::Silent {
            // The gate is closed.
        } else if let Some(at) = self.behind.iter().position(|d| d.io.tag == 0) {
            let mut failed = self.behind.remove(at);
            failed.result = Err(std::io::Error::from_raw_os_error(5));
            done.push(failed);
        }
        Ok(done.len() - before)
    }

    fn capabilities(&self) -> Capabilities {
        self.pool.capabilities()
    }
}

fn settings() -> Settings {
    Settings {
        chunk_bytes: CHUNK_BYTES,
        cached_chunk_bytes: CHUNK_BYTES,
        ..Settings::default()
    }
}

fn lane(trouble: Trouble, open: &Arc<AtomicBool>) -> Result<Lane> {
    lane_with(trouble, open, Duration::from_millis(20))
}

/// A lane that waits for `settle_max` for the I/Os of a stopped job, or for 20 ms if it is in a hurry.
fn lane_with(trouble: Trouble, open: &Arc<AtomicBool>, settle_max: Duration) -> Result<Lane> {
    let engine = Box::new(Gated {
        pool: Pool::new(4)?,
        trouble,
        open: Arc::clone(open),
        behind: Vec::new(),
    });
    Ok(Lane::new(Parts {
        number: 0,
        track: Track::Cached,
        engine,
        depths_unused: [0; 2],
        stage: Box::new(HostStage::default()),
        ring: Ring::new(settings().ring(Track::Cached, Place::Host), false),
        settle: Settle {
            usual: settle_max,
            hurried: Duration::from_millis(20),
        },
    }))
}

fn board() -> Arc<Board> {
    Arc::new(Board::new(Track::Cached, &Arc::new(Traffic::default())))
}

/// Posts a job, has the supervisor serve it, and returns the lane's tally.
fn run<F: FnMut() -> Result<Lane>>(supervisor: &mut LaneSupervisor<F>, job: Job) -> (Arc<Job>, Option<Tally>) {
    run_as(Class::Soon, supervisor, job)
}

/// The same for a job of a class.
fn run_as<F: FnMut() -> Result<Lane>>(
    class: Class,
    supervisor: &mut LaneSupervisor<F>,
    job: Job,
) -> (Arc<Job>, Option<Tally>) {
    let job = Arc::new(job);
    let nothing = Arc::new(Reservations::new(None));
    let tenant = Tenant::new(Share::default(), class, &nothing).unwrap();
    let posted = Posted {
        job: Arc::clone(&job),
        tenant: Arc::new(tenant),
        lanes: 1,
        since: Instant::now(),
        _urgent: None,
    };
    let (ended, inbox) = channel();
    let tallies = Tallies::new(move |sum| ended.send(sum).unwrap());
    supervisor.board.post(posted, &tallies, now_s());
    drop(tallies);
    while let Wake::Work = supervisor.board.wait(0, Some(Duration::ZERO)) {
        supervisor.serve();
    }
    (job, inbox.recv().unwrap())
}

/// A read of a file filled with `byte`, and its region.
fn job(folder: &Path, byte: u8) -> (Job, Arc<Region>) {
    let path = folder.join(byte.to_string());
    let bytes = CHUNKS * CHUNK_BYTES;
    fs::write(&path, vec![byte; usize::try_from(bytes).unwrap()]).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let region = Arc::new(Region::host(bytes).unwrap());
    let whole = Move::from(Extent::new(0, bytes));
    let choice = Choice::Only(Route::Buffered);
    let (files, ask) = (vec![file].into(), choice.into());
    let outfit = Outfit::new(settings(), ExecutorParts::default());
    let job = Job::with_region(Direction::In, files, vec![whole], &region, ask, &outfit);
    let job = job.unwrap();
    (job, region)
}

/// Runs a job and asserts that it succeeds.
fn assert_runs<F: FnMut() -> Result<Lane>>(supervisor: &mut LaneSupervisor<F>, folder: &Path, byte: u8) {
    let (job, mut region) = job(folder, byte);
    let (job, tally) = run(supervisor, job);
    job.outcome().unwrap();
    assert_eq!(tally.unwrap().bytes(), CHUNKS * CHUNK_BYTES);
    drop(job);
    let seen = Arc::get_mut(&mut region).expect("nothing is in flight");
    assert!(seen.as_slice().iter().all(|b| *b == byte));
}

#[test]
fn late_completions_of_a_failed_job_are_not_taken_for_those_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let mut troubles = [Trouble::Hangs, Trouble::None].into_iter();
    let make = || lane(troubles.next().unwrap_or(Trouble::None), &open);
    let mut supervisor = LaneSupervisor::new(0, &board(), make).unwrap();

    let (failing, mut region) = job(folder.path(), 1);
    let (failing, _) = run(&mut supervisor, failing);
    assert_eq!(failing.outcome().unwrap_err().os_code(), Some(5));
    drop(failing);
    assert!(supervisor.has_late());
    assert!(
        Arc::get_mut(&mut region).is_none(),
        "the I/Os in flight own parts of the region"
    );
    for byte in 2..5 {
        assert_runs(&mut supervisor, folder.path(), byte);
    }
    open.store(true, Ordering::Relaxed);
    while supervisor.has_late() {
        supervisor.reap();
    }
    assert!(Arc::get_mut(&mut region).is_some());
    assert_runs(&mut supervisor, folder.path(), 5);
}

#[test]
fn lanes_set_aside_are_bounded_and_serve_again_when_storage_answers() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let mut supervisor = LaneSupervisor::new(0, &board(), || lane(Trouble::Hangs, &open)).unwrap();
    for _ in 0..LATE_MAX {
        let (job, _) = job(folder.path(), 1);
        let (job, _) = run(&mut supervisor, job);
        assert_eq!(job.outcome().unwrap_err().os_code(), Some(5));
    }
    let (refused, _) = job(folder.path(), 2);
    let (refused, _) = run(&mut supervisor, refused);
    let error = refused.outcome().unwrap_err();
    assert!(error.to_string().contains("have not completed"), "{error}");
    assert!(error.hint().is_some());
    open.store(true, Ordering::Relaxed);
    // Jobs are refused until the I/Os of the lanes set aside have completed.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (job, _) = job(folder.path(), 2);
        let (job, _) = run(&mut supervisor, job);
        match job.outcome() {
            Ok(()) => break,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    assert_runs(&mut supervisor, folder.path(), 3);
}

#[test]
fn a_lane_that_panicked_fails_its_job_and_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::default();
    let made = AtomicU32::new(0);
    let mut supervisor = LaneSupervisor::new(0, &board(), || {
        let first = made.fetch_add(1, Ordering::Relaxed) == 0;
        let trouble = if first { Trouble::Panics } else { Trouble::None };
        lane(trouble, &open)
    })
    .unwrap();
    let (job, _) = job(folder.path(), 1);
    let (job, _) = run(&mut supervisor, job);
    let error = job.outcome().unwrap_err();
    assert!(error.to_string().contains("for a test"), "{error}");
    assert_runs(&mut supervisor, folder.path(), 2);
    assert_runs(&mut supervisor, folder.path(), 3);
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

#[test]
fn a_lane_whose_engine_broke_fails_its_job_at_once_and_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::default();
    let mut troubles = [Trouble::Breaks; 3].into_iter();
    let make = || lane_with(troubles.next().unwrap_or(Trouble::None), &open, Duration::from_mins(1));
    let mut supervisor = LaneSupervisor::new(0, &board(), make).unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        let (job, _) = job(folder.path(), 1);
        let (job, _) = run(&mut supervisor, job);
        let error = job.outcome().unwrap_err();
        assert!(error.to_string().contains("for a test"), "{error}");
    }
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it waited for I/Os that are lost"
    );
    assert!(!supervisor.has_late());
    assert_runs(&mut supervisor, folder.path(), 2);
}

#[test]
fn chunks_of_a_lane_that_panicked_do_not_hold_back_background_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::default();
    let traffic = Arc::new(Traffic::default());
    let board = Arc::new(Board::new(Track::Cached, &traffic));
    let mut troubles = [Trouble::Panics].into_iter();
    let make = || lane(troubles.next().unwrap_or(Trouble::None), &open);
    let mut supervisor = LaneSupervisor::new(0, &board, make).unwrap();
    // While a job is urgent, background jobs are held back at 2 MiB in flight. One byte less is in flight elsewhere.
    let _urgent = traffic.enter();
    traffic.begin((2 << 20) - 1);
    let (job, _) = job(folder.path(), 1);
    let (job, _) = run_as(Class::Background, &mut supervisor, job);
    let error = job.outcome().unwrap_err();
    assert!(error.to_string().contains("for a test"), "{error}");
    assert!(!traffic.holds_back(now_s()));
}

#[test]
fn a_cancelled_job_is_left_soon_and_a_failed_one_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let long = Duration::from_secs(1);
    let mut troubles = [Trouble::Silent, Trouble::Hangs].into_iter();
    let make = || lane_with(troubles.next().unwrap_or(Trouble::None), &open, long);
    let mut supervisor = LaneSupervisor::new(0, &board(), make).unwrap();
    let started = Instant::now();
    let (cancelled, _region) = job(folder.path(), 1);
    let progress = Arc::clone(&cancelled.ask.progress);
    let user = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        progress.cancel();
    });
    let (cancelled, _) = run(&mut supervisor, cancelled);
    user.join().unwrap();
    assert_eq!(cancelled.outcome().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(
        supervisor.has_late() && started.elapsed() < long,
        "{:?}",
        started.elapsed()
    );
    let started = Instant::now();
    let (failed, _region) = job(folder.path(), 2);
    let (failed, _) = run(&mut supervisor, failed);
    assert_eq!(failed.outcome().unwrap_err().os_code(), Some(5));
    assert!(started.elapsed() >= long, "{:?}", started.elapsed());
}
