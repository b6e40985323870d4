//! Compares bytes.

/// The index of the first byte that differs, if any.
pub fn first_difference(left: &[u8], right: &[u8]) -> Option<u64> {
    // The slices are compared at memory speed; the index is searched for only if they differ.
    if left == right {
        return None;
    }
    let place = left.iter().zip(right).position(|(a, b)| a != b);
    Some(place.unwrap_or(left.len().min(right.len())) as u64)
}
