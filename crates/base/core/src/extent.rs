//! A range of bytes in an object.

use serde::{Deserialize, Serialize};

/// A range of `bytes` bytes that starts at `offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// The offset of its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl Extent {
    /// An extent of `bytes` bytes that starts at `offset`.
    pub const fn new(offset: u64, bytes: u64) -> Self {
        Self { offset, bytes }
    }

    /// The extent from `start` up to, but not including, `end`.
    pub const fn between(start: u64, end: u64) -> Self {
        Self {
            offset: start,
            bytes: end.saturating_sub(start),
        }
    }

    /// The offset after its last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether its length is 0.
    pub const fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Whether both ends are multiples of `align_bytes`.
    pub const fn is_aligned(self, align_bytes: u64) -> bool {
        self.offset.is_multiple_of(align_bytes) && self.bytes.is_multiple_of(align_bytes)
    }

    /// The smallest aligned extent that contains it: the range that O_DIRECT has to read.
    #[must_use]
    pub const fn superset(self, align_bytes: u64) -> Self {
        Self::between(down(self.offset, align_bytes), up(self.end(), align_bytes))
    }

    /// The largest aligned extent inside it, which needs no copy. May be empty.
    #[must_use]
    pub const fn interior(self, align_bytes: u64) -> Self {
        Self::between(up(self.offset, align_bytes), down(self.end(), align_bytes))
    }

    /// The bytes that are in both extents. May be empty.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }
}

/// The multiple of `align` at or below `value`.
pub const fn down(value: u64, align: u64) -> u64 {
    value - value % align
}

/// The multiple of `align` at or above `value`.
pub const fn up(value: u64, align: u64) -> u64 {
    value.next_multiple_of(align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_superset_contains_the_extent_and_the_interior_lies_inside_it() {
        let ragged = Extent::new(4095, 8194);
        assert_eq!(ragged.superset(4096), Extent::new(0, 16384));
        assert_eq!(ragged.interior(4096), Extent::new(4096, 8192));
        assert!(Extent::new(1, 4094).interior(4096).is_empty());
    }
}
