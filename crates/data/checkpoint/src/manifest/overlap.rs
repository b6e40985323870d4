//! Checks whether the parts of a tensor overlap, and whether they cover it.

use super::SavedPart;

/// Two parts that share an element, if there are any.
///
/// Parts are visited in the order of one dimension: the one along which they have the most distinct starts. A tensor
/// that is cut into a thousand rows then needs about a thousand comparisons, not a thousand squared.
pub(super) fn overlapping(parts: &[SavedPart]) -> Option<(&SavedPart, &SavedPart)> {
    let mut parts: Vec<_> = parts.iter().filter(|p| p.rectangle.elements() > 0).collect();
    let [first, _, ..] = parts.as_slice() else {
        return None;
    };
    let places = |dim: &usize| {
        let mut starts: Vec<_> = parts.iter().map(|p| p.rectangle.offsets()[*dim]).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    };
    let Some(dim) = (0..first.rectangle.offsets().len()).max_by_key(places) else {
        // Two scalars are the same element.
        return Some((parts[0], parts[1]));
    };
    let start = |p: &SavedPart| p.rectangle.offsets()[dim];
    let end = |p: &SavedPart| start(p) + p.rectangle.lengths()[dim];
    parts.sort_unstable_by_key(|p| start(p));
    let mut open: Vec<&SavedPart> = Vec::new();
    for part in parts {
        open.retain(|other| end(other) > start(part));
        let shares = |other: &&&SavedPart| {
            let shared = other.rectangle.intersection(&part.rectangle);
            shared.is_some()
        };
        if let Some(other) = open.iter().find(shares) {
            return Some((other, part));
        }
        open.push(part);
    }
    None
}

/// Whether parts that do not overlap cover all `elements` of their tensor.
pub(crate) fn covers(parts: &[SavedPart], elements: u64) -> bool {
    let held = parts.iter().map(|p| u128::from(p.rectangle.elements()));
    held.sum::<u128>() == u128::from(elements)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use straightway_weights::{Rectangle, Shape};

    fn rectangles() -> impl Strategy<Value = Vec<SavedPart>> {
        let side = (0_u64..6).prop_flat_map(|start| (Just(start), 0..=6 - start));
        let part = (side.clone(), side).prop_map(|(a, b)| {
            let shape = Shape::from(&[6_u64, 6][..]);
            let (start, lengths) = ([a.0, b.0], [a.1, b.1]);
            let (start, lengths) = (Shape::from(&start[..]), Shape::from(&lengths[..]));
            SavedPart {
                shard: 0,
                offset: 0,
                rectangle: Rectangle::new("t", &shape, start, lengths).unwrap(),
            }
        });
        prop::collection::vec(part, 0..5)
    }

    proptest! {
        #[test]
        fn an_overlap_is_found_just_where_comparing_every_pair_finds_one(parts in rectangles()) {
            let naive = (0..parts.len()).any(|i| (0..i).any(|j| {
                parts[i].rectangle.intersection(&parts[j].rectangle).is_some()
            }));
            prop_assert_eq!(overlapping(&parts).is_some(), naive);
        }
    }
}
