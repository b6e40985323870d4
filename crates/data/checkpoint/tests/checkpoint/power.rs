//! Power loss: unsynced writes may be lost or reordered.
//!
//! A child saves and prunes under strace, which records every system call that changes files. The record is replayed
//! into a model of a file system that tracks what is durable. Power is cut after every call, with several seeds, each
//! of which selects other unsynced writes and names that survive. The result is written to a real disk and read.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use straightway_checkpoint::{CheckpointSaver, Rank, SaverOptions, Steps};
use straightway_io::{Executor, Settings, settings::DriveEngine};
use straightway_weights::Dtype;

use crate::fixture::{State, assert_holds, keep_last, noise, options, save, settings};

/// The environment variable with the folder, which makes this process a child.
const FOLDER: &str = "STRAIGHTWAY_POWER_FOLDER";

/// The number of power cuts after each call, each with another seed.
const SEEDS: u64 = 3;

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// Calls that change files. Those with a question mark do not exist on every architecture.
const CALLS: &str = "?open,openat,?mkdir,mkdirat,?rename,?renameat,renameat2,?unlink,unlinkat,\
                     ?rmdir,write,pwrite64,ftruncate,fsync,fdatasync,syncfs,close";

fn state(step: u64) -> State {
    let mut state = State::of(1, &[("same", Dtype::U8, &[5000]), ("new", Dtype::U8, &[300])]);
    state.tensors[1].bytes = noise(step, 300);
    state
}

#[test]
#[ignore = "it runs as a child of another test"]
fn child() {
    let folder = std::env::var_os(FOLDER).expect("set by the test that starts it");
    let folder = PathBuf::from(folder);
    // With plain system calls, which strace records.
    let plain = Settings {
        engine: DriveEngine::Pool,
        ..settings()
    };
    let executor = std::sync::Arc::new(Executor::new(plain).unwrap());
    let store = Steps::open(&folder).unwrap();
    let mut log = fs::File::create(folder.join("log")).unwrap();
    for step in 1..=4 {
        let options = SaverOptions {
            incremental: step < 3,
            parity: usize::from(step == 3),
            ..options()
        };
        let alone = Rank { rank: 0, world: 1 };
        let run = format!("run{step}");
        let mut saver =
            CheckpointSaver::new(store.clone(), alone, &run, std::sync::Arc::clone(&executor), options).unwrap();
        save(&mut saver, step, &state(step)).unwrap();
        // In one call, which is one line of the record.
        log.write_all(format!("committed {step}").as_bytes()).unwrap();
        if step == 4 {
            log.write_all(b"pruning").unwrap();
            let retention = keep_last(1);
            store.prune(&retention).unwrap();
        }
    }
}

/// A file or folder: its current and its durable contents.
#[derive(Clone, Debug, Default)]
struct Inode {
    is_folder: bool,
    bytes: Vec<u8>,
    durable: Vec<u8>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the folder was synced. Each is atomic.
    pending: Vec<Vec<(String, Option<usize>)>>,
}

/// A model of a file system that tracks what is durable.
#[derive(Clone, Debug)]
struct Disk {
    inodes: Vec<Inode>,
    root: String,
    open: HashMap<i64, usize>,
}

impl Disk {
    fn new(root: &Path) -> Self {
        let folder = Inode {
            is_folder: true,
            ..Inode::default()
        };
        Self {
            inodes: vec![folder],
            root: root.display().to_string(),
            open: HashMap::new(),
        }
    }

    /// The folder and the last name of a path, which may begin in an open folder; `None` if it is outside the model.
    fn split(&self, from: Option<usize>, path: &str) -> Option<(usize, String)> {
        let (mut at, rest) = match from {
            Some(folder) if !path.starts_with('/') => (folder, path),
            _ => (0, path.strip_prefix(&self.root)?.trim_matches('/')),
        };
        let (folders, name) = rest.rsplit_once('/').unwrap_or(("", rest));
        for folder in folders.split('/').filter(|f| !f.is_empty()) {
            at = *self.inodes[at].names.get(folder)?;
        }
        Some((at, name.to_owned()))
    }

    fn find(&self, from: Option<usize>, path: &str) -> Option<usize> {
        let (folder, name) = self.split(from, path)?;
        if matches!(name.as_str(), "" | ".") {
            return Some(folder);
        }
        self.inodes[folder].names.get(&name).copied()
    }

    /// Changes names of one folder atomically.
    fn change(&mut self, folder: usize, change: Vec<(String, Option<usize>)>) {
        let inode = &mut self.inodes[folder];
        apply(&mut inode.names, &change);
        inode.pending.push(change);
    }

    fn make(&mut self, from: Option<usize>, path: &str, is_folder: bool) -> usize {
        let (folder, name) = self.split(from, path).unwrap();
        self.inodes.push(Inode {
            is_folder,
            ..Inode::default()
        });
        let number = self.inodes.len() - 1;
        self.change(folder, vec![(name, Some(number))]);
        number
    }

    fn write(&mut self, inode: usize, offset: usize, bytes: &[u8]) {
        let old = &mut self.inodes[inode].bytes;
        old.resize(old.len().max(offset + bytes.len()), 0);
        old[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn sync(&mut self, inode: usize) {
        let inode = &mut self.inodes[inode];
        inode.durable.clone_from(&inode.bytes);
        inode.durable_names.clone_from(&inode.names);
        inode.pending.clear();
    }

    fn rename(&mut self, from: Option<(usize, String)>, to: Option<(usize, String)>) {
        let (Some((folder, old)), Some((target, new))) = (from, to) else {
            return;
        };
        assert_eq!(folder, target, "renames stay in one folder");
        let inode = self.inodes[folder].names[&old];
        self.change(folder, vec![(old, None), (new, Some(inode))]);
    }

    fn remove(&mut self, folder: usize, name: String) {
        self.change(folder, vec![(name, None)]);
    }

    /// Writes what survives a power loss to `target`.
    fn cut(&self, target: &Path, inode: usize, luck: &mut Luck) {
        let inode = &self.inodes[inode];
        if !inode.is_folder {
            fs::write(target, luck.mix(&inode.durable, &inode.bytes)).unwrap();
            return;
        }
        fs::create_dir_all(target).unwrap();
        let mut names = inode.durable_names.clone();
        for change in inode.pending.iter().filter(|_| luck.strikes()) {
            apply(&mut names, change);
        }
        for (name, number) in names {
            self.cut(&target.join(name), number, luck);
        }
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &[(String, Option<usize>)]) {
    for (name, inode) in change {
        match inode {
            Some(inode) => names.insert(name.clone(), *inode),
            None => names.remove(name),
        };
    }
}

/// The random choice of what survives.
struct Luck {
    bytes: std::vec::IntoIter<u8>,
}

impl Luck {
    fn new(seed: u64) -> Self {
        Self {
            bytes: noise(seed, 1 << 16).into_iter(),
        }
    }

    fn strikes(&mut self) -> bool {
        self.bytes.next().unwrap_or(0).is_multiple_of(2)
    }

    /// The old or the new bytes, sector by sector, with the old or the new length.
    fn mix(&mut self, old: &[u8], new: &[u8]) -> Vec<u8> {
        if old == new {
            return old.to_vec();
        }
        let length = if self.strikes() { old.len() } else { new.len() };
        let mut mixed = vec![0; length];
        for (number, sector) in mixed.chunks_mut(SECTOR).enumerate() {
            let source = if self.strikes() { old } else { new };
            let start = (number * SECTOR).min(source.len());
            let bytes = &source[start..source.len().min(start + sector.len())];
            sector[..bytes.len()].copy_from_slice(bytes);
        }
        mixed
    }
}

/// Complete lines of a trace: a call that was interrupted by another is joined at its end. A close is placed at its
/// start, because another thread may get the same descriptor before it ends.
fn calls(trace: &str) -> Vec<String> {
    let mut half: HashMap<&str, String> = HashMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let (process, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        if let Some(start) = call.strip_suffix(" <unfinished ...>") {
            if start.starts_with("close(") {
                calls.push(format!("{start}) = 0"));
            } else {
                half.insert(process, start.to_owned());
            }
        } else if let Some((_, rest)) = call.split_once(" resumed>") {
            calls.extend(half.remove(process).map(|start| start + rest));
        } else {
            calls.push(call.to_owned());
        }
    }
    calls
}

#[test]
fn a_descriptor_that_is_reused_while_its_close_runs_stays_open() {
    let trace = "1 close(5 <unfinished ...>\n2 openat(3, \"x\", O_RDONLY) = 5\n1 <... close resumed>) = 0\n\
                 1 pwrite64(5, \"a\", 1, 0 <unfinished ...>\n2 fsync(5) = 0\n1 <... pwrite64 resumed>) = 1\n";
    assert_eq!(
        calls(trace),
        [
            "close(5) = 0",
            "openat(3, \"x\", O_RDONLY) = 5",
            "fsync(5) = 0",
            "pwrite64(5, \"a\", 1, 0) = 1"
        ]
    );
}

/// Decodes a string of strace, which is in hexadecimal.
fn text(argument: &str) -> Vec<u8> {
    let digits = argument.trim().trim_matches('"').split("\\x").skip(1);
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn path(argument: &str) -> String {
    String::from_utf8(text(argument)).unwrap()
}

/// Replays one call into the model. Returns the message of the child, if the call was one.
fn play(disk: &mut Disk, call: &str) -> Option<String> {
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments: Vec<_> = arguments.trim().trim_end_matches(')').split(", ").collect();
    let result: i64 = result.split(' ').next()?.parse().ok()?;
    if result < 0 {
        return None;
    }
    let number = |at: usize| arguments[at].trim().parse::<i64>().unwrap_or(-1);
    let file = |disk: &Disk, at: usize| disk.open.get(&number(at)).copied();
    match name {
        "open" | "openat" => {
            let at = usize::from(name == "openat");
            let path = path(arguments[at]);
            let from = if at == 1 { file(disk, 0) } else { None };
            disk.open.remove(&result);
            disk.split(from, &path)?;
            let inode = match disk.find(from, &path) {
                Some(inode) => inode,
                None => disk.make(from, &path, false),
            };
            if arguments[at + 1].contains("O_TRUNC") {
                disk.inodes[inode].bytes.clear();
            }
            disk.open.insert(result, inode);
        }
        "close" => drop(disk.open.remove(&number(0))),
        "mkdir" | "mkdirat" => {
            let at = usize::from(name == "mkdirat");
            let from = if at == 1 { file(disk, 0) } else { None };
            let path = path(arguments[at]);
            disk.split(from, &path)?;
            disk.make(from, &path, true);
        }
        "rename" => {
            let from = disk.split(None, &path(arguments[0]));
            disk.rename(from, disk.split(None, &path(arguments[1])));
        }
        "renameat" | "renameat2" => {
            let from = disk.split(file(disk, 0), &path(arguments[1]));
            disk.rename(from, disk.split(file(disk, 2), &path(arguments[3])));
        }
        "unlink" | "rmdir" => {
            let (folder, name) = disk.split(None, &path(arguments[0]))?;
            disk.remove(folder, name);
        }
        "unlinkat" => {
            let (folder, name) = disk.split(file(disk, 0), &path(arguments[1]))?;
            disk.remove(folder, name);
        }
        "write" => {
            let inode = file(disk, 0)?;
            let bytes = text(arguments[1]);
            if disk.find(None, &format!("{}/log", disk.root)) == Some(inode) {
                return Some(String::from_utf8(bytes).unwrap());
            }
            let end = disk.inodes[inode].bytes.len();
            disk.write(inode, end, &bytes);
        }
        "pwrite64" => {
            let offset = usize::try_from(number(3)).unwrap();
            disk.write(file(disk, 0)?, offset, &text(arguments[1]));
        }
        "ftruncate" => {
            let length = usize::try_from(number(1)).unwrap();
            let inode = file(disk, 0)?;
            disk.inodes[inode].bytes.resize(length, 0);
        }
        "fsync" | "fdatasync" => {
            let inode = file(disk, 0)?;
            disk.sync(inode);
        }
        "syncfs" => (0..disk.inodes.len()).for_each(|inode| disk.sync(inode)),
        _ => {}
    }
    None
}

/// Whether strace can trace a process here.
fn has_strace() -> bool {
    let traced = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    traced.is_ok_and(|output| output.status.success())
}

/// Runs the child under strace, and returns the record.
fn record(folder: &Path) -> String {
    let trace = folder.parent().unwrap().join("trace");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-xx", "-s", "100000", "-e", "signal=none", "-e"])
        .arg(format!("trace={CALLS}"))
        .arg("-o")
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "power::child", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(trace).unwrap()
}

#[test]
fn a_power_loss_at_any_moment_keeps_committed_steps_whole_and_lists_no_partial_one() {
    if !has_strace() {
        eprintln!("skipped: strace cannot be run here");
        return;
    }
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let folder = home.path().join("run");
    fs::create_dir(&folder).unwrap();
    let trace = record(&folder);
    let mut disk = Disk::new(&folder);
    let (mut committed, mut is_pruning, mut cuts) = (Vec::new(), false, 0);
    for (moment, call) in calls(&trace).iter().enumerate() {
        if let Some(told) = play(&mut disk, call) {
            match told.trim().strip_prefix("committed ") {
                Some(step) => committed.push(step.parse::<u64>().unwrap()),
                None => is_pruning = true,
            }
        }
        for seed in 0..SEEDS {
            let left = home.path().join("left");
            disk.cut(&left, 0, &mut Luck::new(moment as u64 * SEEDS + seed));
            let store = Steps::open(&left).unwrap();
            let steps = store.steps().unwrap();
            for &step in &steps {
                assert_holds(&left, step, &state(step));
            }
            let must_be_there = if is_pruning { &[4][..] } else { &committed[..] };
            let lost: Vec<_> = must_be_there.iter().filter(|s| !steps.contains(s)).collect();
            assert!(lost.is_empty(), "after `{call:.80}` steps {lost:?} are gone");
            fs::remove_dir_all(&left).unwrap();
            cuts += 1;
        }
    }
    assert_eq!(committed, [1, 2, 3, 4], "the record is whole");
    eprintln!("{cuts} losses of power");
}
