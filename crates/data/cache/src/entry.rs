//! One file of the cache: a range of one version of an object.
//!
//! A header of one page is followed by the bytes. The header identifies the version and the range, and has a
//! CRC-64/NVME of each piece and of itself. A read checks each piece that it needs before it copies it.

use std::{
    fs,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crc_fast::{CrcAlgorithm, checksum};
use rustix::{fs::OFlags, io::Errno};
use straightway_core::Extent;
use straightway_io::request::Io;
use straightway_sys::folder::claim;

use crate::{
    cache::{Cache, is_own_file},
    entry_name::{DRAFT_SUFFIX, Key, name},
    eviction,
};

const MAGIC: &[u8; 8] = b"SWCACHE1";
const HEADER_BYTES: usize = 4096;
/// The offsets of the pieces' checksums and of the header's own checksum.
const SUMS_START: usize = 64;
const OWN_SUM_START: usize = HEADER_BYTES - 8;
const PIECES_MAX: u64 = ((OWN_SUM_START - SUMS_START) / 8) as u64;
/// The smallest piece. A piece stays in the processor's cache between its checksum and its copy.
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// The interval at which a read updates an entry's time of use, so that not every read causes a write.
const TOUCH_AFTER: Duration = Duration::from_mins(1);

/// An open entry with a valid header.
#[derive(Debug)]
pub(crate) struct Entry {
    file: fs::File,
    extent: Extent,
    piece_bytes: u64,
    sums: Vec<u64>,
}

impl Entry {
    /// Opens the entry of a range of an object; `None` if there is none. An invalid entry is removed.
    pub(crate) fn open(cache: &Cache, key: &Key, extent: Extent) -> Option<Self> {
        let name = name(key, extent);
        let entry = match cache.open_file(&name, OFlags::RDONLY) {
            Ok(file) => Self::of(file, key, extent),
            Err(error) if is_foreign(&error) => Err(error),
            // It does not exist, or no more files can be opened.
            Err(_) => return None,
        };
        if entry.is_err() {
            tracing::warn!(name, "an entry of the cache is invalid, and its range is fetched again");
            cache.remove(&name);
        }
        entry.ok()
    }

    fn of(mut file: fs::File, key: &Key, extent: Extent) -> io::Result<Self> {
        let foreign = || io::Error::from(io::ErrorKind::InvalidData);
        let meta = is_own_file(&file)?.ok_or_else(foreign)?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let piece_bytes = piece_bytes(extent.bytes);
        let pieces = extent.bytes.div_ceil(piece_bytes);
        let sums = &header[SUMS_START..][..usize_of(pieces) * 8];
        let sums = sums
            .chunks_exact(8)
            .map(|sum| u64::from_le_bytes(sum.try_into().expect("it has 8 bytes")));
        let sums: Vec<_> = sums.collect();
        if header != make_header(key, extent, &sums) || meta.len() != HEADER_BYTES as u64 + extent.bytes {
            return Err(foreign());
        }
        let now = SystemTime::now();
        let is_old = meta
            .modified()
            .is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > TOUCH_AFTER));
        if is_old {
            // If this fails, the entry is evicted too early.
            let _ = file.set_modified(now);
        }
        Ok(Self {
            file,
            extent,
            piece_bytes,
            sums,
        })
    }

    /// The end of the entry's range in the object.
    pub(crate) fn end(&self) -> u64 {
        self.extent.end()
    }

    /// Copies a range that the entry has to the front of an I/O's memory. After an error, the bytes copied so far are
    /// correct.
    pub(crate) fn read(&self, io: &mut Io, wanted: Extent) -> io::Result<()> {
        let mut piece = vec![0; usize_of(self.piece_bytes.min(self.extent.bytes))];
        let first = (wanted.offset - self.extent.offset) / self.piece_bytes;
        let mut at = wanted.offset;
        for number in first.. {
            if at == wanted.end() {
                break;
            }
            let start = number * self.piece_bytes;
            let bytes = self.piece_bytes.min(self.extent.bytes - start);
            let piece = &mut piece[..usize_of(bytes)];
            self.file.read_exact_at(piece, HEADER_BYTES as u64 + start)?;
            if sum(piece) != self.sums[usize_of(number)] {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let start = self.extent.offset + start;
            let end = (start + bytes).min(wanted.end());
            let part = &piece[usize_of(at - start)..usize_of(end - start)];
            io.fill_from(usize_of(at - wanted.offset), part);
            at = end;
        }
        Ok(())
    }
}

/// The exclusive right to fetch a range, with the draft that will store it. Dropping it removes the draft.
#[derive(Debug)]
pub(crate) struct Claim {
    cache: Arc<Cache>,
    key: Key,
    extent: Extent,
    /// Locked until it is closed.
    draft: fs::File,
    draft_name: String,
    is_stored: bool,
}

/// The result of an attempt to claim a range.
#[derive(Debug)]
pub(crate) enum ClaimResult {
    /// The caller may fetch and store the range.
    Claimed(Claim),
    /// Another claim is fetching it.
    Busy,
    /// It has been cached meanwhile.
    Exists,
    /// Nothing can be stored now.
    Refused,
}

impl Claim {
    /// Tries to claim a range.
    pub(crate) fn try_new(cache: &Arc<Cache>, key: &Key, extent: Extent) -> ClaimResult {
        let name = name(key, extent);
        let draft_name = format!("{name}{DRAFT_SUFFIX}");
        let draft = match cache.open_file(&draft_name, OFlags::RDWR | OFlags::CREATE) {
            Ok(draft) => draft,
            Err(error) => {
                if is_foreign(&error) {
                    cache.remove(&draft_name);
                } else {
                    cache.note(&error);
                }
                return ClaimResult::Refused;
            }
        };
        if !claim(&draft) {
            return ClaimResult::Busy;
        }
        if !matches!(is_own_file(&draft), Ok(Some(_))) {
            cache.remove(&draft_name);
            return ClaimResult::Refused;
        }
        let claim = Self {
            cache: Arc::clone(cache),
            key: *key,
            extent,
            draft,
            draft_name,
            is_stored: false,
        };
        if cache.has(&name) {
            return ClaimResult::Exists;
        }
        ClaimResult::Claimed(claim)
    }

    /// Stores the front of an I/O's memory, which is the whole range.
    pub(crate) fn store(mut self, io: &Io) {
        match self.write(io) {
            Ok(()) => eviction::note_added(&self.cache, HEADER_BYTES as u64 + self.extent.bytes),
            Err(error) => self.cache.note(&error),
        }
    }

    fn write(&mut self, io: &Io) -> io::Result<()> {
        // A killed process may have left data.
        self.draft.set_len(0)?;
        self.draft.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
        let mut sums = Vec::new();
        let mut piece = vec![0; usize_of(piece_bytes(self.extent.bytes).min(self.extent.bytes))];
        let total = usize_of(self.extent.bytes);
        for start in (0..total).step_by(piece.len()) {
            let bytes = piece.len().min(total - start);
            let piece = &mut piece[..bytes];
            io.spill_from(start, piece);
            sums.push(sum(piece));
            self.draft.write_all(piece)?;
        }
        self.draft
            .write_all_at(&make_header(&self.key, self.extent, &sums), 0)?;
        let name = name(&self.key, self.extent);
        self.cache.rename(&self.draft_name, &name)?;
        self.is_stored = true;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The lock is still held, so the draft belongs to this claim. After the rename it may belong to another one.
        if !self.is_stored {
            self.cache.remove(&self.draft_name);
        }
    }
}

/// Whether a name cannot be opened because it is not a regular file but a link, a folder or a pipe.
fn is_foreign(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::NODEV))
}

/// The header of an entry.
fn make_header(key: &Key, extent: Extent, sums: &[u64]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(MAGIC);
    put(&extent.offset.to_le_bytes());
    put(&extent.bytes.to_le_bytes());
    put(&piece_bytes(extent.bytes).to_le_bytes());
    put(key);
    for sum in sums {
        put(&sum.to_le_bytes());
    }
    let own = sum(&header[..OWN_SUM_START]);
    header[OWN_SUM_START..].copy_from_slice(&own.to_le_bytes());
    header
}

/// The piece length of an entry, chosen so that all checksums fit into the header.
fn piece_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PIECES_MAX).next_power_of_two().max(PIECE_BYTES_MIN)
}

fn sum(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an I/O lies in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_of_every_length_fit_into_a_header() {
        for bytes in [1, PIECE_BYTES_MIN, 8 << 20, (8 << 20) + 1, 1 << 30, 1 << 40] {
            assert!(bytes.div_ceil(piece_bytes(bytes)) <= PIECES_MAX, "{bytes}");
        }
    }
}
