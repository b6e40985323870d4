//! The proof of peer-to-peer DMA between drives and memory in a BAR of a PCI device (Linux's P2PDMA).
//!
//! O_DIRECT with such memory is either DMA from device to device or refused by the kernel, if the file system bypasses
//! the page cache ([`Survey::usable`]) and the bytes are on a drive (not in a hole). But a success code does not prove
//! that the bytes are right: Linux 6.16 reports success and gives the drive a wrong address. So before the first
//! transfer between a drive and a provider, in each direction, one block is moved through BAR memory and through host
//! memory, and compared. A proof holds for this boot, kernel, drive and provider.
//!
//! The proof and the accounting are the same for GPU memory that its driver offers this way. cuFile is not needed then.

mod drive;
mod proof_cache;
mod refusal;

use std::{
    path::PathBuf,
    sync::{Arc, MutexGuard},
};

use straightway_core::{
    Choice, Error, ErrorKind, Extent, Leg, Lock, PciAddress, Place, Result, Route, Survey, extent::down,
};
use straightway_sys::{Buf, File, Io, IoPath, Op, Region, Slot, Window, blocking, nonce::nonce, root::Root};

use crate::request::usize_of;
use drive::Drive;
use proof_cache::{Key, ProofCache};
use refusal::Refusal;
pub use refusal::{BROKEN, MD_MIN, is_broken};
pub use straightway_sys::kernel::major_minor;

/// A handle to the proofs of peer-to-peer DMA. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    proofs: Arc<Lock<ProofCache>>,
}

/// The first extent that a transfer moves of a file, if any. For GPU memory and for writes from a region, the first
/// whole block inside a move.
pub(crate) type FirstExtent = Option<Extent>;

impl Peers {
    /// Proofs that are kept in a file of this user, so that the next process need not repeat them. A file that cannot
    /// be read or written is ignored.
    pub fn kept_in(path: PathBuf) -> Self {
        Self {
            proofs: Arc::new(Lock::new(ProofCache::at(path))),
        }
    }

    /// Checks whether a transfer between `files` and memory of `provider` can use peer-to-peer DMA, and marks the
    /// surveys of those files for which it can. Returns whether any can, and an error only if the user demands it. The
    /// reasons are added to `warnings`.
    pub(crate) fn survey(
        &self,
        provider: PciAddress,
        files: impl FnOnce() -> Result<Vec<Arc<File>>>,
        (surveys, firsts): (&mut [Survey], &[FirstExtent]),
        (leg, choice): (Leg, Choice),
        warnings: &mut Vec<String>,
    ) -> Result<bool> {
        if matches!(choice, Choice::Only(Route::Staged | Route::Buffered)) {
            return Ok(false);
        }
        let insists = choice == Choice::Only(Route::Direct);
        let files = match files() {
            Ok(files) => files,
            Err(error) if insists => return Err(error),
            Err(_) => return Ok(false),
        };
        for ((file, survey), first) in files.iter().zip(&mut *surveys).zip(firsts) {
            // Where O_DIRECT does not bypass the page cache, the CPU copies without an error.
            let Ok(alignment) = survey.usable() else {
                continue;
            };
            let Some(first) = first else {
                // None of its bytes are moved by DMA.
                survey.device_direct = true;
                continue;
            };
            if leg == Leg::Read {
                survey.holes = holes(file)?;
            }
            let block_bytes = alignment.block_bytes();
            let at = match leg {
                Leg::Read => first_on_drive(&survey.holes, *first, block_bytes),
                Leg::Write => Some(down(first.offset, block_bytes)),
            };
            let proven = match at {
                Some(at) => self.prove(provider, file, leg, Extent::new(at, block_bytes)),
                // None of its bytes are on a drive.
                None => Ok(()),
            };
            match proven {
                Ok(()) => survey.device_direct = true,
                Err(error) if insists => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "not by peer-to-peer DMA");
                    warnings.push(format!("peer-to-peer DMA was not used: {error}"));
                }
            }
        }
        Ok(surveys.iter().any(|survey| survey.device_direct))
    }

    /// Returns an error unless bytes move correctly between `file` and memory of `provider`. Tested once per drive, by
    /// moving `block` of the file. If that is a write, the transfer writes its own bytes there later.
    pub(crate) fn prove(&self, provider: PciAddress, file: &Arc<File>, leg: Leg, block: Extent) -> Result<()> {
        let root = Root::machine();
        let drive = Drive::of(&root, file.device()?);
        let key = Key::new(&root, &drive, provider, leg);
        if self.lock().has(&key) {
            return Ok(());
        }
        let refuse = |cause: Refusal| cause.error(file, &drive, provider, &key.kernel);
        // Not tried, because the drive would write to a wrong address.
        if major_minor(&key.kernel).is_some_and(is_broken) {
            return Err(refuse(Refusal::BrokenKernel));
        }
        let trial = Trial::new(provider, file, block)?;
        let wrong = match leg {
            Leg::Read => trial.read(),
            Leg::Write => trial.write(),
        };
        match wrong {
            Ok(0) => {
                tracing::debug!(drive = drive.name, %provider, ?leg, "peer-to-peer DMA is proven");
                self.lock().add(&key);
                Ok(())
            }
            Ok(wrong) => Err(refuse(Refusal::WrongData(wrong, block.bytes))),
            Err(source) => Err(refuse(Refusal::Os(source))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProofCache> {
        self.proofs.lock()
    }
}

/// The comparison of a block moved through BAR memory and through host memory.
struct Trial<'a> {
    file: &'a Arc<File>,
    block: Extent,
    region: Arc<Region>,
}

impl<'a> Trial<'a> {
    fn new(provider: PciAddress, file: &'a Arc<File>, block: Extent) -> Result<Self> {
        let region = Arc::new(Region::at(Place::P2p(provider), block.bytes)?);
        Ok(Self { file, block, region })
    }

    fn io(&self, op: Op, buf: Buf) -> Io {
        Io {
            op,
            object: Arc::clone(self.file),
            by: IoPath::Direct,
            offset: self.block.offset,
            buf,
            start: 0,
            bytes: usize_of(self.block.bytes),
            tag: 0,
        }
    }

    fn with_bar(&self, op: Op) -> Io {
        let bytes = usize_of(self.block.bytes);
        self.io(op, Buf::Window(Window::new(&self.region, 0, bytes)))
    }

    /// The content of the block, read through host memory.
    fn expected(&self) -> std::io::Result<Vec<u8>> {
        let slot = Slot::ring(1, usize_of(self.block.bytes)).map_err(std::io::Error::other)?;
        let slot = slot.into_iter().next().expect("one was asked for");
        finished(self.io(Op::Read, Buf::Slot(slot)))
    }

    /// Reads the block. Returns the number of wrong bytes.
    fn read(&self) -> std::io::Result<u64> {
        let expected = self.expected()?;
        let mut io = self.with_bar(Op::Read);
        // So that bytes which are not written are seen.
        let inverted: Vec<u8> = expected.iter().map(|byte| !byte).collect();
        io.fill(&inverted);
        Ok(differences(&finished(io)?, &expected))
    }

    /// Writes the block and reads it back. Returns the number of wrong bytes.
    fn write(&self) -> std::io::Result<u64> {
        let mut io = self.with_bar(Op::Write);
        let words = (0..self.block.bytes / 8).flat_map(|_| nonce().to_le_bytes());
        let sent: Vec<u8> = words.collect();
        io.fill(&sent);
        finished(io)?;
        Ok(differences(&self.expected()?, &sent))
    }
}

/// Runs an I/O and returns the bytes that it moved.
fn finished(io: Io) -> std::io::Result<Vec<u8>> {
    let done = blocking::run(io);
    let mut bytes = vec![0; done.result?];
    done.io.spill(&mut bytes);
    Ok(bytes)
}

/// The number of differing bytes, including missing ones.
fn differences(one: &[u8], other: &[u8]) -> u64 {
    let differ = one.iter().zip(other).filter(|(a, b)| a != b).count();
    (differ + one.len().abs_diff(other.len())) as u64
}

/// The holes of a file, in whole pages.
fn holes(file: &File) -> Result<Vec<Extent>> {
    let mut holes = Vec::new();
    let mut end = 0;
    for data in file.data_extents()? {
        if data.offset > end {
            holes.push(Extent::between(end, data.offset));
        }
        end = data.end();
    }
    if end < file.bytes() {
        // All of the last page belongs to the hole.
        holes.push(Extent::between(
            end,
            straightway_core::survey::whole_pages(file.bytes()),
        ));
    }
    Ok(holes)
}

/// The offset of the first block of `extent` that is not in a hole.
fn first_on_drive(holes: &[Extent], extent: Extent, block_bytes: u64) -> Option<u64> {
    let mut at = down(extent.offset, block_bytes);
    for hole in holes {
        if hole.offset <= at && at < hole.end() {
            at = down(hole.end(), block_bytes);
        }
    }
    (at < extent.end()).then_some(at)
}

/// The error for an object of another store in a job through BAR memory.
pub(crate) fn only_files(name: &str) -> Error {
    let why = "only files and block devices of this machine go through BAR memory";
    Error::new(ErrorKind::Unsupported, "go by peer-to-peer DMA with", name, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_to_compare_is_not_in_a_hole() {
        let holes = [Extent::new(0, 8192), Extent::new(12_288, 4096)];
        assert_eq!(first_on_drive(&holes, Extent::new(0, 4096), 4096), None);
        assert_eq!(first_on_drive(&holes, Extent::new(10, 9000), 4096), Some(8192));
        assert_eq!(first_on_drive(&holes, Extent::new(12_290, 9000), 4096), Some(16_384));
        assert_eq!(first_on_drive(&[], Extent::new(5000, 10), 4096), Some(4096));
    }

    #[test]
    fn bytes_that_are_missing_count_as_wrong() {
        assert_eq!(differences(b"abcd", b"abxd"), 1);
        assert_eq!(differences(b"ab", b"abcd"), 2);
        assert_eq!(differences(b"", b""), 0);
    }
}
