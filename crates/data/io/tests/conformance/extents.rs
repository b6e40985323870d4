//! The layout of a transfer's extents in an object.

use straightway_core::{
    Extent,
    random::{Rng, Seed},
};

/// How extents share pages, blocks and sectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// One extent, the whole object.
    Whole,
    /// Whole pages: nothing is shared.
    Pages,
    /// Multiples of 1 KiB: extents share pages.
    Blocks,
    /// Multiples of 512 bytes: extents share blocks.
    Sectors,
    /// Any bytes: extents share sectors.
    Bytes,
}

impl Shape {
    pub(crate) const ALL: [Self; 5] = [Self::Whole, Self::Pages, Self::Blocks, Self::Sectors, Self::Bytes];

    /// Extents of an object of that length, in order and disjoint.
    pub(crate) fn extents(self, bytes: u64, rng: &mut Rng) -> Vec<Extent> {
        let (unit, run_max, gap_max) = match self {
            Self::Whole => return vec![Extent::new(0, bytes)],
            Self::Pages => (4096, 24, 8),
            Self::Blocks => (1024, 12, 4),
            Self::Sectors => (512, 12, 4),
            Self::Bytes => (1, 20_000, 300),
        };
        let mut extents = Vec::new();
        let mut at = rng.below(gap_max) * unit;
        while at < bytes {
            // Most runs are short, so that many share pages, blocks or sectors.
            let run_max = if rng.chance(0.25) { run_max * 8 } else { run_max };
            let run = (1 + rng.below(run_max)) * unit;
            extents.push(Extent::between(at, bytes.min(at + run)));
            at += run + rng.below(gap_max) * unit;
        }
        extents
    }
}

#[test]
fn extents_are_in_order_disjoint_and_inside_the_object() {
    for (seed, shape) in (0..50).flat_map(|seed| Shape::ALL.map(|shape| (seed, shape))) {
        let mut rng = Seed(seed).rng();
        let bytes = 1 + rng.below(200_000);
        let extents = shape.extents(bytes, &mut rng);
        assert!(extents.windows(2).all(|e| e[0].end() <= e[1].offset));
        assert!(extents.iter().all(|e| !e.is_empty() && e.end() <= bytes));
    }
}
