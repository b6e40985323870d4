//! The names of entries: the hash of a version of an object, and a range.

use std::fmt::Write as _;

use straightway_core::Extent;

/// The hash that identifies a version of an object.
pub(crate) type Key = [u8; 32];

/// The suffix of drafts.
pub(crate) const DRAFT_SUFFIX: &str = ".part";

/// The name of the entry with a range of an object.
pub(crate) fn name(key: &Key, extent: Extent) -> String {
    let mut hex = String::with_capacity(2 * key.len());
    for byte in key {
        write!(hex, "{byte:02x}").expect("memory takes all");
    }
    let (start, end) = (extent.offset, extent.end());
    format!("{}/{}.{start:016x}-{end:016x}", &hex[..2], &hex[2..])
}

/// Parses an entry's name without its shard: the rest of the key, and the range.
pub(crate) fn parse(name: &str) -> Option<(&str, Extent)> {
    let (key, range) = name.split_once('.')?;
    let (start, end) = range.split_once('-')?;
    let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if (key.len(), start.len(), end.len()) != (62, 16, 16) || ![key, start, end].map(is_hex).iter().all(|is| *is) {
        return None;
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (start < end).then(|| (key, Extent::between(start, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_entries_are_parsed() {
        let (key, extent) = ([0xab; 32], Extent::between(3, 1 << 40));
        let name = name(&key, extent);
        let (shard, rest) = name.split_once('/').unwrap();
        assert_eq!((shard, parse(rest).unwrap().1), ("ab", extent));
        for bad in [
            "",
            "a.b-c",
            &rest[1..],
            &format!("{rest}{DRAFT_SUFFIX}"),
            &rest.to_uppercase(),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let empty = rest.replace(&rest[63..], "0000000000000005-0000000000000005");
        assert_eq!(parse(&empty), None);
    }
}
