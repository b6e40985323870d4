//! Safe reads of small files in folders that others can write to, where a name may refer to anything.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use straightway_core::{Error, ErrorKind, Result};

/// Opens a regular file for reading. Anything else is an error. It does not wait for a pipe.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // The open file is checked, not its name: the name may refer to another file by now.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Reads all bytes of a file. More than `bytes_max` is an error. `bytes` is the expected length, `path` the name for
/// errors.
pub(crate) fn read_all(file: impl Read, bytes: u64, bytes_max: u64, path: &Path) -> Result<Vec<u8>> {
    // One byte more than expected: the read that finds the end needs room.
    let room = usize::try_from(bytes.min(bytes_max)).map_or(0, |bytes| bytes + 1);
    let mut bytes = Vec::with_capacity(room);
    let read = file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| Error::os("read", path.display(), e))?;
    if bytes.len() as u64 > bytes_max {
        let why = format!("it is longer than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::Corrupt, "read", path.display(), why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_pipes_do_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        for other in [&path, folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open_plain(other).unwrap_err().to_string(), "it is not a regular file");
        }
        std::fs::write(folder.path().join("file"), "x").unwrap();
        assert!(open_plain(&folder.path().join("file")).is_ok());
    }
}
