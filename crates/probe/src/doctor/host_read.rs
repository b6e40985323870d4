//! A read of the path into host memory by `O_DIRECT`: what the drive gives before any GPU is involved.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags},
    io::Errno,
};
use serde::Serialize;
use straightway_core::{Error, Rate, Result};

use super::sample::{largest_file, write_sample};

/// How much of a file is read: enough for a drive to reach its speed.
const READ_BYTES: u64 = 64 << 20;
/// One read: the knee on the machines measured for the ring.
const CHUNK_BYTES: usize = 4 << 20;
/// What every file system that takes `O_DIRECT` accepts.
const ALIGN_BYTES: usize = 4096;
/// No probe takes longer; a hung file server must not hang the doctor for ever between two reads.
const TIME_MAX: Duration = Duration::from_secs(3);

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

#[cfg(test)]
mod tests {
    use super::{super::sample::FILE_BYTES, *};

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
    fn a_missing_path_is_an_error_that_names_it() {
        let error = HostRead::measure(Path::new("/no/such/file")).error.unwrap();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
