//! Blocks that an old controller may still write to.
//!
//! A write whose completion was lost with its connection is repeated unchanged. The target may still execute the first
//! copy, until it drops the old controller. Other data for these blocks must wait until then, or the old data could
//! overwrite it. Identical repeats need not wait.
//!
//! There is one quarantine in a process, because several stores may write to the same subsystem one after another: a
//! Python call with its own options makes a new store. Subsystems are told apart by NQN, not by address, because a
//! subsystem has several addresses. Two targets with the same NQN therefore wait for each other, which is harmless.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use straightway_core::Lock;
use straightway_nvme::Nqn;

/// The maximum number of ranges. Beyond it, all writes to a subsystem wait for the latest time.
const RANGES_MAX: usize = 4096;

/// The quarantine of this process.
pub(crate) static QUARANTINE: Quarantine = Quarantine::new();

/// Ranges of blocks, each with the time when it is released.
#[derive(Debug)]
pub(crate) struct Quarantine {
    is_used: AtomicBool,
    held: Lock<Held>,
}

#[derive(Debug)]
struct Held {
    ranges: Vec<HeldRange>,
    /// Subsystems of which all blocks are held, and until when.
    subsystems: Vec<(Nqn, Instant)>,
}

/// A byte range of a namespace.
#[derive(Debug)]
struct HeldRange {
    subsystem: Nqn,
    nsid: u32,
    bytes: Range<u64>,
    until: Instant,
}

impl Quarantine {
    const fn new() -> Self {
        Self {
            is_used: AtomicBool::new(false),
            held: Lock::new(Held {
                ranges: Vec::new(),
                subsystems: Vec::new(),
            }),
        }
    }

    /// Holds a byte range of a namespace until a time.
    pub(crate) fn add(&self, subsystem: &Nqn, nsid: u32, bytes: Range<u64>, until: Instant) {
        let mut held = self.held.lock();
        if held.ranges.len() >= RANGES_MAX {
            held.add_all(subsystem, until);
        } else {
            held.ranges.push(HeldRange {
                subsystem: subsystem.clone(),
                nsid,
                bytes,
                until,
            });
        }
        self.is_used.store(true, Ordering::Release);
    }

    /// Holds all blocks of a subsystem until a time.
    pub(crate) fn add_all(&self, subsystem: &Nqn, until: Instant) {
        let mut held = self.held.lock();
        held.add_all(subsystem, until);
        self.is_used.store(true, Ordering::Release);
    }

    /// The time when a byte range of a namespace may get other data; `None` if it may now.
    pub(crate) fn until(&self, subsystem: &Nqn, nsid: u32, bytes: &Range<u64>, now: Instant) -> Option<Instant> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut held = self.held.lock();
        held.ranges.retain(|range| range.until > now);
        held.subsystems.retain(|(_, until)| *until > now);
        if held.ranges.is_empty() && held.subsystems.is_empty() {
            self.is_used.store(false, Ordering::Release);
        }
        let overlaps = |range: &&HeldRange| {
            let is_hit = range.bytes.start < bytes.end && bytes.start < range.bytes.end;
            is_hit && range.nsid == nsid && range.subsystem == *subsystem
        };
        let ranges = held.ranges.iter().filter(overlaps).map(|range| range.until);
        let whole = held.subsystems.iter().filter(|(nqn, _)| nqn == subsystem);
        ranges.chain(whole.map(|(_, until)| *until)).max()
    }
}

impl Held {
    fn add_all(&mut self, subsystem: &Nqn, until: Instant) {
        let known = self.subsystems.iter_mut().find(|(nqn, _)| nqn == subsystem);
        match known {
            Some((_, known)) => *known = until.max(*known),
            None => self.subsystems.push((subsystem.clone(), until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(name).unwrap()
    }

    #[test]
    fn only_overlapping_blocks_wait_and_only_for_a_time() {
        let (quarantine, now) = (Quarantine::new(), Instant::now());
        let until = now + Duration::from_secs(1);
        let own = nqn("nqn.own");
        assert_eq!(quarantine.until(&own, 1, &(0..4096), now), None);
        quarantine.add(&own, 1, 4096..8192, until);
        assert_eq!(quarantine.until(&own, 1, &(0..4096), now), None);
        assert_eq!(quarantine.until(&own, 2, &(4096..8192), now), None);
        assert_eq!(quarantine.until(&nqn("nqn.b"), 1, &(0..8192), now), None);
        assert_eq!(quarantine.until(&own, 1, &(0..4097), now), Some(until));
        assert_eq!(quarantine.until(&own, 1, &(8191..9000), now), Some(until));
        assert_eq!(quarantine.until(&own, 1, &(4096..8192), until), None);
        assert!(!quarantine.is_used.load(Ordering::Relaxed));
    }

    #[test]
    fn too_many_ranges_hold_everything() {
        let (quarantine, now) = (Quarantine::new(), Instant::now());
        let until = now + Duration::from_secs(1);
        let (own, other) = (nqn("nqn.own"), nqn("nqn.other"));
        for n in 0..=RANGES_MAX as u64 {
            quarantine.add(&own, 1, n..n + 1, until);
        }
        assert_eq!(quarantine.until(&own, 9, &(0..1), now), Some(until));
        assert_eq!(quarantine.until(&other, 9, &(0..1), now), None);
        let later = until + Duration::from_secs(1);
        quarantine.add_all(&own, later);
        quarantine.add_all(&own, until);
        assert_eq!(quarantine.until(&own, 9, &(0..1), now), Some(later));
    }
}
