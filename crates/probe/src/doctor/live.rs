//! What real transfers did: values measured elsewhere, judged here.
//!
//! The checks of the other layers say what should work. Only a transfer whose bytes were counted
//! says what does, and its word is final: with direct proven the verdict is direct, whatever else
//! was found. The read into host memory is made by [`HostRead::measure`]; the transfer to a GPU
//! comes in as a [`LiveProbe`] from whoever has an engine for it.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags},
    io::Errno,
};
use serde::Serialize;
use straightway_core::{Bytes, Error, Rate, Reason, Receipt, Result, Route, receipt::RouteBytes};
use straightway_sys::{Uring, root::Root};

use super::{
    check::{ADVICE, Check, DIRECT, Layer, Outcome, Way, list},
    facts::Facts,
};

/// How much of a file is read: enough for a drive to reach its speed.
const READ_BYTES: u64 = 64 << 20;
/// The file written where PATH is a folder.
const FILE_BYTES: usize = 16 << 20;
/// One read: the knee on the machines measured for the ring.
const CHUNK_BYTES: usize = 4 << 20;
/// How many files of a folder are looked at for one to read.
const FILES_MAX: usize = 1000;
/// What every file system that takes `O_DIRECT` accepts.
const ALIGN_BYTES: usize = 4096;
/// No probe takes longer; a hung file server must not hang the doctor for ever between two reads.
const TIME_MAX: Duration = Duration::from_secs(3);

/// A transfer from the path into GPU memory, as it went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveProbe {
    /// Which bytes took which route, and why.
    pub routes: Vec<RouteBytes>,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<&Receipt> for LiveProbe {
    fn from(receipt: &Receipt) -> Self {
        Self {
            routes: receipt.routes.clone(),
            seconds: receipt.seconds,
            error: None,
        }
    }
}

impl LiveProbe {
    /// The way that all bytes are proven to have gone by, straight into GPU memory.
    pub fn proof(&self) -> Option<Way> {
        let (first, rest) = self.routes.split_first()?;
        let way = match (first.route, first.reason) {
            (Route::Direct, Reason::ProvenNvidiaFs) => Way::NvidiaFs,
            (Route::Direct, Reason::ProvenP2pdma) => Way::P2pDma,
            _ => return None,
        };
        let is_same =
            |other: &RouteBytes| (other.route, other.reason) == (first.route, first.reason);
        let is_whole = self.error.is_none() && self.bytes() > 0 && rest.iter().all(is_same);
        is_whole.then_some(way)
    }

    fn bytes(&self) -> u64 {
        self.routes.iter().map(|part| part.bytes).sum()
    }
}

/// A read of the path into host memory by `O_DIRECT`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostRead {
    /// How much was read.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// The alignment of memory that the kernel asks for, where it says.
    pub memory_align_bytes: Option<u32>,
    /// The alignment of offsets that the kernel asks for, where it says.
    pub offset_align_bytes: Option<u32>,
    /// What else is true of the file: `compressed`, `encrypted`, `verity`, `dax`.
    pub attributes: Vec<&'static str>,
    /// Why it could not be read so, where it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the file system refused `O_DIRECT` itself.
    pub is_refused: bool,
}

/// What was measured on the machine itself; empty for a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Whether a ring could be set up, or why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_uring: Option<std::result::Result<(), String>>,
    /// The read into host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRead>,
    /// The transfer into GPU memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<LiveProbe>,
    /// The pause frames that the drivers of network interfaces have counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<PauseCount>,
}

/// A counter of pause frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PauseCount {
    /// The interface, such as `eth2`.
    pub interface: String,
    /// The driver's name for the counter, such as `rx_prio3_pause`.
    pub counter: String,
    /// How many since boot.
    pub frames: u64,
}

impl Measured {
    /// Measures this machine.
    pub fn here(path: &Path) -> Self {
        // No file tells whether a container forbids the system call: only asking for a ring does.
        let ring = Uring::new(1).map(drop);
        Self {
            io_uring: Some(ring.map_err(|e| e.to_string())),
            host: Some(HostRead::measure(path)),
            gpu: LiveProbe::measure(path),
            pauses: count_pauses(),
        }
    }
}

fn count_pauses() -> Vec<PauseCount> {
    let mut pauses = Vec::new();
    for interface in Root::machine().list("/sys/class/net") {
        let counters = straightway_sys::ethtool::counters(&interface).unwrap_or_default();
        // Beside frames, drivers count how long a pause lasted and how often one began.
        let is_frames = |name: &str| {
            name.contains("pause") && !name.contains("duration") && !name.contains("transition")
        };
        for (counter, frames) in counters.into_iter().filter(|(name, _)| is_frames(name)) {
            let interface = interface.clone();
            pauses.push(PauseCount {
                interface,
                counter,
                frames,
            });
        }
    }
    pauses
}

impl HostRead {
    /// Reads the file, or one written for the purpose where `path` is a folder.
    pub fn measure(path: &Path) -> Self {
        let mut read = Self::default();
        let outcome = if path.is_dir() {
            match (write_sample(path), largest_file(path)) {
                (Ok(sample), _) => read.fill(sample.path()),
                (Err(_), Some(file)) => read.fill(&file),
                (Err(e), None) => Err(e),
            }
        } else {
            read.fill(path)
        };
        if let Err(error) = outcome {
            let refusals = [Errno::INVAL, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
            read.is_refused = refusals.contains(&error.os_code());
            read.error = Some(error.to_string());
        }
        read
    }

    /// Bytes per second.
    pub fn rate(&self) -> Rate {
        Rate(self.bytes as f64 / self.seconds.max(f64::MIN_POSITIVE))
    }

    fn fill(&mut self, path: &Path) -> Result<()> {
        self.describe(path);
        let failed = |e: io::Error| Error::os("read by O_DIRECT", path.display(), e);
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file =
            File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
        let mut memory = vec![0; CHUNK_BYTES + ALIGN_BYTES];
        let skip = memory.as_ptr().align_offset(ALIGN_BYTES);
        let buffer = &mut memory[skip..skip + CHUNK_BYTES];
        let start = Instant::now();
        while self.bytes < READ_BYTES && start.elapsed() < TIME_MAX {
            match file.read_at(buffer, self.bytes).map_err(failed)? {
                0 => break,
                count => self.bytes += count as u64,
            }
        }
        self.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Asks the kernel about the file; an old one knows less, and then less is said.
    fn describe(&mut self, path: &Path) {
        let flags = StatxFlags::DIOALIGN | StatxFlags::BASIC_STATS;
        let Ok(stat) = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), flags) else {
            return;
        };
        if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
            self.memory_align_bytes = Some(stat.stx_dio_mem_align);
            self.offset_align_bytes = Some(stat.stx_dio_offset_align);
        }
        self.attributes = [
            (StatxAttributes::COMPRESSED, "compressed"),
            (StatxAttributes::ENCRYPTED, "encrypted"),
            (StatxAttributes::VERITY, "verity"),
            (StatxAttributes::DAX, "dax"),
        ]
        .into_iter()
        .filter(|(flag, _)| stat.stx_attributes.contains(*flag))
        .map(|(_, name)| name)
        .collect();
    }
}

/// A file with bytes that no drive can shorten, removed when dropped.
pub(super) fn write_sample(folder: &Path) -> Result<tempfile::NamedTempFile> {
    let failed = |e| Error::os("write a sample in", folder.display(), e);
    let mut sample = tempfile::Builder::new()
        .prefix(".straightway-doctor-")
        .tempfile_in(folder)
        .map_err(failed)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        // xorshift: any sequence without repeats does.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(FILE_BYTES / 8)
    .flatten()
    .collect();
    sample.write_all(&bytes).map_err(failed)?;
    sample.as_file().sync_all().map_err(failed)?;
    Ok(sample)
}

/// What to read in a folder that cannot be written to.
pub(super) fn largest_file(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.take(FILES_MAX);
    let files = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((metadata.len(), entry.path()))
    });
    files.max().map(|(_, path)| path)
}

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "live.host",
        layer: Layer::Live,
        title: "host read",
        ways: ADVICE,
        why: "a real O_DIRECT read shows what the drive gives before any GPU is involved",
        mend: "read the error; a file system without O_DIRECT is read through the page cache",
        look: look_host,
    },
    Check {
        id: "live.gpu",
        layer: Layer::Live,
        title: "GPU transfer",
        ways: DIRECT,
        why: "cuFile falls back to host memory without a word; only its own counters during a real \
              transfer prove which path the bytes took",
        mend: "mend the failures above, then run the doctor again",
        look: look_gpu,
    },
];

fn look_host(facts: &Facts<'_>) -> Outcome {
    let Some(read) = &facts.measured.host else {
        return Outcome::skip("not run: this is a capture, not the machine");
    };
    if let Some(error) = &read.error {
        return Outcome::warn(error.clone());
    }
    if read.bytes == 0 {
        return Outcome::skip("the file is empty");
    }
    let (bytes, rate) = (Bytes(read.bytes), read.rate());
    if facts.is_memory() {
        Outcome::pass(format!("{bytes} from memory at {rate}, by one thread"))
    } else {
        Outcome::pass(format!("{bytes} by O_DIRECT at {rate}, one read at a time"))
    }
}

fn look_gpu(facts: &Facts<'_>) -> Outcome {
    let Some(probe) = &facts.measured.gpu else {
        return Outcome::skip("not run");
    };
    if let Some(error) = &probe.error {
        return Outcome::fail(error.clone());
    }
    let rate = Rate(probe.bytes() as f64 / probe.seconds.max(f64::MIN_POSITIVE));
    let parts = probe.routes.iter().map(|part| {
        let bytes = Bytes(part.bytes);
        format!("{bytes} {} ({})", part.route, part.reason)
    });
    let seen = format!("{} at {rate}", list(parts));
    match probe.proof() {
        Some(_) => Outcome::pass(seen),
        None => Outcome::fail(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_to_its_end_and_a_folder_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data");
        std::fs::write(&file, vec![7; 3 * 4096 + 5]).unwrap();
        let read = HostRead::measure(&file);
        // tmpfs on an old kernel refuses O_DIRECT; then the error says so.
        assert!(
            read.bytes == 3 * 4096 + 5 || read.error.is_some(),
            "{read:?}"
        );
        let read = HostRead::measure(folder.path());
        assert!(
            read.bytes == FILE_BYTES as u64 || read.error.is_some(),
            "{read:?}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_a_folder_the_largest_file_is_read_and_never_another_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(largest_file(folder.path()), None);
        std::fs::create_dir(folder.path().join("below")).unwrap();
        for (name, len) in [("a", 10), ("b", 30), ("c", 20)] {
            std::fs::write(folder.path().join(name), vec![0; len]).unwrap();
        }
        assert_eq!(largest_file(folder.path()), Some(folder.path().join("b")));
    }

    #[test]
    fn a_missing_path_is_an_error_that_names_it() {
        let error = HostRead::measure(Path::new("/no/such/file")).error.unwrap();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
