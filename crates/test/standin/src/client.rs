//! The client of the shared object, for tests.
//!
//! The dynamic loader reads its library path when a process starts, and the state of a driver belongs to the process.
//! Therefore the body of each test runs in its own process: the test binary starts itself again for this one test, with
//! the stand-in on the library path. Tests can then run in parallel, each with its own plan.

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

/// The environment variable in the process that runs the body: its plan.
const INSIDE_VARIABLE: &str = "STRAIGHTWAY_STANDIN_INSIDE";

/// The file names of the shared object.
const NAMES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "libcufile.so.0"];

/// The timeout of a test.
const DEADLINE: Duration = Duration::from_mins(2);

/// The maximum length of a report.
const REPORT_BYTES_MAX: usize = 1 << 20;

/// The stand-in loaded into this process.
#[derive(Debug)]
pub struct Standin {
    library: libloading::Library,
}

impl Standin {
    /// Runs `body` in its own process, with the stand-in as its driver, set up by `plan`.
    ///
    /// Call it on the thread of a `#[test]`, whose name is used to find the test again. A test may call it several
    /// times and should do nothing else.
    pub fn run(plan: &str, body: impl FnOnce(&Self)) {
        if let Ok(inside) = env::var(INSIDE_VARIABLE) {
            // A test with several plans runs through all of them in each of its processes.
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
        assert!(output.text.contains("1 passed"), "{test} was not run:\n{}", output.text);
        print_omissions(&output.text);
    }

    fn inside() -> Self {
        // SAFETY: the stand-in's library is first on the path and has no initializers.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        Self {
            library: library.expect("the library path holds the stand-in"),
        }
    }

    /// Sets another plan. Resets the counts of misuses and calls.
    pub fn plan(&self, text: &str) {
        let text = CString::new(text).expect("a plan has no NUL");
        // SAFETY: the signature matches `control`.
        let set = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const std::ffi::c_char) -> i32>("standin_plan")
        };
        let set = set.expect("the stand-in exports it");
        // SAFETY: a NUL-terminated string.
        assert_eq!(unsafe { set(text.as_ptr()) }, 0, "not a plan: {text:?}");
    }

    /// Pauses all copies until [`Standin::release`].
    pub fn hold(&self) {
        self.set_held(1);
    }

    /// Resets the contexts of all GPUs, as other code in the process may do.
    pub fn reset_contexts(&self) {
        // SAFETY: the signature is that of the driver.
        let reset = unsafe {
            self.library
                .get::<extern "C" fn(i32) -> u32>("cuDevicePrimaryCtxReset_v2")
        };
        assert_eq!(reset.expect("the stand-in exports it")(0), 0);
    }

    /// Resumes copies.
    pub fn release(&self) {
        self.set_held(0);
    }

    /// The number of objects of a kind: `allocations`, `pinned`, `streams`, `events`, `contexts`, `pending`, `misuses`,
    /// `files`, `buffers`, `opened`.
    pub fn count(&self, what: &str) -> u64 {
        let name = CString::new(what).expect("a name has no NUL");
        // SAFETY: the signature matches `control`.
        let count = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*const std::ffi::c_char) -> u64>("standin_count")
        };
        // SAFETY: a NUL-terminated string.
        let answer = unsafe { count.expect("the stand-in exports it")(name.as_ptr()) };
        assert_ne!(answer, u64::MAX, "unknown kind {what}");
        answer
    }

    /// The calls since the plan was set, with their counts.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let report = self.report();
        let calls = report
            .lines()
            .filter_map(|line| line.strip_prefix("call ")?.split_once(' '));
        calls
            .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
            .collect()
    }

    /// The recorded misuses.
    pub fn misuses(&self) -> Vec<String> {
        let report = self.report();
        let misuses = report.lines().filter_map(|line| line.strip_prefix("misuse "));
        misuses.map(ToOwned::to_owned).collect()
    }

    /// Asserts that the test released everything and that there was no misuse.
    pub fn assert_clean(&self) {
        self.assert_left(0);
    }

    /// The same after cuFile was opened. It stays open and keeps its context, because closing it could break another
    /// user in the process.
    pub fn assert_clean_but_for_cufile(&self) {
        self.assert_left(1);
    }

    fn assert_left(&self, contexts_max: u64) {
        let kinds = ["allocations", "pinned", "streams", "events", "files", "buffers"];
        let left: Vec<_> = kinds.iter().map(|kind| (*kind, self.count(kind))).collect();
        assert!(left.iter().all(|(_, count)| *count == 0), "left over: {left:?}");
        let contexts = self.count("contexts");
        assert!(contexts <= contexts_max, "{contexts} contexts left over");
        assert_eq!(self.misuses(), [""; 0]);
    }

    fn set_held(&self, is_held: i32) {
        // SAFETY: the signature matches `control`.
        let hold = unsafe { self.library.get::<extern "C" fn(i32)>("standin_hold") };
        hold.expect("the stand-in exports it")(is_held);
    }

    fn report(&self) -> String {
        let mut text = vec![0u8; REPORT_BYTES_MAX];
        // SAFETY: the signature matches `control`.
        let report = unsafe {
            self.library
                .get::<unsafe extern "C" fn(*mut u8, usize) -> usize>("standin_report")
        };
        let report = report.expect("the stand-in exports it");
        // SAFETY: `text` has the length that is passed.
        let len = unsafe { report(text.as_mut_ptr(), text.len()) };
        text.truncate(len);
        String::from_utf8(text).expect("the report is text")
    }
}

/// A folder for `LD_LIBRARY_PATH` that contains the stand-in under the real names. A program started with it takes its
/// plan from `STRAIGHTWAY_STANDIN`.
pub fn library_path() -> PathBuf {
    let object = shared_object();
    let folder = object.with_file_name("standin");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    for name in NAMES {
        // Another test may have created the same link.
        let _ = symlink(&object, folder.join(name));
    }
    folder
}

/// Finds the shared object. Cargo puts it next to the test binaries that depend on this crate.
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

/// Prints the lines in the output of a body that say what it skipped or left out, so that they are in the output of its
/// test.
#[expect(clippy::print_stderr, reason = "skipped tests are counted by these lines")]
fn print_omissions(text: &str) {
    for line in text.lines() {
        if line.starts_with("skipped: ") || line.starts_with("left out: ") {
            eprintln!("{line}");
        }
    }
}

/// The exit status and the output of a process.
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
