//! Blocks that an old controller may still write to.
//!
//! A write whose completion was lost with its connection is repeated unchanged. The target may still execute the first
//! copy, until it drops the old controller. Other data for these blocks must wait until then, or the old data could
//! overwrite it. Identical repeats need not wait.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// The maximum number of ranges. Beyond it, all writes wait for the latest time.
const RANGES_MAX: usize = 4096;

/// Ranges of blocks, each with the time when it is released.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    is_used: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    ranges: Vec<(u32, Range<u64>, Instant)>,
    /// The time until which all blocks are held.
    all: Option<Instant>,
}

impl Quarantine {
    /// Holds a byte range of a namespace until a time.
    pub(crate) fn add(&self, nsid: u32, bytes: Range<u64>, until: Instant) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.ranges.len() >= RANGES_MAX {
            held.all = held.all.max(Some(until));
        } else {
            held.ranges.push((nsid, bytes, until));
        }
        self.is_used.store(true, Ordering::Release);
    }

    /// Holds all blocks until a time.
    pub(crate) fn add_all(&self, until: Instant) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all = held.all.max(Some(until));
        self.is_used.store(true, Ordering::Release);
    }

    /// The time when a byte range of a namespace may get other data; `None` if it may now.
    pub(crate) fn until(&self, nsid: u32, bytes: &Range<u64>, now: Instant) -> Option<Instant> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.ranges.retain(|(_, _, until)| *until > now);
        held.all = held.all.filter(|until| *until > now);
        if held.ranges.is_empty() && held.all.is_none() {
            self.is_used.store(false, Ordering::Release);
        }
        let overlaps = |(id, range, until): &(u32, Range<u64>, Instant)| {
            let is_hit = *id == nsid && range.start < bytes.end && bytes.start < range.end;
            is_hit.then_some(*until)
        };
        held.ranges
            .iter()
            .filter_map(overlaps)
            .chain(held.all)
            .max()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_overlapping_blocks_wait_and_only_for_a_time() {
        let (quarantine, now) = (Quarantine::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        assert_eq!(quarantine.until(1, &(0..4096), now), None);
        quarantine.add(1, 4096..8192, until);
        assert_eq!(quarantine.until(1, &(0..4096), now), None);
        assert_eq!(quarantine.until(2, &(4096..8192), now), None);
        assert_eq!(quarantine.until(1, &(0..4097), now), Some(until));
        assert_eq!(quarantine.until(1, &(8191..9000), now), Some(until));
        assert_eq!(quarantine.until(1, &(4096..8192), until), None);
        assert!(!quarantine.is_used.load(Ordering::Relaxed));
    }

    #[test]
    fn too_many_ranges_hold_everything() {
        let (quarantine, now) = (Quarantine::default(), Instant::now());
        let until = now + Duration::from_secs(1);
        for n in 0..=RANGES_MAX as u64 {
            quarantine.add(1, n..n + 1, until);
        }
        assert_eq!(quarantine.until(9, &(0..1), now), Some(until));
    }
}
