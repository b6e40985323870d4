//! NVMe/TCP targets and hosts that are killed at random moments of verified writes.
//!
//! The host is a child process that writes extents of a namespace in generations, reads them back and flushes. A log
//! that survives it records what it began and what it flushed. A killed target is restarted, and the host must continue
//! or exit with an error message. After a host dies, each block of the file must be complete and from the last flushed
//! generation or a later one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod host;
mod model;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use straightway_core::random::Seed;
use straightway_nvme::Nqn;
use straightway_nvme_target::{Config, NamespaceSource, Target};

use model::{BLOCK, BLOCKS, Model};

/// The number of kills, unless the environment variable sets another.
const KILLS: u64 = 8;
const COUNT: &str = "STRAIGHTWAY_NVME_KILLS";

/// The environment variable of a child process: its role, the port, the first generation, and the folder.
const CHILD: &str = "STRAIGHTWAY_NVME_KILL_CHILD";

/// The time in which a host must continue. It waits for the end of the old controller before it writes new data.
const PATIENCE: Duration = Duration::from_mins(1);

/// The text that a target prints before its port.
const SERVING: &str = "serving on ";

const NQN: &str = "nqn.2026-11.org.example:kills";

#[test]
#[ignore = "it runs as a child of another test"]
fn child() {
    let text = std::env::var(CHILD).expect("set by the test that starts it");
    let parts: Vec<_> = text.splitn(4, ' ').collect();
    let [role, port, first, folder] = parts[..] else {
        panic!("{text}");
    };
    let (port, folder) = (port.parse().unwrap(), Path::new(folder));
    if role == "host" {
        host::run(port, first.parse().unwrap(), folder);
    }
    serve(port, folder);
}

/// The target process.
fn serve(port: u16, folder: &Path) -> ! {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let sources = vec![NamespaceSource::Path(folder.join("data"))];
    let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
    config.is_writable = true;
    config.block_shift = 12;
    let target = Target::start(&config).unwrap();
    println!("\n{SERVING}{}", target.addresses()[0].port());
    loop {
        std::thread::park();
    }
}

/// A target and a host, each in its own process.
struct Rig {
    folder: PathBuf,
    port: u16,
    target: Child,
    host: Child,
    model: Model,
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in [&mut self.target, &mut self.host] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts this program again as a child with a role.
fn again(role: &str, said: Stdio) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(CHILD, role)
        .stdout(said)
        .spawn()
        .unwrap()
}

/// Starts a target; port 0 is any. Returns its port.
fn target(folder: &Path, port: u16) -> (Child, u16) {
    let role = format!("target {port} 0 {}", folder.display());
    let mut child = again(&role, Stdio::piped());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| line.unwrap().strip_prefix(SERVING)?.parse().ok());
    // The test harness prints more later and would die of a closed pipe.
    std::thread::spawn(move || lines.count());
    (child, port.expect("it says where it listens"))
}

fn host(folder: &Path, port: u16, first: u64) -> Child {
    let role = format!("host {port} {first} {}", folder.display());
    again(&role, Stdio::null())
}

impl Rig {
    fn new(folder: &Path) -> Self {
        let data = File::create(folder.join("data")).unwrap();
        data.set_len((BLOCKS * BLOCK) as u64).unwrap();
        File::create(folder.join("log")).unwrap();
        let (target, port) = target(folder, 0);
        Self {
            host: host(folder, port, 1),
            folder: folder.to_owned(),
            port,
            target,
            model: Model::default(),
        }
    }

    fn kill_target(&mut self) {
        self.target.kill().unwrap();
        self.target.wait().unwrap();
    }

    fn start_target(&mut self) {
        self.target = target(&self.folder, self.port).0;
    }

    /// Waits until the host has flushed again or has exited.
    fn go_on(&mut self) {
        let log = || fs::read_to_string(self.folder.join("log")).unwrap();
        let flushes = |log: &str| log.lines().filter(|line| line.starts_with('f')).count();
        let before = flushes(&log());
        let deadline = Instant::now() + PATIENCE;
        while flushes(&log()) == before && self.host.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the host does not continue");
            sleep(Duration::from_millis(5));
        }
    }

    /// Kills the host if it still runs, compares the file with its log, and starts another host. Returns the message of
    /// a host that exited by itself.
    fn next_host(&mut self) -> Option<String> {
        let ended = self.host.try_wait().unwrap();
        if ended.is_none() {
            self.host.kill().unwrap();
            self.host.wait().unwrap();
        }
        let log = fs::read_to_string(self.folder.join("log")).unwrap();
        let said = self.model.read(&log);
        assert_eq!(ended.is_some(), said.is_some(), "{ended:?}: {said:?}");
        // The target may still execute the last commands of the dead host.
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Err(why) = self.model.check(&fs::read(self.folder.join("data")).unwrap()) {
            assert!(Instant::now() < deadline, "{why}");
            sleep(Duration::from_millis(50));
        }
        self.host = host(&self.folder, self.port, self.model.next());
        said
    }
}

#[test]
fn no_flushed_write_is_lost_and_no_block_is_stale_when_either_side_is_killed() {
    if let Err(error) = straightway_nvme_host::NvmeEngine::new(1) {
        eprintln!("skipped: {error}");
        return;
    }
    let kills = std::env::var(COUNT).map_or(KILLS, |count| count.parse().unwrap());
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut rig = Rig::new(folder.path());
    let mut rng = Seed(0x5eed).rng();
    let (mut targets, mut hosts, mut ends) = (0, 0, Vec::new());
    for _ in 0..kills {
        rig.go_on();
        sleep(Duration::from_millis(rng.below(300)));
        if rng.below(2) == 0 {
            targets += 1;
            rig.kill_target();
            sleep(Duration::from_millis(rng.below(200)));
            rig.start_target();
        } else {
            hosts += 1;
            ends.extend(rig.next_host());
        }
    }
    rig.go_on();
    ends.extend(rig.next_host());
    let (written, flushed) = (rig.model.written, rig.model.flushes);
    eprintln!(
        "{kills} kills: {targets} of the target, {hosts} of the host; {written} writes, {flushed} flushes; {} hosts \
         ended by themselves {ends:?}",
        ends.len()
    );
    assert!(flushed > 0 && written > flushed, "it made no progress");
    for end in &ends {
        assert!(!end.starts_with("wrong"), "{end}");
    }
}
