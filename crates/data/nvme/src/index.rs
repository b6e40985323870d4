//! The name index of a subsystem: the name of each namespace and the exact length of its object.
//!
//! A Straightway target serves a folder as one namespace per file. NVMe namespaces have no names, and their size is a
//! whole number of blocks. The target therefore reports names and lengths in a vendor-specific log page
//! ([`INDEX_PAGE`]). A host reads it like the discovery log: the header first, then the whole page, and again if the
//! generation changed meanwhile. Later it reads single entries, to learn their current lengths and versions: both are
//! newer than the command that reads them. An entry must be read by one command. Other targets reject the page; their namespaces have only numbers.
//!
//! The header has 64 bytes: magic 0..8, generation 8..16, entries 16..20, zeros 20..24, the length of the page 24..32,
//! the boot of the target's machine 32..40, zeros to 64.
//! An entry has 32 bytes followed by its name, padded with zeros to a multiple of 4: NSID 0..4, length of the name
//! 4..6, flags 6..8 (bit 0: writable), length of the object 8..16, its version 16..24, zeros to 32. Entries are sorted
//! by name. An empty object has no namespace and NSID 0.

use std::ops::Range;

use crate::{Malformed, wire};

/// The log page identifier.
pub const INDEX_PAGE: u8 = 0xc0;

/// A bit of the log specific field: the target looks for added and removed names before it answers. Targets before
/// 0.2.0 ignore it.
pub const INDEX_SCANS: u8 = 1;

/// The bytes of the header.
pub const INDEX_HEADER_BYTES: usize = 64;

/// The longest name in bytes.
pub const INDEX_NAME_BYTES_MAX: usize = 4096;

/// The maximum number of entries.
pub const INDEX_ENTRIES_MAX: usize = 1 << 16;
/// The maximum length of the page.
pub const INDEX_BYTES_MAX: u64 = 16 << 20;

const MAGIC: [u8; 8] = *b"SWINDEX1";
const ENTRY_BYTES: usize = 32;
const VERSION_AT: usize = 16;
const BOOT_AT: usize = 32;
const WRITABLE: u16 = 1;
const SHORT: Malformed = Malformed("the index ends inside an entry");

/// The header of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// Increases when a name is added or removed, or when its namespace changes. Lengths and versions change without it.
    pub generation: u64,
    /// The number of entries that follow.
    pub entries: u32,
    /// The length of the whole page.
    pub bytes: u64,
    /// A number that changes when the target's machine is restarted, which loses writes that were not flushed. 0 if it
    /// is not known.
    pub boot: u64,
}

/// The entry of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its namespace; 0 for an empty object, which has none.
    pub nsid: u32,
    /// Whether the namespace can be written to.
    pub is_writable: bool,
    /// The length of the object. The namespace is padded with zeros to whole blocks.
    pub bytes: u64,
    /// Changes whenever the target notices that the content was replaced, or modified by another program or host.
    pub version: u64,
    /// Its name: a relative path with `/` between its parts. It need not be UTF-8.
    pub name: Vec<u8>,
}

/// The whole page: the names of all namespaces of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NameIndex {
    /// Increases when a name is added or removed, or when its namespace changes. Lengths and versions change without it.
    pub generation: u64,
    /// The boot of the target's machine; 0 if it is not known.
    pub boot: u64,
    /// The entries, sorted by name.
    pub entries: Vec<IndexEntry>,
}

/// Whether `name` is a valid relative path without `.` and `..` components.
pub fn is_index_name(name: &[u8]) -> bool {
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    name.len() <= INDEX_NAME_BYTES_MAX && !name.contains(&0) && name.split(|b| *b == b'/').all(is_part)
}

impl IndexHeader {
    /// Reads the first [`INDEX_HEADER_BYTES`] of the page.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let header: &[u8; INDEX_HEADER_BYTES] = bytes
            .first_chunk()
            .ok_or(Malformed("the index is shorter than its header"))?;
        if header[..8] != MAGIC {
            return Err(Malformed("the index does not begin with its magic"));
        }
        let header = Self {
            generation: wire::u64_at(header, 8),
            entries: wire::u32_at(header, 16),
            bytes: wire::u64_at(header, 24),
            boot: wire::u64_at(header, BOOT_AT),
        };
        let is_long = header.bytes >= INDEX_HEADER_BYTES as u64 && header.bytes <= INDEX_BYTES_MAX;
        if header.entries as usize > INDEX_ENTRIES_MAX || !is_long {
            return Err(Malformed("the index is longer than the limit"));
        }
        Ok(header)
    }
}

impl NameIndex {
    /// Encodes the page. Returns `None` if it exceeds the limits or has an invalid name.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; INDEX_HEADER_BYTES];
        for entry in &self.entries {
            if !is_index_name(&entry.name) {
                return None;
            }
            let start = bytes.len();
            bytes.resize(start + ENTRY_BYTES, 0);
            let head = &mut bytes[start..];
            let name_bytes = u16::try_from(entry.name.len()).ok()?;
            let flags = if entry.is_writable { WRITABLE } else { 0 };
            wire::put(head, 0, &entry.nsid.to_le_bytes());
            wire::put(head, 4, &name_bytes.to_le_bytes());
            wire::put(head, 6, &flags.to_le_bytes());
            wire::put(head, 8, &entry.bytes.to_le_bytes());
            wire::put(head, VERSION_AT, &entry.version.to_le_bytes());
            bytes.extend_from_slice(&entry.name);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let length = bytes.len() as u64;
        if self.entries.len() > INDEX_ENTRIES_MAX || length > INDEX_BYTES_MAX {
            return None;
        }
        wire::put(&mut bytes, 0, &MAGIC);
        wire::put(&mut bytes, 8, &self.generation.to_le_bytes());
        let entries = u32::try_from(self.entries.len()).ok()?;
        wire::put(&mut bytes, 16, &entries.to_le_bytes());
        wire::put(&mut bytes, 24, &length.to_le_bytes());
        wire::put(&mut bytes, BOOT_AT, &self.boot.to_le_bytes());
        Some(bytes)
    }

    /// The range of each entry in the encoded page, in the order of the entries.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = INDEX_HEADER_BYTES;
        self.entries.iter().map(move |entry| {
            let start = next;
            next += ENTRY_BYTES + entry.name.len().next_multiple_of(4);
            start..next
        })
    }

    /// The offset of the version of each entry in the encoded page, in the order of the entries. Versions change more
    /// often than names, and a target replaces them in place.
    pub fn version_offsets(&self) -> impl Iterator<Item = usize> {
        self.ranges().map(|range| range.start + VERSION_AT)
    }

    /// The range of the entry of a name in the encoded page.
    pub fn range_of(&self, name: &[u8]) -> Option<Range<usize>> {
        self.ranges().nth(self.position(name)?)
    }

    /// Decodes the whole page. Bytes after its end are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let header = IndexHeader::decode(bytes)?;
        let length = usize::try_from(header.bytes).map_err(|_| SHORT)?;
        let mut rest = bytes.get(INDEX_HEADER_BYTES..length).ok_or(SHORT)?;
        let mut entries: Vec<IndexEntry> = Vec::new();
        for _ in 0..header.entries {
            let (entry, behind) = IndexEntry::decode(rest)?;
            if entries.last().is_some_and(|last| last.name >= entry.name) {
                return Err(Malformed("the index is not sorted by name"));
            }
            entries.push(entry);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(Malformed("the index is longer than its entries"));
        }
        Ok(Self {
            generation: header.generation,
            boot: header.boot,
            entries,
        })
    }

    /// Finds the entry of a name.
    pub fn find(&self, name: &[u8]) -> Option<&IndexEntry> {
        Some(&self.entries[self.position(name)?])
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        let found = self.entries.binary_search_by(|entry| entry.name.as_slice().cmp(name));
        found.ok()
    }
}

impl IndexEntry {
    /// Decodes the entry at the start of `bytes`. Returns it and the bytes after it.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (head, behind) = bytes.split_at_checked(ENTRY_BYTES).ok_or(SHORT)?;
        let name_bytes = usize::from(wire::u16_at(head, 4));
        let (padded, behind) = behind.split_at_checked(name_bytes.next_multiple_of(4)).ok_or(SHORT)?;
        let entry = Self {
            nsid: wire::u32_at(head, 0),
            is_writable: wire::u16_at(head, 6) & WRITABLE != 0,
            bytes: wire::u64_at(head, 8),
            version: wire::u64_at(head, VERSION_AT),
            name: padded[..name_bytes].to_vec(),
        };
        if !is_index_name(&entry.name) {
            return Err(Malformed("a name in the index is not a relative path"));
        }
        if (entry.nsid == 0) != (entry.bytes == 0) {
            return Err(Malformed("an object in the index has bytes and no namespace"));
        }
        Ok((entry, behind))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(name: &str, nsid: u32, bytes: u64) -> IndexEntry {
        IndexEntry {
            nsid,
            is_writable: false,
            bytes,
            version: 7,
            name: name.as_bytes().to_vec(),
        }
    }

    proptest! {
        #[test]
        fn the_index_round_trips(
            generation: u64,
            boot: u64,
            named in prop::collection::btree_map("[a-z\u{e9}]{1,9}(/[a-z]{1,9}){0,2}", (1_u64.., any::<u64>(), any::<bool>()), 0..20),
        ) {
            let named: BTreeMap<String, _> = named;
            let entries = named.into_iter().zip(1..).map(|((name, (bytes, version, is_writable)), nsid)| IndexEntry {
                nsid, is_writable, bytes, version, name: name.into_bytes(),
            });
            let index = NameIndex { generation, boot, entries: entries.collect() };
            let mut bytes = index.encode().expect("within the limits");
            prop_assert_eq!(bytes.len() % 4, 0);
            for (at, entry) in index.version_offsets().zip(&index.entries) {
                prop_assert_eq!(wire::u64_at(&bytes, at), entry.version);
                let range = index.range_of(&entry.name).expect("it has the name");
                let (decoded, behind) = IndexEntry::decode(&bytes[range]).expect("ours");
                prop_assert_eq!(&decoded, entry);
                prop_assert!(behind.is_empty());
            }
            prop_assert!(NameIndex::decode(&bytes[..bytes.len() - 1]).is_err());
            bytes.extend([9; 8]);
            prop_assert_eq!(NameIndex::decode(&bytes).expect("ours"), index);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(tail: Vec<u8>, entries in 0_u32..3) {
            let mut bytes = vec![0; INDEX_HEADER_BYTES];
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[16..20].copy_from_slice(&entries.to_le_bytes());
            bytes[24..32].copy_from_slice(&((INDEX_HEADER_BYTES + tail.len()) as u64).to_le_bytes());
            bytes.extend(tail);
            if let Ok(index) = NameIndex::decode(&bytes) {
                prop_assert_eq!(NameIndex::decode(&index.encode().expect("it was decoded")).expect("ours"), index);
            }
        }
    }

    #[test]
    fn the_boot_is_in_the_header_and_unknown_if_it_is_zero() {
        let index = NameIndex {
            generation: 1,
            boot: 0x0807_0605_0403_0201,
            entries: vec![entry("a", 1, 1)],
        };
        let mut bytes = index.encode().expect("small");
        assert_eq!(bytes[32..40], [1, 2, 3, 4, 5, 6, 7, 8]);
        let header = IndexHeader::decode(&bytes).expect("ours");
        assert_eq!(header.boot, index.boot);
        // Older targets leave it empty.
        bytes[32..40].fill(0);
        let old = NameIndex::decode(&bytes).expect("it is valid");
        assert_eq!((old.boot, old.entries), (0, index.entries));
    }

    #[test]
    fn names_outside_the_folder_are_refused() {
        for bad in ["", "/", "/etc/passwd", "a//b", "a/../b", "..", ".", "a/", "a\0b"] {
            let index = NameIndex {
                generation: 1,
                boot: 0,
                entries: vec![entry(bad, 1, 1)],
            };
            assert_eq!(index.encode(), None, "{bad:?}");
        }
        assert!(is_index_name(b"model/...x/weights.safetensors"));
    }

    #[test]
    fn unsorted_entries_and_oversized_lengths_are_refused() {
        let index = |entries| NameIndex {
            generation: 1,
            boot: 0,
            entries,
        };
        let twice = index(vec![entry("a", 1, 1), entry("a", 2, 1)]);
        assert!(NameIndex::decode(&twice.encode().expect("it can be encoded")).is_err());
        let lost = index(vec![entry("a", 0, 1)]);
        assert!(NameIndex::decode(&lost.encode().expect("it can be encoded")).is_err());
        let mut huge = index(vec![entry("a", 1, 1)]).encode().expect("small");
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(NameIndex::decode(&huge).is_err());
        let mut many = index(vec![]).encode().expect("small");
        many[16..20].copy_from_slice(&60_000_u32.to_le_bytes());
        assert!(NameIndex::decode(&many).is_err());
        let found = index(vec![entry("a", 1, 1), entry("b/c", 2, 1)]);
        assert_eq!(found.find(b"b/c").map(|entry| entry.nsid), Some(2));
        assert_eq!((found.find(b"b"), found.range_of(b"b")), (None, None));
    }
}
