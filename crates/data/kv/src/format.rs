//! The files of a tier: their names, sizes and headers.
//!
//! A tier is a folder with a superblock and up to 64 segments. A segment is two files: `segment-00.chunks` has the
//! slots, one for each chunk, and `segment-00.journal` has a record for each slot. All sizes follow from the
//! superblock, which is written once. So the tier is bounded before its first write, and never grows.
//!
//! Headers come from a file that anybody may have written. They are accepted only if every field is in range, fits the
//! others, and has its checksum.

use straightway_core::{Error, ErrorKind, Result, extent::up};

/// The name of the superblock.
pub(crate) const SUPERBLOCK: &str = "superblock";

/// The length of the superblock, of a journal's header, and of its ring of changes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The words of a page.
pub(crate) const PAGE_WORDS: usize = 512;

/// The words of a record.
pub(crate) const RECORD_WORDS: usize = 16;

/// The bytes of a record.
const RECORD_BYTES: u64 = 8 * RECORD_WORDS as u64;

/// The most segments. One is the least that a process can lease, so 64 processes can write.
const SEGMENTS_MAX: u32 = 64;

/// The most slots: 2^28, which is 1 PiB of 4 MiB chunks and 32 GiB of records.
const SLOTS_MAX: u64 = 1 << 28;

/// The longest chunk.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// Slots that a segment has at least, where there is a choice: a tier of few chunks has few segments.
const SEGMENT_SLOTS_MIN: u64 = 4;

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"strwayKV");
const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"strwayKJ");
const VERSION: u64 = 1;

/// Words of a superblock that have values and a checksum.
const SUPERBLOCK_WORDS: usize = 9;

/// Words of a journal's header that have values and a checksum.
const JOURNAL_WORDS: usize = 7;

/// The word of the superblock that counts uses of chunks: the clock of the eviction order.
pub(crate) const TICK: usize = 256;

/// The word of the superblock that counts publications, of all processes.
pub(crate) const BELL: usize = 257;

/// The word of the superblock that counts journals that were formatted.
pub(crate) const FORMATTED: usize = 258;

/// The word of a journal's header that counts the publications in its segment.
pub(crate) const PUBLISHED: usize = 256;

/// The identity of a tier, drawn when it is created. Files of another tier are refused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TierId(pub(crate) [u64; 2]);

/// The sizes of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub(crate) id: TierId,
    chunk_bytes: u64,
    slots: u32,
    segments: u32,
    bytes_max: u64,
}

/// A slot: the segment, and the number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotAt {
    pub(crate) segment: u32,
    pub(crate) number: u32,
}

impl Geometry {
    /// The sizes of a tier whose files take at most `bytes_max`, for chunks of `chunk_bytes`.
    pub(crate) fn fit(id: TierId, chunk_bytes: u64, bytes_max: u64) -> Result<Self> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, "create", "a KV cache", why));
        if !(1..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return refuse(format!(
                "chunks of {chunk_bytes} bytes: 1 to {CHUNK_BYTES_MAX} are allowed"
            ));
        }
        let slots = |segments: u32| {
            // The records of a segment are padded to a page.
            let fixed = PAGE_BYTES + u64::from(segments) * 3 * PAGE_BYTES;
            let room = bytes_max.saturating_sub(fixed);
            (room / (slot_bytes(chunk_bytes) + RECORD_BYTES)).min(SLOTS_MAX)
        };
        let counts = std::iter::successors(Some(SEGMENTS_MAX), |count| Some(count / 2));
        let enough = |count: &u32| slots(*count) >= SEGMENT_SLOTS_MIN * u64::from(*count);
        let segments = counts.take_while(|count| *count > 1).find(enough).unwrap_or(1);
        let Some(slots) = u32::try_from(slots(segments)).ok().filter(|slots| *slots > 0) else {
            let least = slot_bytes(chunk_bytes) + RECORD_BYTES + 4 * PAGE_BYTES;
            return refuse(format!(
                "{bytes_max} bytes are too few for chunks of {chunk_bytes}: one needs {least} bytes"
            ));
        };
        // The last segments of an uneven division would be empty.
        let segments = slots.div_ceil(slots.div_ceil(segments));
        Ok(Self {
            id,
            chunk_bytes,
            slots,
            segments,
            bytes_max,
        })
    }

    /// The superblock.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let [id, rest] = self.id.0;
        let mut words = vec![
            SUPERBLOCK_MAGIC,
            VERSION,
            id,
            rest,
            self.chunk_bytes,
            u64::from(self.slots),
            u64::from(self.segments),
            self.bytes_max,
        ];
        words.push(crc_of(&words));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(usize::try_from(PAGE_BYTES).expect("a page is small"), 0);
        bytes
    }

    /// Reads a superblock. The message says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 != PAGE_BYTES {
            return Err(format!("it has {} bytes, not {PAGE_BYTES}", bytes.len()));
        }
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let words = &words[..SUPERBLOCK_WORDS];
        if words[0] != SUPERBLOCK_MAGIC {
            return Err("it is not the superblock of a KV cache".to_owned());
        }
        if words[1] != VERSION {
            return Err(format!("it has version {}, and this program reads {VERSION}", words[1]));
        }
        if words[8] != crc_of(&words[..8]) {
            return Err("its checksum does not match: it is damaged".to_owned());
        }
        let inconsistent = || "its sizes contradict each other".to_owned();
        // There is one way to divide a size.
        let fitted = Self::fit(TierId([words[2], words[3]]), words[4], words[7]).map_err(|_| inconsistent())?;
        let is_same = (u64::from(fitted.slots), u64::from(fitted.segments)) == (words[5], words[6]);
        if is_same { Ok(fitted) } else { Err(inconsistent()) }
    }

    /// The length of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The most bytes that the files of the tier may take.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The most chunks that the tier can hold.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The number of segments.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// The bytes that all files take together once every segment is in use. It is never more than the bound.
    pub fn bytes(&self) -> u64 {
        let segments = (0..self.segments).map(|segment| self.journal_bytes(segment) + self.chunks_bytes(segment));
        PAGE_BYTES + segments.sum::<u64>()
    }

    /// The number of slots of every segment but the last.
    fn segment_slots(&self) -> u32 {
        self.slots.div_ceil(self.segments)
    }

    /// The number of slots of a segment.
    pub(crate) fn slots_of(&self, segment: u32) -> u32 {
        let before = segment * self.segment_slots();
        self.segment_slots().min(self.slots - before)
    }

    /// The place of the slot with this number in the tier.
    pub(crate) fn slot(&self, slot: u32) -> SlotAt {
        SlotAt {
            segment: slot / self.segment_slots(),
            number: slot % self.segment_slots(),
        }
    }

    /// The number of a slot in the tier.
    pub(crate) fn number(&self, at: SlotAt) -> u32 {
        at.segment * self.segment_slots() + at.number
    }

    /// The offset of a slot in its file.
    pub(crate) fn offset(&self, at: SlotAt) -> u64 {
        u64::from(at.number) * slot_bytes(self.chunk_bytes)
    }

    /// The length of the file with the slots of a segment.
    pub(crate) fn chunks_bytes(&self, segment: u32) -> u64 {
        u64::from(self.slots_of(segment)) * slot_bytes(self.chunk_bytes)
    }

    /// The length of a segment's journal.
    pub(crate) fn journal_bytes(&self, segment: u32) -> u64 {
        2 * PAGE_BYTES + up(u64::from(self.slots_of(segment)) * RECORD_BYTES, PAGE_BYTES)
    }

    /// The header of a segment's journal.
    pub(crate) fn journal_header(&self, segment: u32) -> [u64; JOURNAL_WORDS] {
        let [id, rest] = self.id.0;
        let slots = u64::from(self.slots_of(segment));
        let mut words = [JOURNAL_MAGIC, VERSION, id, rest, u64::from(segment), slots, 0];
        words[JOURNAL_WORDS - 1] = crc_of(&words[..JOURNAL_WORDS - 1]);
        words
    }
}

/// The word at which a slot's record begins in its journal.
pub(crate) fn record_word(number: u32) -> usize {
    2 * PAGE_WORDS + number as usize * RECORD_WORDS
}

/// The word of a journal's ring that names the slot of a publication.
pub(crate) fn change_word(publication: u64) -> usize {
    PAGE_WORDS + usize::try_from(publication % PAGE_WORDS as u64).expect("a page is small")
}

/// The name of the file with the slots of a segment.
pub(crate) fn chunks_name(segment: u32) -> String {
    format!("segment-{segment:02}.chunks")
}

/// The name of a segment's journal.
pub(crate) fn journal_name(segment: u32) -> String {
    format!("segment-{segment:02}.journal")
}

/// Whether a file of this name belongs to a segment.
pub(crate) fn is_segment_name(name: &str) -> bool {
    let stem = name.strip_suffix(".chunks").or_else(|| name.strip_suffix(".journal"));
    let number = stem.and_then(|stem| stem.strip_prefix("segment-"));
    number.is_some_and(|number| number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The length of a slot: that of a chunk in whole pages, so that it can be read and written around the page cache.
fn slot_bytes(chunk_bytes: u64) -> u64 {
    up(chunk_bytes, PAGE_BYTES)
}

/// The checksum of words.
pub(crate) fn crc_of(words: &[u64]) -> u64 {
    let mut bytes = [0; 8 * 20];
    let used = &mut bytes[..8 * words.len()];
    for (place, word) in used.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, used)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: TierId = TierId([1, 2]);

    proptest! {
        #[test]
        fn a_tier_fits_its_bound_and_its_superblock_is_read_as_it_was_written(
            chunk_bytes in 1..(8_u64 << 20), bytes_max in 0..(1_u64 << 40)
        ) {
            let Ok(geometry) = Geometry::fit(ID, chunk_bytes, bytes_max) else {
                prop_assert!(bytes_max < chunk_bytes + 5 * PAGE_BYTES);
                return Ok(());
            };
            prop_assert!(geometry.bytes() <= bytes_max);
            prop_assert!(bytes_max - geometry.bytes() < (1 + 3 * u64::from(geometry.segments)) * PAGE_BYTES
                + slot_bytes(chunk_bytes) + RECORD_BYTES || u64::from(geometry.slots) == SLOTS_MAX);
            prop_assert_eq!(Geometry::decode(&geometry.encode()), Ok(geometry));
            let all: u64 = (0..geometry.segments).map(|segment| u64::from(geometry.slots_of(segment))).sum();
            prop_assert_eq!(all, u64::from(geometry.slots));
            let last = geometry.slots - 1;
            prop_assert_eq!(geometry.number(geometry.slot(last)), last);
            prop_assert!(geometry.slot(last).segment < geometry.segments);
        }
    }

    #[test]
    fn a_superblock_with_any_flipped_bit_is_refused() {
        let good = Geometry::fit(ID, 4096, 1 << 20).unwrap().encode();
        for bit in 0..8 * 8 * SUPERBLOCK_WORDS {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Geometry::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Geometry::decode(&good[1..]).is_err());
    }

    #[test]
    fn names_of_segments_are_told_from_others() {
        assert!(is_segment_name(&chunks_name(7)) && is_segment_name(&journal_name(63)));
        for other in [
            "segment-1.chunks",
            "segment-001.journal",
            "superblock",
            "segment-07.chunks.old",
        ] {
            assert!(!is_segment_name(other), "{other}");
        }
    }
}
