//! Space on the drive for a file that is being written.
//!
//! A full disk should be an error before any byte is written, so the space of a new file is reserved first. The length
//! of an object on a server is only a claim, however: reserving 5 TiB for it would fill the drive before the first byte
//! was checked. Such a length is compared with the free space, and its space is reserved in steps as bytes arrive.

use std::sync::atomic::Ordering;

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use straightway_core::{Bytes, Error, ErrorKind, Result, extent::up};

use crate::{
    file::{ALL_RESERVED, File, IoPath},
    file_system::{BTRFS, EXT, TMPFS, XFS, file_system_and_free},
};

/// The space that is reserved at a time: few calls, and little to give back if the claim was wrong.
const STEP_BYTES: u64 = 256 << 20;

impl File {
    /// Reserves its space, so that a full disk is an error before any byte is written.
    pub fn reserve(&self) -> Result<()> {
        if self.bytes() == 0 {
            return Ok(());
        }
        match file_system_and_free(self.descriptor(IoPath::PageCache)) {
            // Space is memory there, and reserving it would zero it on one core before all cores write.
            (TMPFS, _) => return Ok(()),
            // These would fill the drive before they fail. Others may compress the file, so that it fits.
            (EXT | XFS | BTRFS, free) => self.check_fits(free)?,
            _ => {}
        }
        self.allocate(0, self.bytes())
    }

    /// Checks that its length, which is a server's claim, does not exceed the free space. The space is reserved by
    /// [`reserve_up_to`](Self::reserve_up_to).
    pub fn reserve_as_written(&self) -> Result<()> {
        let (file_system, free) = file_system_and_free(self.descriptor(IoPath::PageCache));
        self.check_fits(free)?;
        if file_system != TMPFS {
            self.reserved.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reserves space up to `end`, which is about to be written, and some more. Does nothing if all space is reserved.
    pub fn reserve_up_to(&self, end: u64) -> Result<()> {
        let reserved = self.reserved.load(Ordering::Relaxed);
        if end <= reserved {
            return Ok(());
        }
        let next = up(end, STEP_BYTES).min(self.bytes().max(end));
        let mark = if next >= self.bytes() { ALL_RESERVED } else { next };
        let order = Ordering::Relaxed;
        // Another lane that is reserving need not be waited for: a write without a reservation works too.
        if self.reserved.compare_exchange(reserved, mark, order, order).is_err() {
            return Ok(());
        }
        self.allocate(reserved, next - reserved)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let file = self.descriptor(IoPath::PageCache);
        match fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes) {
            // Not every file system can reserve space.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.error("reserve space for", errno.into())),
        }
    }

    fn check_fits(&self, free: Option<u64>) -> Result<()> {
        let Some(free) = free.filter(|free| self.bytes() > *free) else {
            return Ok(());
        };
        let (bytes, free) = (Bytes(self.bytes()), Bytes(free));
        let why = format!("No space left on device: it has {bytes}, and {free} are free");
        let path = self.path().display();
        Err(Error::new(ErrorKind::Transient, "reserve space for", path, why)
            .with_hint("free space on that file system, or write elsewhere"))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::*;

    /// The bytes that a file takes on the drive.
    fn taken(file: &File) -> u64 {
        fs::metadata(file.path()).unwrap().blocks() * 512
    }

    fn create(folder: &std::path::Path, bytes: u64) -> File {
        let path = folder.join("file");
        let at = rustix::fs::CWD;
        File::create_for(&path, at, &path, bytes, 0o600).unwrap()
    }

    #[test]
    fn a_claimed_length_takes_space_only_as_it_is_written() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = create(folder.path(), 3 * STEP_BYTES + 5);
        file.reserve_as_written().unwrap();
        assert_eq!(taken(&file), 0);
        file.reserve_up_to(1).unwrap();
        if taken(&file) == 0 {
            eprintln!("skipped: the file system of the checkout cannot reserve space");
            return;
        }
        let is_about = |steps: u64| (steps * STEP_BYTES..steps * STEP_BYTES + (8 << 20)).contains(&taken(&file));
        assert!(is_about(1), "{}", taken(&file));
        file.reserve_up_to(STEP_BYTES).unwrap();
        assert!(is_about(1), "{}", taken(&file));
        file.reserve_up_to(2 * STEP_BYTES + 1).unwrap();
        assert!(is_about(3), "{}", taken(&file));
        file.reserve_up_to(file.bytes()).unwrap();
        file.reserve_up_to(file.bytes() + 4000).unwrap();
        assert!(is_about(3), "{}", taken(&file));
    }

    #[test]
    fn more_than_the_free_space_is_refused_before_any_is_taken() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = create(folder.path(), 5 << 40);
        let (_, free) = file_system_and_free(file.descriptor(IoPath::PageCache));
        let Some(free) = free.filter(|free| *free < 5 << 40) else {
            eprintln!("skipped: the file system of the checkout has 5 TiB free, or does not say");
            return;
        };
        let error = file.reserve_as_written().unwrap_err();
        assert!(
            error.to_string().contains("it has 5 TiB, and "),
            "{error} with {free} free"
        );
        assert_eq!(taken(&file), 0);
    }
}
