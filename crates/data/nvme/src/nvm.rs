//! I/O commands of the NVM command set.

use crate::{Malformed, Sqe, Status, fabrics::halves, wire};

mod opcode {
    pub(super) const FLUSH: u8 = 0x00;
    pub(super) const WRITE: u8 = 0x01;
    pub(super) const READ: u8 = 0x02;
    pub(super) const COMPARE: u8 = 0x05;
    pub(super) const WRITE_ZEROES: u8 = 0x08;
    pub(super) const DATASET: u8 = 0x09;
    pub(super) const VERIFY: u8 = 0x0c;
}

/// Dword 12: force unit access.
const FUA: u32 = 1 << 30;
/// Dword 12 of Write Zeroes: blocks may be deallocated.
const DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of Dataset Management: deallocate.
const DATASET_DEALLOCATE: u32 = 1 << 2;

/// The size of one range of Dataset Management.
pub const DATASET_RANGE_BYTES: usize = 16;

/// The maximum number of ranges of Dataset Management.
pub const DATASET_RANGES_MAX: usize = 256;

/// The maximum number of blocks of one command.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// A range of logical blocks: 1 to [`BLOCKS_MAX`] blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaRange {
    /// The first block.
    pub start: u64,
    /// The number of blocks.
    pub blocks: u32,
}

impl LbaRange {
    /// A range of `blocks` blocks from `start`.
    pub const fn new(start: u64, blocks: u32) -> Self {
        Self { start, blocks }
    }

    /// Whether the range lies in a namespace of `blocks` blocks.
    pub const fn is_within(self, blocks: u64) -> bool {
        match self.start.checked_add(self.blocks as u64) {
            Some(end) => end <= blocks,
            None => false,
        }
    }
}

/// An I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvm {
    /// Makes completed writes durable.
    Flush,
    /// Writes blocks.
    Write {
        /// The blocks.
        range: LbaRange,
        /// Whether the blocks are durable when the command completes (force unit access).
        is_durable: bool,
    },
    /// Reads blocks.
    Read(LbaRange),
    /// Compares blocks with data.
    Compare(LbaRange),
    /// Writes zeros.
    WriteZeroes {
        /// The blocks.
        range: LbaRange,
        /// Whether they may be deallocated.
        may_deallocate: bool,
        /// Whether the zeros are durable when the command completes (force unit access).
        is_durable: bool,
    },
    /// Dataset Management. Its data is a list of ranges: see [`dataset_ranges`].
    Dataset {
        /// The number of ranges: 1 to 256.
        ranges: u16,
        /// Whether to deallocate the ranges.
        deallocates: bool,
    },
    /// Verifies blocks without transferring them.
    Verify(LbaRange),
}

impl Nvm {
    /// The submission queue entry for namespace `nsid`, without data and command identifier.
    pub fn sqe(&self, nsid: u32) -> Sqe {
        let on = |opcode, range: LbaRange, flags| {
            let (low, high) = halves(range.start);
            let blocks = range.blocks.saturating_sub(1) & 0xffff;
            Sqe::new(opcode, nsid, [low, high, blocks | flags, 0, 0, 0])
        };
        let durable = |is: bool| if is { FUA } else { 0 };
        match *self {
            Self::Flush => Sqe::new(opcode::FLUSH, nsid, [0; 6]),
            Self::Write { range, is_durable } => on(opcode::WRITE, range, durable(is_durable)),
            Self::Read(range) => on(opcode::READ, range, 0),
            Self::Compare(range) => on(opcode::COMPARE, range, 0),
            Self::WriteZeroes {
                range,
                may_deallocate,
                is_durable,
            } => {
                let may = if may_deallocate { DEALLOCATE } else { 0 };
                on(opcode::WRITE_ZEROES, range, durable(is_durable) | may)
            }
            Self::Dataset { ranges, deallocates } => {
                let ranges = u32::from(ranges.saturating_sub(1));
                let attributes = if deallocates { DATASET_DEALLOCATE } else { 0 };
                Sqe::new(opcode::DATASET, nsid, [ranges, attributes, 0, 0, 0, 0])
            }
            Self::Verify(range) => on(opcode::VERIFY, range, 0),
        }
    }

    /// Decodes a submission queue entry, or returns the status that refuses it.
    pub fn from_sqe(sqe: &Sqe) -> Result<Self, Status> {
        let d12 = sqe.dwords[2];
        let range = LbaRange::new(sqe.dwords_10_11(), (d12 & 0xffff) + 1);
        let is_durable = d12 & FUA != 0;
        Ok(match sqe.opcode {
            opcode::FLUSH => Self::Flush,
            opcode::WRITE => Self::Write { range, is_durable },
            opcode::READ => Self::Read(range),
            opcode::COMPARE => Self::Compare(range),
            opcode::WRITE_ZEROES => Self::WriteZeroes {
                range,
                may_deallocate: d12 & DEALLOCATE != 0,
                is_durable,
            },
            opcode::DATASET => Self::Dataset {
                ranges: (sqe.dwords[0] & 0xff) as u16 + 1,
                deallocates: sqe.dwords[1] & DATASET_DEALLOCATE != 0,
            },
            opcode::VERIFY => Self::Verify(range),
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        })
    }
}

/// Decodes the ranges in the data of Dataset Management. A range may be empty.
pub fn dataset_ranges(bytes: &[u8]) -> Result<Vec<LbaRange>, Malformed> {
    let (ranges, rest) = bytes.as_chunks::<DATASET_RANGE_BYTES>();
    if !rest.is_empty() || ranges.len() > DATASET_RANGES_MAX {
        return Err(Malformed(
            "the ranges are not a multiple of 16 bytes, or there are more than 256",
        ));
    }
    let range = |bytes: &[u8; DATASET_RANGE_BYTES]| LbaRange {
        start: wire::u64_at(bytes, 8),
        blocks: wire::u32_at(bytes, 4),
    };
    Ok(ranges.iter().map(range).collect())
}

/// Encodes the data of Dataset Management.
pub fn encode_dataset(ranges: &[LbaRange]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ranges.len() * DATASET_RANGE_BYTES);
    for range in ranges {
        bytes.extend([0; 4]);
        bytes.extend(range.blocks.to_le_bytes());
        bytes.extend(range.start.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nvm() -> impl Strategy<Value = Nvm> {
        let range = (any::<u64>(), 1..=BLOCKS_MAX).prop_map(|(s, b)| LbaRange::new(s, b));
        let pair = (any::<bool>(), any::<bool>());
        prop_oneof![
            Just(Nvm::Flush),
            (range.clone(), any::<bool>()).prop_map(|(range, is_durable)| Nvm::Write { range, is_durable }),
            range.clone().prop_map(Nvm::Read),
            range.clone().prop_map(Nvm::Compare),
            (range.clone(), pair).prop_map(|(range, (may_deallocate, is_durable))| {
                Nvm::WriteZeroes {
                    range,
                    may_deallocate,
                    is_durable,
                }
            }),
            (1..=256_u16, any::<bool>()).prop_map(|(ranges, deallocates)| Nvm::Dataset { ranges, deallocates }),
            range.prop_map(Nvm::Verify),
        ]
    }

    proptest! {
        #[test]
        fn commands_round_trip(command in nvm(), nsid: u32) {
            let sqe = Sqe::decode(&command.sqe(nsid).encode());
            prop_assert_eq!(sqe.nsid, nsid);
            prop_assert_eq!(Nvm::from_sqe(&sqe), Ok(command));
        }

        #[test]
        fn ranges_round_trip(ranges in prop::collection::vec((any::<u64>(), any::<u32>()), 0..256)) {
            let ranges: Vec<_> = ranges.into_iter().map(|(s, b)| LbaRange::new(s, b)).collect();
            prop_assert_eq!(dataset_ranges(&encode_dataset(&ranges)), Ok(ranges));
        }
    }

    #[test]
    fn ranges_past_the_end_of_the_namespace_are_detected() {
        assert!(LbaRange::new(8, 8).is_within(16));
        assert!(!LbaRange::new(9, 8).is_within(16));
        assert!(!LbaRange::new(u64::MAX, 1).is_within(u64::MAX));
        assert!(dataset_ranges(&[0; 17]).is_err());
    }
}
