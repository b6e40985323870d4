//! Small files of a known place, read safely: a folder that others may write to may hold anything under any name.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use straightway_core::{Error, Kind, Result};

/// Opens a regular file to read. Anything else is an error; a pipe is not waited for.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // What was opened is asked, not the name: the name may lead to something else by then.
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"))
    }
}

/// All bytes of a file that has at most `bytes_max`, of which about `bytes` are expected. Errors call it `path`.
pub(crate) fn read_all(
    file: impl Read,
    bytes: u64,
    bytes_max: u64,
    path: &Path,
) -> Result<Vec<u8>> {
    // One byte more than it has: the read that finds its end needs room.
    let room = usize::try_from(bytes.min(bytes_max)).map_or(0, |bytes| bytes + 1);
    let mut bytes = Vec::with_capacity(room);
    let read = file
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes);
    read.map_err(|e| Error::os("read", path.display(), e))?;
    if bytes.len() as u64 > bytes_max {
        let why = format!("it is longer than {bytes_max} bytes");
        return Err(Error::new(Kind::Corrupt, "read", path.display(), why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_is_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &path,
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        for other in [&path, folder.path(), Path::new("/dev/zero")] {
            assert_eq!(open_plain(other).unwrap_err().to_string(), "it is no file");
        }
        std::fs::write(folder.path().join("file"), "x").unwrap();
        assert!(open_plain(&folder.path().join("file")).is_ok());
    }
}
