//! What is read of a folder: a file written for the purpose, or where that cannot be, one that is there.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use straightway_core::{Error, Result};

/// The file written where PATH is a folder.
pub(super) const FILE_BYTES: usize = 16 << 20;
/// How many files of a folder are looked at for one to read.
const FILES_MAX: usize = 1000;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
