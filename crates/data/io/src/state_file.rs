//! A small text file that keeps facts between runs: the profile, the lessons, the proofs of peer-to-peer DMA.
//!
//! It is read whole, within a limit, and only if it is a regular file. It is replaced as a report is: under a temporary
//! name, then by a rename. Of two processes that replace it at the same time, one wins.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use straightway_core::{Error, Result};
use straightway_sys::plain_file::open_plain;

use crate::ReportFile;

/// A state file: its place and its limits.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    mark: &'static str,
    bytes_max: u64,
}

impl StateFile {
    /// The file at `path`, of at most `bytes_max` bytes. Only a file that is empty or starts with `mark` is replaced.
    pub fn new(path: PathBuf, mark: &'static str, bytes_max: u64) -> Self {
        Self { path, mark, bytes_max }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it. A file that is too long or not UTF-8 is `InvalidData`, one that is not regular `InvalidInput`.
    pub fn read(&self) -> io::Result<String> {
        let mut text = String::new();
        let file = open_plain(&self.path)?;
        file.take(self.bytes_max + 1).read_to_string(&mut text)?;
        if text.len() as u64 > self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
        }
        Ok(text)
    }

    /// Replaces it, and creates its folder if there is none.
    pub fn replace(&self, text: &str) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            let made = fs::create_dir_all(folder);
            made.map_err(|e| Error::os("write", self.path.display(), e))?;
        }
        ReportFile::begin(&self.path, self.mark)?.finish(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_read_within_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFile::new(folder.path().join("a/b/state"), "mark ", 10);
        assert_eq!(state.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        for text in ["mark 1", "mark 23456"] {
            state.replace(text).unwrap();
            assert_eq!(state.read().unwrap(), text);
        }
        let left = fs::read_dir(state.path().parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
        for damaged in [&b"mark 234567"[..], b"\xff"] {
            fs::write(state.path(), damaged).unwrap();
            assert_eq!(state.read().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert!(state.replace("mark 1").is_err(), "it is another kind of file");
    }
}
