//! Other code in the process closes descriptors that it did not open, as `os.closerange` does: that is an error which
//! names the cause, and neither a hang nor another file's bytes.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, Lock};
use straightway_sys::{Buf, Done, File, Io, IoPath, Op, Slot, Uring};

/// One test at a time: numbers that one closes are not taken by another.
static ALONE: Lock<()> = Lock::new(());

/// Closes a descriptor behind the back of its owner.
fn close(number: RawFd) {
    // SAFETY: the owner does not use it for memory; losing it is what is tested.
    assert_eq!(unsafe { libc::close(number) }, 0);
}

/// The descriptors of all rings of this process.
fn rings() -> Vec<RawFd> {
    let is_ring = |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("[io_uring]"));
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let numbers = entries.filter(|entry| is_ring(&entry.path()));
    numbers
        .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// A file of one page, all bytes of which are `byte`.
fn page(folder: &Path, byte: u8) -> Arc<File> {
    let path = folder.join(byte.to_string());
    fs::write(&path, [byte; 4096]).unwrap();
    Arc::new(File::open(&path).unwrap())
}

fn read(file: &Arc<File>) -> Io {
    Io {
        op: Op::Read,
        object: Arc::clone(file),
        by: IoPath::PageCache,
        offset: 0,
        buf: Buf::Slot(Slot::ring(1, 4096).unwrap().remove(0)),
        start: 0,
        bytes: 4096,
        tag: 7,
    }
}

fn run(uring: &mut Uring, io: Io) -> Result<Done, Error> {
    uring.submit(io).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        uring.poll(&mut done, 1, Duration::from_secs(1))?;
    }
    Ok(done.remove(0))
}

fn assert_names_the_cause(text: &str) {
    assert!(text.contains("closed its descriptor"), "{text}");
}

#[test]
fn a_ring_that_was_closed_between_transfers_is_an_error_once_and_then_works() {
    let _alone = ALONE.lock();
    let Ok(mut uring) = Uring::new(8).inspect_err(|error| eprintln!("skipped: {error}")) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = page(folder.path(), 3);
    for is_taken in [false, true] {
        assert_eq!(run(&mut uring, read(&file)).unwrap().result.unwrap(), 4096);
        uring.forget_files();
        let [number] = rings()[..] else {
            panic!("there is one ring")
        };
        close(number);
        // Another file, or another ring, gets the number.
        let other = is_taken.then(|| fs::File::open("/dev/null").unwrap());
        let done = run(&mut uring, read(&file)).unwrap();
        assert_names_the_cause(&done.result.unwrap_err().to_string());
        uring.forget_files();
        let done = run(&mut uring, read(&file)).unwrap();
        assert_eq!(done.result.unwrap(), 4096, "the next transfer works");
        if let Some(other) = other {
            assert_eq!(other.as_raw_fd(), number);
            other.metadata().expect("it was not closed with the old ring");
        }
    }
}

#[test]
fn a_ring_that_was_closed_during_a_transfer_is_an_error_at_once() {
    let _alone = ALONE.lock();
    for taken_by in ["nothing", "a file", "a ring"] {
        let Ok(mut uring) = Uring::new(8).inspect_err(|error| eprintln!("skipped: {error}")) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let file = page(folder.path(), 3);
        assert_eq!(run(&mut uring, read(&file)).unwrap().result.unwrap(), 4096);
        let [number] = rings()[..] else {
            panic!("there is one ring")
        };
        close(number);
        let other = (taken_by == "a file").then(|| fs::File::open("/dev/null").unwrap());
        let ring = (taken_by == "a ring").then(|| std::thread::spawn(|| Uring::new(8).unwrap()).join().unwrap());
        let start = Instant::now();
        let error = run(&mut uring, read(&file)).unwrap_err();
        assert_names_the_cause(&error.to_string());
        assert!(error.hint().unwrap().contains("os.closerange"));
        drop(uring);
        assert!(start.elapsed() < Duration::from_secs(10), "taken by {taken_by}");
        drop((other, ring));
    }
}

#[test]
fn a_file_that_was_closed_is_an_error_even_if_another_has_its_number() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for by in [IoPath::PageCache, IoPath::Direct] {
        let file = page(folder.path(), 3);
        file.check_unchanged().unwrap();
        let number = file.descriptor(by).as_raw_fd();
        close(number);
        assert_names_the_cause(&file.check_unchanged().unwrap_err().to_string());
        if by == IoPath::PageCache {
            let mut bytes = [0; 10];
            assert_names_the_cause(&file.read_exact_at(0, &mut bytes).unwrap_err().to_string());
        }
        fs::write(folder.path().join("other"), [4; 4096]).unwrap();
        let other = fs::File::open(folder.path().join("other")).unwrap();
        assert_eq!(other.as_raw_fd(), number);
        assert_names_the_cause(&file.check_unchanged().unwrap_err().to_string());
        assert_names_the_cause(&file.sync().unwrap_err().to_string());
        // Dropping it would close the other file.
        std::mem::forget(file);
    }
}
