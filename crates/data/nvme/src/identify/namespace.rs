//! The Identify Namespace data structure.

use super::IDENTIFY_BYTES;
use crate::{Malformed, wire};

/// The largest supported block is 2 to this power: 64 KiB, more than any drive uses.
pub const BLOCK_SHIFT_MAX: u8 = 16;

/// The maximum number of LBA formats of a namespace.
const FORMATS_MAX: usize = 64;

/// An LBA format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Format {
    /// The metadata bytes of each block.
    pub metadata_bytes: u16,
    /// The block size is 2 to this power: 9 or 12.
    pub block_shift: u8,
    /// The relative performance: 0 is best.
    pub performance: u8,
}

/// Identify Namespace. Unused fields are encoded as zero and ignored when decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The size in blocks; 0 if the namespace does not exist.
    pub blocks: u64,
    /// The capacity in blocks.
    pub capacity: u64,
    /// The number of blocks in use.
    pub used: u64,
    /// Features: bit 0 thin provisioning.
    pub features: u8,
    /// The index of the current format.
    pub format_index: u8,
    /// Whether several controllers may attach it.
    pub is_shared: bool,
    /// Its ANA group; 0 for none.
    pub ana_group: u32,
    /// Whether it is write protected.
    pub is_protected: bool,
    /// Its NGUID; zeros for none.
    pub nguid: [u8; 16],
    /// Its EUI-64; zeros for none.
    pub eui64: [u8; 8],
    /// The supported formats: 1 to 64.
    pub formats: Vec<Format>,
}

impl Namespace {
    /// A namespace of `blocks` blocks, each 2 to the power of `block_shift` bytes.
    pub fn new(blocks: u64, block_shift: u8) -> Self {
        let format = Format {
            block_shift,
            ..Format::default()
        };
        Self {
            blocks,
            capacity: blocks,
            used: blocks,
            features: 0,
            format_index: 0,
            is_shared: true,
            ana_group: 0,
            is_protected: false,
            nguid: [0; 16],
            eui64: [0; 8],
            formats: vec![format],
        }
    }

    /// The current format.
    pub fn format(&self) -> Result<Format, Malformed> {
        let format = self.formats.get(usize::from(self.format_index));
        let format = *format.ok_or(Malformed("the namespace has a format that is not listed"))?;
        if !(9..=BLOCK_SHIFT_MAX).contains(&format.block_shift) {
            return Err(Malformed("the block size is not between 512 bytes and 64 KiB"));
        }
        Ok(format)
    }

    /// The size in bytes.
    pub fn bytes(&self) -> Result<u64, Malformed> {
        let shift = u32::from(self.format()?.block_shift);
        let bytes = self.blocks.checked_mul(1 << shift);
        bytes.ok_or(Malformed("the namespace is longer than 16 EiB"))
    }

    /// Encodes the page.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; IDENTIFY_BYTES];
        let bytes = &mut page[..];
        wire::put(bytes, 0, &self.blocks.to_le_bytes());
        wire::put(bytes, 8, &self.capacity.to_le_bytes());
        wire::put(bytes, 16, &self.used.to_le_bytes());
        bytes[24] = self.features;
        let formats = &self.formats[..self.formats.len().min(FORMATS_MAX)];
        bytes[25] = u8::try_from(formats.len().saturating_sub(1)).expect("at most 64");
        bytes[26] = self.format_index & 0xf | (self.format_index >> 4 & 3) << 5;
        bytes[30] = u8::from(self.is_shared);
        wire::put(bytes, 92, &self.ana_group.to_le_bytes());
        bytes[99] = u8::from(self.is_protected);
        wire::put(bytes, 104, &self.nguid);
        wire::put(bytes, 120, &self.eui64);
        for (index, format) in formats.iter().enumerate() {
            let at = 128 + 4 * index;
            wire::put(bytes, at, &format.metadata_bytes.to_le_bytes());
            bytes[at + 2] = format.block_shift;
            bytes[at + 3] = format.performance & 3;
        }
        page
    }

    /// Decodes the page.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != IDENTIFY_BYTES {
            return Err(Malformed("Identify Namespace does not have 4096 bytes"));
        }
        let count = (usize::from(bytes[25]) + 1).min(FORMATS_MAX);
        let format = |index: usize| {
            let at = 128 + 4 * index;
            Format {
                metadata_bytes: wire::u16_at(bytes, at),
                block_shift: bytes[at + 2],
                performance: bytes[at + 3] & 3,
            }
        };
        Ok(Self {
            blocks: wire::u64_at(bytes, 0),
            capacity: wire::u64_at(bytes, 8),
            used: wire::u64_at(bytes, 16),
            features: bytes[24],
            // Bits 5 and 6 are valid only with more than 16 formats.
            format_index: bytes[26] & 0xf | if count > 16 { (bytes[26] >> 5 & 3) << 4 } else { 0 },
            is_shared: bytes[30] & 1 != 0,
            ana_group: wire::u32_at(bytes, 92),
            is_protected: bytes[99] & 1 != 0,
            nguid: wire::array_at(bytes, 104),
            eui64: wire::array_at(bytes, 120),
            formats: (0..count).map(format).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_page_round_trips(bytes in prop::collection::vec(any::<u8>(), IDENTIFY_BYTES)) {
            let page = Namespace::decode(&bytes).unwrap();
            prop_assert_eq!(Namespace::decode(&page.encode()).unwrap(), page);
        }
    }

    #[test]
    fn the_size_is_checked() {
        assert_eq!(Namespace::new(8, 12).bytes(), Ok(32768));
        for (blocks, shift) in [(8, 0), (8, 8), (8, 17), (1 << 60, 12)] {
            assert!(Namespace::new(blocks, shift).bytes().is_err(), "{blocks} {shift}");
        }
        let mut page = Namespace::new(8, 9);
        page.format_index = 1;
        assert!(page.format().is_err());
    }
}
