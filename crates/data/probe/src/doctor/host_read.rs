//! A read of the path into host memory by `O_DIRECT`: the rate of the drive without a GPU.

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

/// The number of bytes to read: enough for a drive to reach its full rate.
const READ_BYTES: u64 = 64 << 20;
/// The size of one read: the knee on the machines measured for the ring.
const CHUNK_BYTES: usize = 4 << 20;
/// The alignment that every file system with `O_DIRECT` accepts.
const ALIGN_BYTES: usize = 4096;
/// The time limit of a probe. It is checked between reads, so that a slow file server does not block the doctor.
const TIME_MAX: Duration = Duration::from_secs(3);

/// A read of the path into host memory by `O_DIRECT`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostRead {
    /// The bytes read.
    pub bytes: u64,
    /// The duration.
    pub seconds: f64,
    /// The memory alignment that the kernel requires, if it reports one.
    pub memory_align_bytes: Option<u32>,
    /// The offset alignment that the kernel requires, if it reports one.
    pub offset_align_bytes: Option<u32>,
    /// Attributes of the file: `compressed`, `encrypted`, `verity`, `dax`.
    pub attributes: Vec<&'static str>,
    /// The error, if the read failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the file system refused `O_DIRECT` itself.
    pub is_refused: bool,
}

impl HostRead {
    /// Reads the file or, if `path` is a folder, a temporary file in it.
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
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?);
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

    /// Asks the kernel for the alignment and attributes of the file; an old kernel reports fewer of them.
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
        assert!(read.bytes == 3 * 4096 + 5 || read.error.is_some(), "{read:?}");
        let read = HostRead::measure(folder.path());
        assert!(read.bytes == FILE_BYTES as u64 || read.error.is_some(), "{read:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_path_is_an_error_that_names_it() {
        let error = HostRead::measure(Path::new("/no/such/file")).error.unwrap();
        assert!(error.contains("/no/such/file"), "{error}");
    }
}
