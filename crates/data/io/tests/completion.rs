//! The end of a job: what has happened before a ticket says so, and every way in which it does.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;

use std::{
    fs,
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::channel,
    },
    time::{Duration, Instant},
};

use files::{bytes_of, folder, write_file};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use straightway_core::{Choice, Class, ErrorKind, Extent, Move, Rate, Share};
use straightway_io::{Ask, Executor, File, FileDraft, Region, Settings, Ticket};
use straightway_lab::FuseServer;

const LONG: Duration = Duration::from_secs(30);

fn executor() -> Executor {
    Executor::new(Settings {
        chunk_bytes: 16 << 10,
        cached_chunk_bytes: 16 << 10,
        staging_bytes: 256 << 10,
        ..Settings::default()
    })
    .unwrap()
}

fn whole(bytes: u64) -> Vec<Move> {
    let extent = Extent::new(0, bytes);
    vec![Move {
        object: 0,
        extent,
        at: 0,
    }]
}

fn read(executor: &Executor, file: &Arc<File>, ask: impl Into<Ask>) -> (Ticket, Arc<Region>) {
    let region = Arc::new(Region::host(file.bytes()).unwrap());
    let ticket = executor.read(vec![Arc::clone(file)], whole(file.bytes()), &region, ask);
    (ticket.unwrap(), region)
}

/// Begins to write a new file of `bytes` bytes.
fn write(executor: &Executor, path: &Path, bytes: u64, ask: impl Into<Ask>) -> (Ticket, FileDraft) {
    let region = Arc::new(Region::host(bytes).unwrap());
    let draft = FileDraft::new(path, bytes).unwrap();
    let files = vec![Arc::clone(draft.file())];
    (executor.write(&region, files, whole(bytes), ask).unwrap(), draft)
}

/// An executor whose jobs take a second for each 100 kB.
fn slow(executor: &Executor) -> Executor {
    let share = Share {
        limit: Some(Rate(1e5)),
        ..Share::default()
    };
    executor.sharing(share, Class::Soon).unwrap()
}

/// Whether a descriptor is readable within this time.
fn is_readable(descriptor: BorrowedFd<'_>, within: Duration) -> bool {
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    let timeout = Timespec::try_from(within).unwrap();
    poll(&mut polled, Some(&timeout)).unwrap() == 1
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number of open eventfds of this process.
fn events() -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("[eventfd")).count()
}

/// The number of threads of this process that finish jobs.
fn finishing_threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("comm")).ok());
    // The kernel keeps 15 bytes of a name.
    names.filter(|name| name.starts_with("straightway-fin")).count()
}

/// The tests count descriptors and threads of the process, so they run one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_descriptor_is_readable_once_the_receipt_is_there_and_not_before() {
    let _alone = alone();
    let folder = folder();
    let file = write_file(&folder.path().join("file"), 50_000);
    let executor = executor();
    let before = events();
    let (ticket, mut region) = read(&slow(&executor), &file, Choice::Auto);
    let descriptor = ticket.descriptor().unwrap();
    assert!(!is_readable(descriptor, Duration::from_millis(50)) && !ticket.is_done());
    assert!(is_readable(descriptor, LONG) && ticket.is_done() && ticket.wait_for(Duration::ZERO));
    // It stays readable, and there is one only.
    assert!(is_readable(ticket.descriptor().unwrap(), Duration::ZERO));
    assert_eq!(events(), before + 1);
    // Nothing uses the memory any more, even before the receipt is taken.
    assert!(Arc::get_mut(&mut region).unwrap().as_slice() == bytes_of(50_000));
    std::thread::sleep(Duration::from_millis(300));
    let receipt = ticket.wait().unwrap();
    assert!(receipt.bytes == 50_000 && events() == before);
    assert!(
        receipt.seconds < 0.75,
        "its time ends with the job: {}",
        receipt.seconds
    );
    // It may be asked for after the end.
    let (ticket, _region) = read(&executor, &file, Choice::Auto);
    assert!(ticket.wait_for(LONG) && is_readable(ticket.descriptor().unwrap(), Duration::ZERO));
}

#[test]
fn thousands_of_jobs_leave_no_descriptor_and_no_thread_behind() {
    let _alone = alone();
    let folder = folder();
    let file = write_file(&folder.path().join("file"), 4096);
    let executor = executor();
    let before = events();
    let written = |number: usize| folder.path().join(number.to_string());
    for round in 0..100 {
        let reads: Vec<_> = (0..30).map(|_| read(&executor, &file, Choice::Auto)).collect();
        let (write, _draft) = write(&executor, &written(round), 4096, Choice::Auto);
        let tickets: Vec<_> = reads.into_iter().map(|(ticket, _)| ticket).chain([write]).collect();
        for ticket in &tickets {
            assert!(is_readable(ticket.descriptor().unwrap(), LONG) && ticket.is_done());
        }
        // Every other ticket is dropped without its receipt.
        for (number, ticket) in tickets.into_iter().enumerate() {
            if number % 2 == 0 {
                assert_eq!(ticket.wait().unwrap().bytes, 4096);
            }
        }
    }
    assert_eq!(events(), before);
    assert!(finishing_threads() <= 4, "{} threads", finishing_threads());
}

#[test]
fn a_completion_function_has_run_before_the_end_is_told() {
    let _alone = alone();
    let folder = folder();
    let file = write_file(&folder.path().join("file"), 30_000);
    let executor = executor();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = || {
        let seen = Arc::clone(&seen);
        Ask::from(Choice::Auto).then(move |outcome| {
            std::thread::sleep(Duration::from_millis(30));
            let bytes = outcome.as_ref().map_or(1, |receipt| receipt.bytes);
            seen.fetch_add(usize::try_from(bytes).unwrap(), Ordering::SeqCst);
        })
    };
    let (ticket, _region) = read(&executor, &file, counted());
    assert!(is_readable(ticket.descriptor().unwrap(), LONG));
    assert_eq!(seen.swap(0, Ordering::SeqCst), 30_000);
    ticket.wait().unwrap();
    // It is told of errors too.
    let (ticket, _region) = read(&slow(&executor), &file, counted());
    ticket.cancel();
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(seen.swap(0, Ordering::SeqCst), 1);
    // A dropped ticket cancels its job, whose function is still called.
    drop(read(&slow(&executor), &file, counted()));
    wait_until("the function is called", || seen.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_completion_function_that_panics_fails_its_job_only() {
    let _alone = alone();
    let folder = folder();
    let executor = executor();
    let ask = Ask::from(Choice::Auto).then(|_| panic!("a test's panic"));
    let (ticket, _draft) = write(&executor, &folder.path().join("a"), 5000, ask);
    let error = ticket.wait().unwrap_err();
    assert!(
        error.to_string().contains("its completion function panicked"),
        "{error}"
    );
    let (ticket, _draft) = write(&executor, &folder.path().join("b"), 5000, Choice::Auto);
    ticket.wait().unwrap();
}

#[test]
fn an_error_is_told_like_a_receipt() {
    let _alone = alone();
    let folder = folder();
    let path = folder.path().join("file");
    let file = write_file(&path, 100_000);
    // The last owner of the lanes waits for them.
    let executor = slow(&executor());
    let (ticket, _region) = read(&executor, &file, Choice::Auto);
    fs::write(&path, "shorter").unwrap();
    assert!(is_readable(ticket.descriptor().unwrap(), LONG) && ticket.is_done());
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Precondition);
}

#[test]
fn a_cancelled_write_is_not_synced_and_leaves_nothing() {
    let _alone = alone();
    let folder = folder();
    let executor = executor();
    let (ticket, draft) = write(&slow(&executor), &folder.path().join("file"), 500_000, Choice::Auto);
    ticket.cancel();
    assert!(is_readable(ticket.descriptor().unwrap(), LONG));
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(draft);
    wait_until("the draft is gone", || {
        fs::read_dir(folder.path()).unwrap().count() == 0
    });
}

#[test]
fn jobs_end_although_their_executor_is_gone() {
    let _alone = alone();
    let folder = folder();
    let (own, (ended, inbox)) = (executor(), channel());
    let ended = Mutex::new(ended);
    let ask = Ask::from(Choice::Auto).then(move |_| ended.lock().unwrap().send(()).unwrap());
    let (ticket, _draft) = write(&own, &folder.path().join("file"), 500_000, ask);
    drop(own);
    assert_eq!(ticket.wait().unwrap().bytes, 500_000);
    inbox.try_recv().unwrap();
}

#[test]
fn a_sync_that_hangs_delays_no_job_on_other_storage() {
    let _alone = alone();
    let (folder, mounted) = (folder(), tempfile::tempdir().unwrap());
    let fuse = match FuseServer::mount(mounted.path()) {
        Ok(fuse) => fuse,
        Err(why) => return println!("skipped: {why}"),
    };
    let executor = executor();
    fuse.faults.hang_syncs.store(true, Ordering::Relaxed);
    let called = Arc::new(AtomicBool::new(false));
    let hanging: Vec<_> = (0..20)
        .map(|number| {
            let called = Arc::clone(&called);
            let ask = Ask::from(Choice::Auto).then(move |_| called.store(true, Ordering::Relaxed));
            write(&executor, &mounted.path().join(number.to_string()), 5000, ask)
        })
        .collect();
    wait_until("four syncs hang", || fuse.faults.syncs.load(Ordering::Relaxed) >= 4);
    // Reads of the same file system, other writes and other reads go on.
    let file = write_file(&folder.path().join("file"), 40_000);
    for number in 0..20 {
        let (written, _draft) = write(&executor, &folder.path().join(number.to_string()), 40_000, Choice::Auto);
        assert!(written.wait_for(LONG));
        written.wait().unwrap();
        let (ticket, _region) = read(&executor, &file, Choice::Auto);
        assert!(ticket.wait_for(LONG));
        ticket.wait().unwrap();
    }
    assert!(finishing_threads() <= 8, "{} threads", finishing_threads());
    for (ticket, _) in &hanging {
        assert!(!ticket.is_done() && !is_readable(ticket.descriptor().unwrap(), Duration::ZERO));
    }
    assert!(!called.load(Ordering::Relaxed), "no function is called before the end");
    // Without a server the kernel fails every sync.
    drop(fuse);
    for (ticket, _) in hanging {
        assert!(ticket.wait_for(LONG));
        ticket.wait().unwrap_err();
    }
}
