//! Test files, cached or not.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use straightway_core::{Choice, Error, Extent, Move, Receipt, Result, Route};
use straightway_io::{Executor, File, FileDraft, Region};

/// One move of the whole file.
pub(crate) fn whole(file: &File) -> Vec<Move> {
    vec![Move {
        object: 0,
        extent: Extent::new(0, file.bytes()),
        at: 0,
    }]
}

/// Reads moves of `file`. Returns the seconds for planning and moving, and the receipt.
pub(crate) fn read(
    executor: &Executor,
    file: &Arc<File>,
    moves: Vec<Move>,
    region: &Arc<Region>,
    choice: Choice,
) -> Result<(f64, Receipt)> {
    let start = Instant::now();
    let files = vec![Arc::clone(file)];
    let job = executor.read(files, moves, region, choice)?;
    let receipt = job.wait()?;
    Ok((start.elapsed().as_secs_f64(), receipt))
}

/// Writes the whole region to a new file at `path`, and syncs it. Returns the seconds from before the file was created
/// to after the sync, and the receipt.
pub(crate) fn write(executor: &Executor, region: &Arc<Region>, path: &Path, choice: Choice) -> Result<(f64, Receipt)> {
    // The old file's space is freed before the clock starts.
    let _ = fs::remove_file(path);
    let start = Instant::now();
    let draft = FileDraft::new(path, region.bytes())?;
    let files = vec![Arc::clone(draft.file())];
    let moves = whole(draft.file());
    let job = executor.write(region, files, moves, choice)?;
    let receipt = job.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    draft.commit()?;
    Ok((seconds, receipt))
}

/// A file with the pattern. It is written if there is none of that length.
pub(crate) fn file(executor: &Executor, host: &Arc<Region>, path: &Path) -> Result<Arc<File>> {
    if fs::metadata(path).map_or(0, |m| m.len()) != host.bytes() {
        write(executor, host, path, Choice::Auto)?;
    }
    Ok(Arc::new(File::open(path)?))
}

/// Reads all of the file into the page cache.
pub(crate) fn warm(executor: &Executor, file: &Arc<File>, host: &Arc<Region>) -> Result<()> {
    let choice = Choice::Only(Route::Buffered);
    read(executor, file, whole(file), host, choice).map(|_| ())
}

/// Empties the page cache.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    let path = "/proc/sys/vm/drop_caches";
    fs::write(path, "3").map_err(|e| Error::os("drop the page cache by", path, e))
}

/// Writes the udev record of the disk behind `path`, without which cuFile accepts no file on it (error 5027).
pub(crate) fn make_udev_record(path: &Path) -> Result<PathBuf> {
    let device = fs::metadata(path)
        .map_err(|e| Error::os("look at", path.display(), e))?
        .dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let record = PathBuf::from(format!("/run/udev/data/b{major}:{minor}"));
    let written = fs::create_dir_all("/run/udev/data")
        .and_then(|()| fs::write(&record, "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n"));
    written.map_err(|e| Error::os("write", record.display(), e))?;
    Ok(record)
}
