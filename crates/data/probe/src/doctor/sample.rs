//! The file that is read if the path is a folder: a temporary one or, if none can be written, an existing one.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use straightway_core::{Error, Result, random::Seed};

/// The length of the temporary file.
pub(super) const FILE_BYTES: usize = 16 << 20;
/// The maximum number of files that are considered.
const FILES_MAX: usize = 1000;

/// Writes a file of incompressible bytes, removed on drop.
pub(super) fn write_sample(folder: &Path) -> Result<tempfile::NamedTempFile> {
    let failed = |e| Error::os("write a sample in", folder.display(), e);
    let mut sample = tempfile::Builder::new()
        .prefix(".straightway-doctor-")
        .tempfile_in(folder)
        .map_err(failed)?;
    let bytes = Seed::default().bytes(FILE_BYTES);
    sample.write_all(&bytes).map_err(failed)?;
    sample.as_file().sync_all().map_err(failed)?;
    Ok(sample)
}

/// The largest file of a folder, for folders that cannot be written to.
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
