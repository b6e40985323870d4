//! Small files of a known place, read safely: a folder that others may write to may hold anything under any name.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

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
