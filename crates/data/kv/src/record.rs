//! The record of a chunk in a journal: its key, its namespace, its generation, and what proves its bytes.
//!
//! | word | content |
//! |---|---|
//! | 0 | the state of the slot: even for a stored chunk, and then its generation; odd while it is written |
//! | 1–4 | the key |
//! | 5, 6 | the namespace |
//! | 7, 8 | the checksum of the chunk, or its GCM tag |
//! | 9, 10 | zero, or the nonce (12 bytes) and the number of the encryption key (4 bytes) |
//! | 11–13 | zero |
//! | 14 | the time of the last use, in ticks. It is not part of the record: all processes write it |
//! | 15 | the checksum of the record, with the tier, the segment and the slot |
//!
//! The proof of a chunk covers its bytes and its place: tier, segment, slot, generation, namespace and key. So bytes of
//! another chunk, of an earlier one in the same slot, or of another file never pass for it.

use crate::{
    format::{RECORD_WORDS, SlotAt, TierId, crc_of},
    key::{Key, KvNamespace},
};

/// The word of a record with the state of its slot.
pub(crate) const STATE: usize = 0;

/// The word of a record with the time of its last use.
pub(crate) const USED: usize = 14;

/// The words that a publication writes, after which it writes the state.
pub(crate) const BODY: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, CHECKSUM];

const CHECKSUM: usize = 15;

/// A slot of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) tier: TierId,
    pub(crate) at: SlotAt,
}

/// What proves the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The checksum of a chunk that is not encrypted.
    Sum(u64),
    /// The tag of an encrypted chunk, and what else decryption needs.
    Sealed {
        key_number: u32,
        nonce: [u8; 12],
        tag: [u8; 16],
    },
}

/// The name of a chunk in one slot: all that its proof covers except for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) position: Position,
    pub(crate) generation: u64,
    pub(crate) namespace: KvNamespace,
    pub(crate) key: Key,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) binding: Binding,
    pub(crate) proof: Proof,
}

impl Binding {
    /// The bytes that encryption authenticates beside those of the chunk.
    pub(crate) fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words()) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// The checksum of a chunk with these bytes, given their CRC-64/NVME.
    pub(crate) fn sum(&self, payload_crc: u64) -> u64 {
        let mut words = [0; 11];
        words[..10].copy_from_slice(&self.words());
        words[10] = payload_crc;
        crc_of(&words)
    }

    fn words(&self) -> [u64; 10] {
        let [tier, rest] = self.position.tier.0;
        let SlotAt { segment, number } = self.position.at;
        let [a, b, c, d] = self.key.words();
        let [namespace, more] = self.namespace.0;
        let slot = u64::from(segment) << 32 | u64::from(number);
        [tier, rest, slot, self.generation, namespace, more, a, b, c, d]
    }
}

impl Record {
    /// The record as words. The one with the time of its last use is zero.
    pub(crate) fn encode(&self) -> [u64; RECORD_WORDS] {
        let mut words = [0; RECORD_WORDS];
        words[STATE] = self.binding.generation;
        words[1..5].copy_from_slice(&self.binding.key.words());
        words[5..7].copy_from_slice(&self.binding.namespace.0);
        match self.proof {
            Proof::Sum(sum) => words[7] = sum,
            Proof::Sealed { key_number, nonce, tag } => {
                let tag = u128::from_le_bytes(tag);
                let mut padded = [0; 16];
                padded[..12].copy_from_slice(&nonce);
                padded[12..].copy_from_slice(&key_number.to_le_bytes());
                let nonce = u128::from_le_bytes(padded);
                (words[7], words[8]) = halves(tag);
                (words[9], words[10]) = halves(nonce);
            }
        }
        words[CHECKSUM] = checksum(&words, self.binding.position);
        words
    }

    /// Reads the words of a slot. `None` if they are no record of that slot: they are damaged, or of another file.
    pub(crate) fn decode(words: &[u64; RECORD_WORDS], position: Position) -> Option<Self> {
        let is_stored = words[STATE] > 0 && words[STATE].is_multiple_of(2);
        let is_whole = words[CHECKSUM] == checksum(words, position);
        if !is_stored || !is_whole || words[11..14] != [0; 3] {
            return None;
        }
        let whole = |low: u64, high: u64| u128::from(high) << 64 | u128::from(low);
        let nonce = whole(words[9], words[10]).to_le_bytes();
        let (nonce, key_number) = (nonce[..12].try_into(), nonce[12..].try_into());
        let key_number = u32::from_le_bytes(key_number.expect("4 bytes"));
        let proof = match key_number {
            0 => Proof::Sum(words[7]),
            _ => Proof::Sealed {
                key_number,
                nonce: nonce.expect("12 bytes"),
                tag: whole(words[7], words[8]).to_le_bytes(),
            },
        };
        let binding = Binding {
            position,
            generation: words[STATE],
            namespace: KvNamespace([words[5], words[6]]),
            key: Key::from_words([words[1], words[2], words[3], words[4]]),
        };
        Some(Self { binding, proof })
    }
}

/// The checksum of a record: all of its words but the last two, and its place.
fn checksum(words: &[u64; RECORD_WORDS], position: Position) -> u64 {
    let mut all = [0; USED + 4];
    all[..USED].copy_from_slice(&words[..USED]);
    all[USED..USED + 2].copy_from_slice(&position.tier.0);
    all[USED + 2] = position.at.segment.into();
    all[USED + 3] = position.at.number.into();
    crc_of(&all)
}

fn halves(whole: u128) -> (u64, u64) {
    let low = u64::try_from(whole & u128::from(u64::MAX)).expect("it was masked");
    let high = u64::try_from(whole >> 64).expect("it was shifted");
    (low, high)
}

/// Decodes any words as a record, for the fuzz target. Returns whether they are one; what is accepted is the same after
/// it was written again.
pub fn check_record(words: &[u64; RECORD_WORDS]) -> bool {
    let position = Position {
        tier: TierId([1, 2]),
        at: SlotAt { segment: 3, number: 4 },
    };
    let Some(record) = Record::decode(words, position) else {
        return false;
    };
    let again = record.encode();
    assert_eq!(Record::decode(&again, position), Some(record));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position() -> Position {
        Position {
            tier: TierId([1, 2]),
            at: SlotAt { segment: 3, number: 4 },
        }
    }

    fn records() -> [Record; 2] {
        let binding = Binding {
            position: position(),
            generation: 6,
            namespace: KvNamespace([7, 8]),
            key: Key::of(b"tokens"),
        };
        let proof = Proof::Sealed {
            key_number: 9,
            nonce: [10; 12],
            tag: [11; 16],
        };
        [
            Record {
                binding,
                proof: Proof::Sum(12),
            },
            Record { binding, proof },
        ]
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_only_in_its_slot() {
        for record in records() {
            let mut words = record.encode();
            words[USED] = 99;
            assert_eq!(Record::decode(&words, position()), Some(record));
            assert!(check_record(&words));
            let mut moved = position();
            moved.at.number += 1;
            assert_eq!(Record::decode(&words, moved), None);
            moved = position();
            moved.tier.0[0] += 1;
            assert_eq!(Record::decode(&words, moved), None);
        }
    }

    #[test]
    fn a_record_with_any_flipped_bit_is_refused() {
        for record in records() {
            for bit in (0..64 * RECORD_WORDS).filter(|bit| bit / 64 != USED) {
                let mut words = record.encode();
                words[bit / 64] ^= 1 << (bit % 64);
                assert_eq!(Record::decode(&words, position()), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn the_checksum_of_a_chunk_depends_on_everything_it_is_bound_to() {
        let good = records()[0].binding;
        let mut others = [good; 6];
        others[0].generation += 2;
        others[1].key.0[31] ^= 1;
        others[2].namespace.0[1] ^= 1;
        others[3].position.at.number += 1;
        others[4].position.at.segment += 1;
        others[5].position.tier.0[1] ^= 1;
        assert!(others.iter().all(|other| other.sum(5) != good.sum(5)));
        assert_ne!(good.sum(5), good.sum(6));
    }
}
