//! A separate folder for each test, on a file system with O_DIRECT, and runs of the binary in it with a separate
//! profile.

use std::{
    ffi::OsStr,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

use rustix::fs::{SeekFrom, seek};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use straightway_core::random::Seed;
use tempfile::TempDir;

/// The suffix of temporary files.
pub(crate) const PART: &str = ".straightway-part";

/// The time after which a run counts as hung.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A folder for one test.
pub(crate) struct TestDir {
    folder: TempDir,
    state: TempDir,
}

/// The result of a run of the binary.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        // `nohup make test` ignores signals, and the binary would inherit that.
        straightway_standin::restore_stop_signals();
        let new = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self {
            folder: new(),
            state: new(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// The path of the binary's profile.
    pub(crate) fn profile(&self) -> PathBuf {
        self.state.path().join("straightway/profile.toml")
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Creates a file of `len` random bytes from `seed`.
    pub(crate) fn file(&self, name: &str, len: usize, seed: u64) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, noise(len, seed)).unwrap();
        path
    }

    /// The command of the binary in the directory.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_straightway"));
        self.settle(command.args(args));
        command
    }

    fn settle(&self, command: &mut Command) {
        command
            .current_dir(self.root())
            .env("XDG_STATE_HOME", self.state.path())
            .env_remove("COLUMNS")
            .env_remove("STRAIGHTWAY_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Starts the binary in the directory.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running(Some(self.command(args).spawn().unwrap()))
    }

    /// Runs the binary in the directory.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.start(args).wait()
    }

    /// Runs the binary in the directory with these variables.
    pub(crate) fn run_with<S: AsRef<OsStr>>(
        &self,
        variables: &[(&str, &str)],
        args: impl IntoIterator<Item = S>,
    ) -> Ran {
        let mut command = self.command(args);
        command.envs(variables.iter().copied());
        Running(Some(command.spawn().unwrap())).wait()
    }

    /// Runs a line of a shell that finds the binary, with these variables.
    pub(crate) fn shell(&self, variables: &[(&str, &str)], line: &str) -> Ran {
        let binary = Path::new(env!("CARGO_BIN_EXE_straightway"));
        let folders = [
            binary.parent().unwrap().as_os_str(),
            OsStr::new("/usr/bin"),
            OsStr::new("/bin"),
        ];
        let mut command = Command::new("sh");
        self.settle(command.args(["-c", line]));
        command
            .env("PATH", folders.join(OsStr::new(":")))
            .envs(variables.iter().copied());
        Running(Some(command.spawn().unwrap())).wait()
    }

    /// Runs another program in the directory.
    pub(crate) fn run_program(&self, program: &str, args: &[&str]) -> Ran {
        self.start_program(program, args).wait()
    }

    /// Starts another program in the directory.
    pub(crate) fn start_program(&self, program: &str, args: &[&str]) -> Running {
        let mut command = Command::new(program);
        self.settle(command.args(args));
        Running(Some(command.spawn().unwrap()))
    }

    /// Runs the binary as an unprivileged user. Prints the reason and returns `None` if that is not possible.
    pub(crate) fn run_as_nobody(&self, args: &[&str]) -> Option<Ran> {
        if !geteuid().is_root() {
            return Some(self.run(args));
        }
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        self.settle(command.args(nobody));
        command.arg(env!("CARGO_BIN_EXE_straightway")).args(args);
        command.env_remove("XDG_STATE_HOME").env_remove("HOME");
        let child = command.spawn();
        let ran = child.ok().map(|child| Running(Some(child)).wait());
        let ran = ran.filter(|ran| !ran.err.starts_with("setpriv:"));
        if ran.is_none() {
            eprintln!("skipped: cannot run the binary as another user");
        }
        ran
    }

    /// Runs `copy --json` with these arguments and returns its receipt.
    pub(crate) fn receipt(&self, args: &[&str]) -> Value {
        let ran = self.run(["copy", "--json"].iter().chain(args));
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// All names in the directory, at any depth and including hidden ones, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut open = vec![self.root().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    open.push(entry.path());
                }
                let path = entry.path();
                let name = path.strip_prefix(self.root()).unwrap();
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort();
        names
    }

    /// Whether any temporary file is in the directory.
    pub(crate) fn has_part(&self) -> bool {
        self.names().iter().any(|name| name.ends_with(PART))
    }

    /// Whether bytes were written to a temporary file in the directory. The file is not read: that could disturb a
    /// direct write.
    pub(crate) fn has_written_part(&self) -> bool {
        let names = self.names().into_iter().filter(|name| name.ends_with(PART));
        // It may be gone by now.
        let mut files = names.filter_map(|name| fs::File::open(self.path(name)).ok());
        files.any(|file| seek(file, SeekFrom::Data(0)).is_ok())
    }

    /// `text` without the parts that differ between runs.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(&self.root().display().to_string(), "DIR")
    }
}

/// A running binary. It is killed when this is dropped.
pub(crate) struct Running(Option<Child>);

impl Running {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("there until it has been waited for")
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        let pid = Pid::from_child(self.child());
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it has a handler for a signal, and returns whether that happened before the end of the run.
    pub(crate) fn wait_until_caught(&mut self, signal: Signal) -> bool {
        let path = format!("/proc/{}/status", self.child().id());
        let bit = 1_u64 << (signal.as_raw() - 1);
        self.wait_until(|| {
            let status = fs::read_to_string(&path).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            caught.is_some_and(|mask| mask & bit != 0)
        })
    }

    /// Waits until `is_so`, and returns whether that happened before the end of the run.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if is_so() {
                return true;
            }
            if self.child().try_wait().unwrap().is_some() {
                return is_so();
            }
            sleep(Duration::from_millis(2));
        }
        false
    }

    /// Waits for its end. Its output is read meanwhile, because a pipe has a limited capacity.
    pub(crate) fn wait(mut self) -> Ran {
        let start = Instant::now();
        let out = read_on(self.child().stdout.take().unwrap());
        let err = read_on(self.child().stderr.take().unwrap());
        while self.child().try_wait().unwrap().is_none() {
            assert!(start.elapsed() < TIMEOUT, "the binary hangs");
            sleep(Duration::from_millis(1));
        }
        let mut child = self.0.take().expect("it was not waited for yet");
        Ran {
            code: child.wait().unwrap().code(),
            out: out.join().unwrap(),
            err: err.join().unwrap(),
        }
    }
}

/// Reads a pipe to its end on a thread.
fn read_on(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A folder on a file system in memory. Prints the reason and returns `None` if there is none.
pub(crate) fn in_memory() -> Option<TempDir> {
    tempfile::tempdir_in("/dev/shm")
        .inspect_err(|error| eprintln!("skipped: /dev/shm: {error}"))
        .ok()
}

/// `len` incompressible bytes from `seed`.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    Seed(seed).bytes(len)
}

/// The bytes that took `route` on `leg`, by a receipt.
pub(crate) fn routed(receipt: &Value, leg: &str, route: Option<&str>) -> u64 {
    let rows = receipt["routes"].as_array().unwrap().iter();
    rows.filter(|row| row["leg"] == leg && route.is_none_or(|route| row["route"] == route))
        .map(|row| row["bytes"].as_u64().unwrap())
        .sum()
}
