//! A file that is written: in place, and with a length that changes.

use std::{os::fd::BorrowedFd, path::Path, sync::atomic::Ordering};

use rustix::fs::{FileType, Mode, OFlags, ftruncate, openat};
use straightway_core::{Error, ErrorKind, Result};

use super::{File, open_failed};
use crate::status::Status;

impl File {
    /// Opens an existing regular file to read it and to write to it in place.
    pub fn open_existing(target: &Path, at: BorrowedFd<'_>, name: &Path) -> Result<Self> {
        let failed = |errno| open_failed("write to", target, errno);
        // Opening a pipe would wait for its reader.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let buffered = openat(at, name, flags, Mode::empty()).map_err(failed)?;
        let status = Status::of(&buffered).map_err(failed)?;
        if status.kind != FileType::RegularFile {
            let why = "it is not a regular file";
            return Err(Error::new(ErrorKind::Invalid, "write to", target.display(), why));
        }
        let bytes = status.identity.bytes;
        let file = Self::with_direct(target, (at, name, OFlags::RDWR), bytes, buffered, &status);
        Ok(Self {
            is_in_place: true,
            ..file
        })
    }

    /// Makes a file that is being written at least `end` bytes long. The new bytes are zero.
    pub fn grow(&self, end: u64) -> Result<()> {
        if end <= self.bytes() {
            return Ok(());
        }
        if self.device_end.is_some() {
            let message = format!("byte {end} is beyond the part of the device that is written");
            return Err(Error::new(ErrorKind::Invalid, "extend", self.path.display(), message));
        }
        let _growing = self.growing.lock();
        let now = self.check_descriptors()?;
        // Another process may have made a file longer that is written in place.
        if now.bytes < end {
            ftruncate(&self.buffered, end).map_err(|e| self.error("extend", e.into()))?;
        }
        self.bytes.fetch_max(end, Ordering::Release);
        Ok(())
    }

    /// Truncates it to `bytes`, because an aligned tail was written past its end. Does nothing for a device, or for a
    /// file that is written in place.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        if self.device_end.is_some() || self.is_in_place {
            return Ok(());
        }
        // Otherwise another file could be truncated, to which the number of the descriptor belongs now.
        self.check_descriptors()?;
        ftruncate(&self.buffered, bytes).map_err(|e| self.error("truncate", e.into()))
    }
}
