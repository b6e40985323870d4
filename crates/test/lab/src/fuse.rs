//! A FUSE file system in memory: one folder of files, whose syncs can fail or hang, and whose reads can hang.
//!
//! It speaks the kernel's protocol (`linux/fuse.h`, version 7.31) on `/dev/fuse`, so that tests need no library. It
//! needs root, and ends with its owner: once nobody serves it, the kernel fails every request.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, FdFlags, fcntl_setfd},
};

const ROOT: u64 = 1;
const FOLDER_MODE: u32 = 0o040_777;
const FILE_MODE: u32 = 0o100_000;
const WRITE_BYTES_MAX: u32 = 128 << 10;
const BLOCK_BYTES: u32 = 4096;
const HEAD_BYTES: usize = 40;

/// How often the server checks whether it has to end, in nanoseconds.
const TICK_NS: i64 = 20_000_000;

/// What goes wrong.
#[derive(Debug, Default)]
pub struct FuseFaults {
    /// Every sync fails with EIO.
    pub fail_syncs: AtomicBool,
    /// Reads are not answered until a signal interrupts them.
    pub hang_reads: AtomicBool,
    /// Syncs are not answered until a signal interrupts them.
    pub hang_syncs: AtomicBool,
    /// The number of requests to sync a file.
    pub syncs: AtomicU64,
}

/// A mounted file system. It is unmounted when dropped.
#[derive(Debug)]
pub struct FuseServer {
    folder: PathBuf,
    /// Its faults.
    pub faults: Arc<FuseFaults>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FuseServer {
    /// Mounts it at an existing folder. An error is the reason why that is not possible here.
    pub fn mount(folder: &Path) -> Result<Self, String> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|e| format!("/dev/fuse: {e}"))?;
        // `mount` inherits the descriptor, and no other program does.
        let inherit = |flags| fcntl_setfd(&device, flags).map_err(|e| e.to_string());
        inherit(FdFlags::empty())?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let mounted = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", &options, "straightway-test"])
            .arg(folder)
            .output();
        inherit(FdFlags::CLOEXEC)?;
        let mounted = mounted.map_err(|e| format!("mount: {e}"))?;
        if !mounted.status.success() {
            return Err(format!("mount: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
        }
        let (faults, is_over) = (Arc::<FuseFaults>::default(), Arc::<AtomicBool>::default());
        let served = Served {
            device,
            faults: Arc::clone(&faults),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            held: BTreeSet::new(),
        };
        let ends = Arc::clone(&is_over);
        Ok(Self {
            folder: folder.to_owned(),
            faults,
            is_over,
            thread: Some(std::thread::spawn(move || served.serve(&ends))),
        })
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
        self.is_over.store(true, Ordering::Relaxed);
        // The device is closed at the thread's end. Requests that were not answered then fail.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A file.
#[derive(Debug)]
struct Node {
    mode: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Served {
    device: File,
    faults: Arc<FuseFaults>,
    names: BTreeMap<Vec<u8>, u64>,
    files: BTreeMap<u64, Node>,
    /// Reads and syncs that hang.
    held: BTreeSet<u64>,
}

impl Served {
    fn serve(mut self, is_over: &AtomicBool) {
        let mut buffer = vec![0; WRITE_BYTES_MAX as usize + 4096];
        while !is_over.load(Ordering::Relaxed) {
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: TICK_NS,
            };
            let mut ready = [PollFd::new(&self.device, PollFlags::IN)];
            if !matches!(poll(&mut ready, Some(&wait)), Ok(1)) {
                continue;
            }
            match self.device.read(&mut buffer) {
                Ok(bytes) if bytes >= HEAD_BYTES => self.run(&buffer[..bytes]),
                // The request was withdrawn.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Interrupted) => {}
                // It was unmounted.
                _ => return,
            }
        }
    }

    fn run(&mut self, request: &[u8]) {
        let (operation, number, node) = (int(request, 4), long(request, 8), long(request, 16));
        let body = &request[HEAD_BYTES..];
        match operation {
            // READ.
            15 if self.faults.hang_reads.load(Ordering::Relaxed) => drop(self.held.insert(number)),
            // FSYNC.
            20 if self.faults.hang_syncs.load(Ordering::Relaxed) => {
                self.faults.syncs.fetch_add(1, Ordering::Relaxed);
                self.held.insert(number);
            }
            // INTERRUPT.
            36 if self.held.remove(&long(body, 0)) => self.reply(long(body, 0), Err(Errno::INTR)),
            // INTERRUPT, FORGET and BATCH_FORGET have no answer.
            2 | 36 | 42 => {}
            _ => {
                let answer = self.answer(operation, node, body);
                self.reply(number, answer);
            }
        }
    }

    fn reply(&mut self, number: u64, answer: Result<Vec<u8>, Errno>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).expect("answers are short");
        let answer = [
            &length.to_ne_bytes(),
            &error.to_ne_bytes()[..],
            &number.to_ne_bytes(),
            &body,
        ]
        .concat();
        // The program that asked may be gone.
        let _ = self.device.write(&answer);
    }

    fn answer(&mut self, operation: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        match operation {
            // LOOKUP, GETATTR and SETATTR.
            1 => self.named(name(body)).map(|node| self.entry(node)),
            3 => self
                .attributes(node)
                .map(|attributes| [&[0; 16], &attributes[..]].concat()),
            4 => self.change(node, body),
            // UNLINK and RENAME.
            10 => {
                let removed = self.names.remove(name(body));
                removed.map(|_| Vec::new()).ok_or(Errno::NOENT)
            }
            12 => self.rename(&body[8..]),
            // OPEN and OPENDIR.
            14 | 27 => Ok(vec![0; 16]),
            // READ, WRITE, STATFS and FSYNC.
            15 => self.read(node, body),
            16 => self.write(node, body),
            17 => Ok(room()),
            20 => {
                self.faults.syncs.fetch_add(1, Ordering::Relaxed);
                if self.faults.fail_syncs.load(Ordering::Relaxed) {
                    return Err(Errno::IO);
                }
                Ok(Vec::new())
            }
            // INIT and READDIR.
            26 => Ok(greeting()),
            28 => Ok(self.listing(body)),
            // RELEASE, FLUSH, RELEASEDIR, FSYNCDIR and DESTROY.
            18 | 25 | 29 | 30 | 38 => Ok(Vec::new()),
            // CREATE and RENAME2.
            35 => Ok(self.create(int(body, 4), name(&body[16..]))),
            45 => self.rename(&body[16..]),
            _ => Err(Errno::NOSYS),
        }
    }

    fn named(&self, name: &[u8]) -> Result<u64, Errno> {
        self.names.get(name).copied().ok_or(Errno::NOENT)
    }

    fn create(&mut self, mode: u32, name: &[u8]) -> Vec<u8> {
        let node = ROOT + 1 + self.files.len() as u64;
        let mode = FILE_MODE | (mode & 0o777);
        self.files.insert(
            node,
            Node {
                mode,
                bytes: Vec::new(),
            },
        );
        self.names.insert(name.to_vec(), node);
        [&self.entry(node)[..], &[0; 16]].concat()
    }

    fn rename(&mut self, names: &[u8]) -> Result<Vec<u8>, Errno> {
        let from = name(names);
        let to = name(&names[from.len() + 1..]);
        let node = self.names.remove(from).ok_or(Errno::NOENT)?;
        self.names.insert(to.to_vec(), node);
        Ok(Vec::new())
    }

    fn change(&mut self, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let valid = int(body, 0);
        if let Some(file) = self.files.get_mut(&node) {
            if valid & 1 != 0 {
                file.mode = FILE_MODE | (int(body, 68) & 0o777);
            }
            if valid & 8 != 0 {
                file.bytes.resize(usize_of(long(body, 16)), 0);
            }
        }
        self.attributes(node)
            .map(|attributes| [&[0; 16], &attributes[..]].concat())
    }

    fn read(&self, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let bytes = &self.files.get(&node).ok_or(Errno::NOENT)?.bytes;
        let start = usize_of(long(body, 8)).min(bytes.len());
        let end = (start + int(body, 16) as usize).min(bytes.len());
        Ok(bytes[start..end].to_vec())
    }

    fn write(&mut self, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let bytes = &mut self.files.get_mut(&node).ok_or(Errno::NOENT)?.bytes;
        let (start, data) = (usize_of(long(body, 8)), &body[40..]);
        let end = start + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(data);
        Ok([int(body, 16).to_ne_bytes(), [0; 4]].concat())
    }

    /// The entry of a node: its number, and its attributes. Nothing is cached.
    fn entry(&self, node: u64) -> Vec<u8> {
        let attributes = self.attributes(node).expect("a named node exists");
        [&node.to_ne_bytes()[..], &[0; 32], &attributes].concat()
    }

    fn attributes(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let (mode, bytes) = match self.files.get(&node) {
            _ if node == ROOT => (FOLDER_MODE, 0),
            Some(file) => (file.mode, file.bytes.len() as u64),
            None => return Err(Errno::NOENT),
        };
        let longs = [node, bytes, bytes.div_ceil(512), 0, 0, 0]
            .map(u64::to_ne_bytes)
            .concat();
        let ints = [0, 0, 0, mode, 1, 0, 0, 0, BLOCK_BYTES, 0]
            .map(u32::to_ne_bytes)
            .concat();
        Ok([longs, ints].concat())
    }

    fn listing(&self, body: &[u8]) -> Vec<u8> {
        let mut entries = Vec::new();
        for (next, (name, node)) in (1_u64..).zip(&self.names).skip(usize_of(long(body, 8))) {
            let length = u32::try_from(name.len()).expect("names are short");
            let head = [node.to_ne_bytes(), next.to_ne_bytes()].concat();
            let entry = [&head[..], &length.to_ne_bytes(), &8_u32.to_ne_bytes(), name].concat();
            let padding = entry.len().next_multiple_of(8) - entry.len();
            if entries.len() + entry.len() + padding > int(body, 16) as usize {
                break;
            }
            entries.extend(entry);
            entries.extend(vec![0; padding]);
        }
        entries
    }
}

/// The answer to INIT: version 7.31, without optional features.
fn greeting() -> Vec<u8> {
    let front = [7, 31, WRITE_BYTES_MAX, 0, 0, WRITE_BYTES_MAX, 1]
        .map(u32::to_ne_bytes)
        .concat();
    [front, vec![0; 36]].concat()
}

/// The answer to STATFS: 1 GiB, all of it free.
fn room() -> Vec<u8> {
    let blocks = (1 << 30) / u64::from(BLOCK_BYTES);
    let longs = [blocks, blocks, blocks, 1000, 1000].map(u64::to_ne_bytes).concat();
    let ints = [BLOCK_BYTES, 255, BLOCK_BYTES, 0, 0, 0, 0, 0, 0, 0]
        .map(u32::to_ne_bytes)
        .concat();
    [longs, ints].concat()
}

/// The text up to the first zero byte.
fn name(body: &[u8]) -> &[u8] {
    body.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("test files are short")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_written_listed_renamed_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let server = match FuseServer::mount(folder.path()) {
            Ok(server) => server,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let at = |name: &str| folder.path().join(name);
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(at("a"), &bytes).expect("it is writable");
        fs::rename(at("a"), at("b")).expect("it can be renamed");
        assert_eq!(fs::read(at("b")).expect("it is readable"), bytes);
        assert!(fs::read(at("a")).is_err());
        let names: Vec<_> = fs::read_dir(folder.path()).expect("a listing").flatten().collect();
        assert_eq!(names.len(), 1);
        File::open(at("b"))
            .expect("it is there")
            .sync_all()
            .expect("it is synced");
        assert_eq!(server.faults.syncs.load(Ordering::Relaxed), 1);
        server.faults.fail_syncs.store(true, Ordering::Relaxed);
        assert!(File::open(at("b")).expect("it is there").sync_all().is_err());
        fs::remove_file(at("b")).expect("it can be removed");
        drop(server);
        assert_eq!(fs::read_dir(folder.path()).expect("a listing").count(), 0);
    }
}
