//! Checksums of objects and parts.

use crc_fast::{CrcAlgorithm, Digest};
use md5::Digest as _;
use straightway_sys::{Buf, Io};

/// The size of one copy from memory that others may write to.
const PIECE_BYTES: usize = 16 << 10;

/// The most reads with a wrong checksum before the error is final.
pub(crate) const MISMATCHES_MAX: u32 = 4;

/// An MD5 digest.
pub type Md5 = [u8; 16];

/// A checksum of a whole object, or of a stored part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    algorithm: Algorithm,
    value: u64,
}

/// The algorithm of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-64/NVME.
    Crc64Nvme,
    /// CRC-32C (Castagnoli).
    Crc32C,
    /// CRC-32 as in zip files.
    Crc32,
}

impl Checksum {
    /// A checksum with this value.
    pub fn new(algorithm: Algorithm, value: u64) -> Self {
        Self { algorithm, value }
    }

    /// Whether these bytes match it.
    pub fn fits(self, bytes: &[u8]) -> bool {
        let mut digest = self.digest();
        digest.update(bytes);
        digest.finalize() == self.value
    }

    /// Whether the first bytes of an I/O's memory match it.
    pub(crate) fn fits_io<H>(self, io: &Io<H>, bytes: usize) -> bool {
        if self.algorithm == Algorithm::Crc64Nvme {
            return crc64nvme_of_io(io, bytes) == self.value;
        }
        if let Buf::Slot(slot) = &io.buf {
            return self.fits(&slot.as_slice()[io.start..io.start + bytes]);
        }
        let mut digest = self.digest();
        add_io(io, bytes, |piece| digest.update(piece));
        digest.finalize() == self.value
    }

    /// Begins to check bytes that arrive in order.
    pub(crate) fn begin(self) -> Running {
        Running {
            digest: self.digest(),
            value: self.value,
        }
    }

    fn digest(self) -> Digest {
        Digest::new(match self.algorithm {
            Algorithm::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
            Algorithm::Crc32C => CrcAlgorithm::Crc32Iscsi,
            Algorithm::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
        })
    }
}

/// The CRC-64/NVME of bytes.
pub(crate) fn crc64nvme(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// The same of the first bytes of an I/O's memory.
pub(crate) fn crc64nvme_of_io<H>(io: &Io<H>, bytes: usize) -> u64 {
    if let Buf::Slot(slot) = &io.buf {
        return crc64nvme(&slot.as_slice()[io.start..io.start + bytes]);
    }
    if let Some(folded) = io.folded(bytes) {
        return crc64nvme(folded.as_slice());
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    add_io(io, bytes, |piece| digest.update(piece));
    digest.finalize()
}

/// The MD5 of bytes.
pub(crate) fn md5_of(bytes: &[u8]) -> Md5 {
    md5::Md5::digest(bytes).into()
}

/// The same of the first bytes of an I/O's memory.
pub(crate) fn md5_of_io<H>(io: &Io<H>, bytes: usize) -> Md5 {
    let mut digest = md5::Md5::new();
    add_io(io, bytes, |piece| digest.update(piece));
    digest.finalize().into()
}

/// Passes the first bytes of an I/O's memory to `add` in copied pieces, since others may write to that memory
/// meanwhile.
fn add_io<H>(io: &Io<H>, bytes: usize, mut add: impl FnMut(&[u8])) {
    let mut piece = [0; PIECE_BYTES];
    for from in (0..bytes).step_by(PIECE_BYTES) {
        let piece = &mut piece[..PIECE_BYTES.min(bytes - from)];
        io.spill_from(from, piece);
        add(piece);
    }
}

/// The running checksum of bytes that arrive in order.
#[derive(Debug)]
pub(crate) struct Running {
    digest: Digest,
    value: u64,
}

impl Running {
    /// Adds the next bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// Whether all bytes match the checksum.
    pub(crate) fn fits(self) -> bool {
        self.digest.finalize() == self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use straightway_sys::{IoPath, Op, Region, Slot, Window};

    use super::*;

    #[test]
    fn the_checksum_of_io_memory_is_that_of_its_bytes() {
        let most: usize = (1 << 20) + 1000;
        let bytes: Vec<_> = (0..most)
            .map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[5])
            .collect();
        let mut region = Region::host(most as u64).unwrap();
        region.as_mut_slice().copy_from_slice(&bytes);
        let region = Arc::new(region);
        let mut slot = Slot::ring(1, most.next_multiple_of(4096)).unwrap().remove(0);
        slot.as_mut_slice()[..most].copy_from_slice(&bytes);
        let mut io = Io {
            op: Op::Write,
            object: (),
            by: IoPath::PageCache,
            offset: 0,
            buf: Buf::Slot(slot),
            start: 0,
            bytes: 0,
            tag: 0,
        };
        let around = |length: usize| length - 3..length + 4;
        let lengths = (0..300).chain(around(PIECE_BYTES)).chain(around(most - 500));
        let lengths: Vec<_> = lengths.collect();
        for _ in 0..2 {
            for (number, length) in lengths.iter().enumerate() {
                (io.start, io.bytes) = (number % 17, *length);
                let part = &bytes[io.start..][..*length];
                assert_eq!(crc64nvme_of_io(&io, *length), crc64nvme(part), "{io:?}");
                for algorithm in [Algorithm::Crc64Nvme, Algorithm::Crc32C] {
                    let mut digest = Checksum::new(algorithm, 0).digest();
                    digest.update(part);
                    let sum = Checksum::new(algorithm, digest.finalize());
                    assert!(sum.fits_io(&io, *length), "{io:?}");
                    let shorter = length.saturating_sub(1);
                    assert!(shorter == *length || !sum.fits_io(&io, shorter));
                }
                assert_eq!(md5_of_io(&io, *length), md5_of(part), "{io:?}");
            }
            io.buf = Buf::Window(Window::new(&region, 0, most));
        }
    }

    #[test]
    fn checksums_match_the_published_check_values() {
        for (algorithm, value) in [
            (Algorithm::Crc64Nvme, 0xae8b_1486_0a79_9888),
            (Algorithm::Crc32C, 0xe306_9283),
            (Algorithm::Crc32, 0xcbf4_3926),
        ] {
            assert!(Checksum::new(algorithm, value).fits(b"123456789"), "{algorithm:?}");
            assert!(!Checksum::new(algorithm, value).fits(b"123456780"), "{algorithm:?}");
        }
    }
}
