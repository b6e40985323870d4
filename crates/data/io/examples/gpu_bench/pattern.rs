//! Bytes that follow from their offset alone, so that every one can be checked.

use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Move, Result, random::mix};
use straightway_io::Region;

/// The bytes that are read back at a time.
const STEP_BYTES: usize = 64 << 20;

/// The word at position `i` of a file.
fn word(i: u64) -> [u8; 8] {
    mix(i).to_le_bytes()
}

fn byte(at: u64) -> u8 {
    word(at / 8)[usize::try_from(at % 8).expect("below 8")]
}

/// Fills `bytes` with the pattern from `offset` on, a multiple of 8, on all cores.
pub(crate) fn fill(bytes: &mut [u8], offset: u64) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = bytes.len().div_ceil(threads).next_multiple_of(8).max(8);
    std::thread::scope(|scope| {
        for (part, start) in bytes.chunks_mut(share).zip((offset..).step_by(share)) {
            scope.spawn(move || {
                for (chunk, i) in part.chunks_mut(8).zip(start / 8..) {
                    chunk.copy_from_slice(&word(i)[..chunk.len()]);
                }
            });
        }
    });
}

/// Checks that the region holds the file from its start on.
pub(crate) fn check_whole(region: &mut Arc<Region>, what: &str) -> Result<()> {
    let region = Arc::get_mut(region).expect("no transfer is running");
    let (mut seen, mut expected) = (vec![0; STEP_BYTES], vec![0; STEP_BYTES]);
    for offset in (0..region.bytes()).step_by(STEP_BYTES) {
        let len = usize::try_from(region.bytes() - offset)
            .unwrap_or(usize::MAX)
            .min(STEP_BYTES);
        region.read_at(offset, &mut seen[..len])?;
        fill(&mut expected[..len], offset);
        if seen[..len] != expected[..len] {
            return Err(wrong(what, offset));
        }
    }
    Ok(())
}

/// Checks all bytes of every 997th move.
pub(crate) fn check_moves(region: &mut Arc<Region>, moves: &[Move], what: &str) -> Result<()> {
    let region = Arc::get_mut(region).expect("no transfer is running");
    for m in moves.iter().step_by(997) {
        let mut seen = vec![0; usize::try_from(m.extent.bytes).unwrap_or(usize::MAX)];
        region.read_at(m.at, &mut seen)?;
        let right = |(i, seen): (u64, &u8)| *seen == byte(m.extent.offset + i);
        if !(0..).zip(&seen).all(right) {
            return Err(wrong(what, m.at));
        }
    }
    Ok(())
}

fn wrong(what: &str, at: u64) -> Error {
    let message = format!("wrong bytes at or after {at}");
    Error::new(ErrorKind::Corrupt, "verify", what, message)
}
