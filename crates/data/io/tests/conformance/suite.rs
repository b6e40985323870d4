//! Transfers of many objects on every engine, route and file system: a seeded pairwise cover.
//!
//! `STRAIGHTWAY_CONFORMANCE="seed=7 cases=2000"` selects another seed and more cases, `seconds=1200` gives it more
//! time, and `only=31` runs a single case. A failed case prints the words that repeat it.

use std::{
    io::{BufRead, BufReader},
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Resource, geteuid, getrlimit, setrlimit};
use straightway_core::{Lock, random::Seed};

use crate::{
    case::Case,
    cover::pairwise,
    mounts::{Mounts, System},
    run::{self, Outcome},
};

/// Environment variables: the cases to run, and a mark that this process is in a namespace of its own.
const VARIABLE: &str = "STRAIGHTWAY_CONFORMANCE";
const INSIDE_VARIABLE: &str = "STRAIGHTWAY_CONFORMANCE_INSIDE";

/// The default number of cases: four or five covers.
const CASES: u64 = 300;

/// The default time limit. On a slow machine some cases are left out, but never one of the first cover.
const TIME_MAX: Duration = Duration::from_mins(5);

/// The longest time of a case before it counts as hung.
const CASE_MAX: Duration = Duration::from_mins(5);

/// File descriptors per object (two of its file and two of its twin), and a reserve for everything else.
const DESCRIPTORS: u64 = 4;
const DESCRIPTORS_SPARE: u64 = 500;

/// The cases to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) seed: u64,
    pub(crate) cases: u64,
    /// After this time no case beyond the first cover is started.
    pub(crate) time_max: Duration,
    pub(crate) only: Option<u64>,
}

impl Request {
    /// The request from the environment.
    pub(crate) fn from_environment() -> Self {
        let mut request = Self {
            seed: 11,
            cases: CASES,
            time_max: TIME_MAX,
            only: None,
        };
        for word in std::env::var(VARIABLE).unwrap_or_default().split_whitespace() {
            match word.split_once('=').map(|(name, n)| (name, n.parse().unwrap())) {
                Some(("seed", seed)) => request.seed = seed,
                Some(("cases", cases)) => request.cases = cases,
                Some(("seconds", seconds)) => {
                    request.time_max = Duration::from_secs(seconds);
                }
                Some(("only", only)) => request.only = Some(only),
                _ => panic!("{VARIABLE}: expected `seed=N`, `cases=N`, `seconds=N` or `only=N`: {word}"),
            }
        }
        request
    }

    /// The number of cases in the first cover.
    fn cover(self) -> usize {
        pairwise(&Case::SIZES, &mut Seed(self.seed).part(0).rng()).len()
    }

    /// The cases: as many covers as are needed.
    pub(crate) fn cases(self) -> Vec<Case> {
        let mut cases = Vec::new();
        for round in 0.. {
            let mut rng = Seed(self.seed).part(round).rng();
            for row in pairwise(&Case::SIZES, &mut rng) {
                cases.push(Case::new(self.seed, cases.len() as u64, &row));
            }
            if cases.len() as u64 >= self.only.map_or(self.cases, |only| only + 1) {
                break;
            }
        }
        if self.only.is_none() {
            cases.truncate(self.cases as usize);
        }
        cases.retain(|case| self.only.is_none_or(|only| only == case.number));
        cases
    }
}

#[test]
fn every_engine_route_and_file_system_moves_every_byte_of_many_objects() {
    if std::env::var_os(INSIDE_VARIABLE).is_some() {
        return run_all(&Ok(()));
    }
    match in_namespace() {
        Ok(mut command) => {
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            // Printed by this thread, the lines are in the output of this test.
            let lines = BufReader::new(child.stderr.take().unwrap()).lines();
            lines.map_while(Result::ok).for_each(|line| eprintln!("{line}"));
            let status = child.wait().unwrap();
            assert!(status.success(), "see above: {status}");
        }
        Err(reason) => run_all(&Err(reason)),
    }
}

/// The command that runs this test again in its own mount namespace, or why that is not possible.
fn in_namespace() -> Result<Command, String> {
    if !geteuid().is_root() {
        return Err("only root may mount".to_owned());
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command
    };
    let tried = unshare().arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return Err("this process may not have a mount namespace".to_owned());
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let mut command = unshare();
    command
        .arg(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE_VARIABLE, "yes");
    Ok(command)
}

/// Runs all requested cases, and fails if any failed.
fn run_all(may_mount: &Result<(), String>) {
    let request = Request::from_environment();
    let start = Instant::now();
    let mounts = Mounts::new(may_mount);
    let objects_max = objects_max();
    let watchdog = Watchdog::start();
    let mut total = Outcome::default();
    let (mut ran, mut failed) = (0, 0);
    let (cover, cases) = (request.cover(), request.cases());
    for (number, case) in cases.iter().enumerate() {
        if number >= cover && start.elapsed() > request.time_max {
            let left = cases.len() - number;
            eprintln!("left out: {left} cases, because the time is over");
            break;
        }
        let Some(folder) = mounts.folder(case.system) else {
            continue;
        };
        if u64::from(case.objects) > objects_max {
            let objects = case.objects;
            eprintln!("left out: {objects} objects: they need more open files than `ulimit -n` allows");
            continue;
        }
        watchdog.begin(case);
        ran += 1;
        match attempt(|| run::run(case, folder)) {
            Ok(outcome) => {
                total.bytes += outcome.bytes;
                total.refused += outcome.refused;
            }
            Err(wrong) => {
                failed += 1;
                eprintln!("FAILED {case}: {wrong}");
            }
        }
    }
    let systems = System::ALL.into_iter().filter(|s| mounts.folder(*s).is_some());
    let systems: Vec<_> = systems.map(|s| s.to_string()).collect();
    eprintln!(
        "conformance: seed {}, {ran} cases on {}, {} bytes compared, {} routes refused, {failed} failed, {:.0} s",
        request.seed,
        systems.join(" "),
        total.bytes,
        total.refused,
        start.elapsed().as_secs_f64()
    );
    drop(mounts);
    assert_eq!(failed, 0, "{VARIABLE}=\"seed=N only=N\" runs a case again");
}

/// Runs `body` and turns a panic into an error.
pub(crate) fn attempt<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
        Err(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// The most objects of a case, given the limit on open files.
fn objects_max() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If that is refused, the limit stays.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    files.saturating_sub(DESCRIPTORS_SPARE) / DESCRIPTORS
}

/// Ends the process if a case hangs.
struct Watchdog(Arc<Lock<Option<(Instant, String)>>>);

impl Watchdog {
    fn start() -> Self {
        let shared: Arc<Lock<Option<(Instant, String)>>> = Arc::default();
        let watched = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            while let Some(shared) = watched.upgrade() {
                let now = shared.lock().clone();
                drop(shared);
                if let Some((since, case)) = now
                    && since.elapsed() > CASE_MAX
                {
                    eprintln!("FAILED {case}: it hangs");
                    std::process::exit(1);
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self(shared)
    }

    fn begin(&self, case: &Case) {
        let mut now = self.0.lock();
        *now = Some((Instant::now(), case.to_string()));
    }
}
