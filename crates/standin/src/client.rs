//! How a test uses the shared object.
//!
//! The dynamic loader reads its library path when a process starts, and a driver's state belongs to
//! the process. So the body of each test runs in a process of its own: the test binary starts
//! itself again for this one test, with the stand-in on the library path. That also lets tests run
//! side by side, each with a plan of its own.

use std::collections::BTreeMap;
use std::env;
use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::world::PLAN_VARIABLE;

/// Set in the process that runs the body: the plan it was started with.
const INSIDE_VARIABLE: &str = "STRAIGHTWAY_STANDIN_INSIDE";

/// The names the shared object is found under.
const NAMES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "libcufile.so.0"];

/// A test that takes longer than this hangs.
const DEADLINE: Duration = Duration::from_mins(2);

/// The most a report may be.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// The stand-in loaded into this process.
#[derive(Debug)]
pub struct Standin {
    library: libloading::Library,
}

impl Standin {
    /// Runs `body` in a process of its own, with the stand-in as its driver, set up by `plan`.
    ///
    /// For the thread of a `#[test]`, by whose name the test is found again. A test may call it
    /// several times, and should do nothing else.
    pub fn run(plan: &str, body: impl FnOnce(&Self)) {
        if let Ok(inside) = env::var(INSIDE_VARIABLE) {
            // A test with several plans meets them all again in each of its processes.
            if inside == plan {
                body(&Self::inside());
            }
            return;
        }
        let test = thread::current()
            .name()
            .expect("a test's thread has its name")
            .to_owned();
        let output = Outcome::of(
            Command::new(env::current_exe().expect("a running test has a path"))
                .args([&test, "--exact", "--nocapture", "--test-threads=1"])
                .env(INSIDE_VARIABLE, plan)
                .env(PLAN_VARIABLE, plan)
                .env("LD_LIBRARY_PATH", library_path()),
        );
        assert!(output.is_success, "inside the stand-in:\n{}", output.text);
        assert!(
            output.text.contains("1 passed"),
            "{test} was not run:\n{}",
            output.text
        );
    }

    fn inside() -> Self {
        // SAFETY: the stand-in's library, found first on the path; it has no initialisers.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        Self {
            library: library.expect("the library path holds the stand-in"),
        }
    }

    /// Puts another plan in force; misuses and calls are counted anew.
    pub fn plan(&self, text: &str) {
        let text = CString::new(text).expect("a plan has no NUL");
        // SAFETY: the signature is the one in `control`.
        let set = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const std::ffi::c_char) -> i32>("standin_plan")
        };
        let set = set.expect("the stand-in exports it");
        // SAFETY: a NUL-terminated string.
        assert_eq!(unsafe { set(text.as_ptr()) }, 0, "not a plan: {text:?}");
    }

    /// Holds every copy back, until [`Standin::release`].
    pub fn hold(&self) {
        self.set_held(1);
    }

    /// Lets copies run again.
    pub fn release(&self) {
        self.set_held(0);
    }

    /// How many there are of: `allocations`, `pinned`, `streams`, `events`, `contexts`, `pending`,
    /// `misuses`, `files`, `buffers`, `opened`.
    pub fn count(&self, what: &str) -> u64 {
        let name = CString::new(what).expect("a name has no NUL");
        // SAFETY: the signature is the one in `control`.
        let count = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const std::ffi::c_char) -> u64>("standin_count")
        };
        // SAFETY: a NUL-terminated string.
        let answer = unsafe { count.expect("the stand-in exports it")(name.as_ptr()) };
        assert_ne!(answer, u64::MAX, "nothing called {what} is counted");
        answer
    }

    /// The calls made since the plan was set, and how often each.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let report = self.report();
        let calls = report
            .lines()
            .filter_map(|line| line.strip_prefix("call ")?.split_once(' '));
        calls
            .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
            .collect()
    }

    /// What was done that must not be.
    pub fn misuses(&self) -> Vec<String> {
        let report = self.report();
        let misuses = report
            .lines()
            .filter_map(|line| line.strip_prefix("misuse "));
        misuses.map(ToOwned::to_owned).collect()
    }

    /// Asserts that nothing is left of what a test made, and that nothing was misused.
    pub fn assert_clean(&self) {
        self.assert_left(0);
    }

    /// The same after cuFile was opened: it stays open, for closing it under another user of the
    /// process is worse, and keeps its context.
    pub fn assert_clean_but_for_cufile(&self) {
        self.assert_left(1);
    }

    fn assert_left(&self, contexts_max: u64) {
        let kinds = [
            "allocations",
            "pinned",
            "streams",
            "events",
            "files",
            "buffers",
        ];
        let left: Vec<_> = kinds.iter().map(|kind| (*kind, self.count(kind))).collect();
        assert!(
            left.iter().all(|(_, count)| *count == 0),
            "left over: {left:?}"
        );
        let contexts = self.count("contexts");
        assert!(contexts <= contexts_max, "{contexts} contexts left over");
        assert_eq!(self.misuses(), [""; 0]);
    }

    fn set_held(&self, is_held: i32) {
        // SAFETY: the signature is the one in `control`.
        let hold = unsafe { self.library.get::<extern "C" fn(i32)>("standin_hold") };
        hold.expect("the stand-in exports it")(is_held);
    }

    fn report(&self) -> String {
        let mut text = vec![0u8; REPORT_BYTES_MAX];
        // SAFETY: the signature is the one in `control`.
        let report = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*mut u8, usize) -> usize>("standin_report")
        };
        let report = report.expect("the stand-in exports it");
        // SAFETY: `text` has the room it is said to have.
        let len = unsafe { report(text.as_mut_ptr(), text.len()) };
        text.truncate(len);
        String::from_utf8(text).expect("the report is text")
    }
}

/// A folder to put on `LD_LIBRARY_PATH`, in which the stand-in goes by the real names. A program
/// started with it takes its plan from `STRAIGHTWAY_STANDIN`.
pub fn library_path() -> PathBuf {
    let object = shared_object();
    let folder = object.with_file_name("standin");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    for name in NAMES {
        // Another test may have made it a moment ago; then it is the same.
        let _ = symlink(&object, folder.join(name));
    }
    folder
}

/// Cargo puts the shared object beside the test binaries that depend on this crate.
fn shared_object() -> PathBuf {
    let test = env::current_exe().expect("a running test has a path");
    let folders = test
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|f| [f.join("deps"), f.to_owned()]);
    let mut objects = folders.map(|folder| folder.join("libstraightway_standin.so"));
    let found = objects.find(|object| Path::exists(object));
    found.unwrap_or_else(|| panic!("no libstraightway_standin.so near {}", test.display()))
}

/// How a process ended, and what it said.
struct Outcome {
    is_success: bool,
    text: String,
}

impl Outcome {
    fn of(command: &mut Command) -> Self {
        let piped = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().expect("a test can be started again");
        let (mut out, mut err) = (
            child.stdout.take().expect("piped above"),
            child.stderr.take().expect("piped above"),
        );
        let said = thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let talked = thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                break Some(status);
            }
            if started.elapsed() > DEADLINE {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            thread::sleep(Duration::from_millis(2));
        };
        let said = said.join().unwrap_or_default() + &talked.join().unwrap_or_default();
        match status {
            Some(status) => Self {
                is_success: status.success(),
                text: said,
            },
            None => Self {
                is_success: false,
                text: format!("it hung\n{said}"),
            },
        }
    }
}
