//! Slots for new chunks: leases of segments, and the eviction of chunks.
//!
//! A process evicts only in segments that it has leased. It leases a segment more before it evicts, until it has its
//! share. Among its chunks the order is that of use, exactly. Other processes write the time of their uses to the
//! journals, and such a chunk is moved to the end of the order when its turn comes: across processes the order is an
//! approximation.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result, lru::Lru};

use crate::{
    format::{BELL, FORMATTED, TICK, journal_name},
    protocol::{self, Slot},
    record::USED,
    segment::{Lease, Segment, has_header},
    space::{Shared, Space},
};

/// The interval between attempts to lease a segment that could not be created, on a full drive.
const RETRY: Duration = Duration::from_secs(5);

impl Shared {
    /// A slot for a new chunk, and the generation that the chunk will have. `None` if all slots are being written.
    ///
    /// # Errors
    ///
    /// `Busy` if other processes have all segments, and the error of a segment that could not be created.
    pub(crate) fn take_slot(&self, space: &mut Space) -> Result<Option<(u32, u64)>> {
        while let Some(slot) = self.free_slot(space)? {
            let Some((journal, base, _)) = self.words(slot) else {
                continue;
            };
            // The record of a slot whose journal was truncated is lost, and so is the slot.
            if let Some(generation) = protocol::begin(journal, base) {
                return Ok(Some((slot, generation)));
            }
        }
        Ok(None)
    }

    /// Gives back a slot whose chunk was not stored.
    pub(crate) fn return_slot(&self, slot: u32) {
        self.space.lock().free.push(slot);
    }

    fn free_slot(&self, space: &mut Space) -> Result<Option<u32>> {
        loop {
            if let Some(slot) = space.free.pop() {
                return Ok(Some(slot));
            }
            if !self.lease_next(space)? {
                return Ok(self.evict(space));
            }
        }
    }

    /// Removes the least recently used chunk from a leased segment. Returns its slot.
    fn evict(&self, space: &mut Space) -> Option<u32> {
        let now = self.superblock.load(TICK).unwrap_or(0);
        // Each chunk that others used gets one more turn.
        for _ in 0..=space.recency.len() {
            let (slot, ()) = space.recency.pop_oldest()?;
            let used = self
                .words(slot)
                .and_then(|(journal, base, _)| journal.load(base + USED));
            if let Some(used) = used.filter(|used| *used > space.ticks[slot as usize] && *used <= now) {
                space.ticks[slot as usize] = used;
                space.recency.insert(slot, (), 1, |_, ()| {});
                continue;
            }
            if let Some(print) = space.index.remove(slot) {
                space.index.note_evicted(print);
            }
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            return Some(slot);
        }
        None
    }

    /// Leases one segment more. Returns whether it did.
    fn lease_next(&self, space: &mut Space) -> Result<bool> {
        let leased = space.leased();
        if leased >= self.leases_max as usize {
            return Ok(false);
        }
        if let Some((since, error)) = &space.pause
            && since.elapsed() < RETRY
        {
            return if leased == 0 { Err(error.again()) } else { Ok(false) };
        }
        space.pause = None;
        let segments = self.geometry.segments();
        for step in 0..segments {
            let number = (space.first + step) % segments;
            if space.leases[number as usize].is_some() {
                continue;
            }
            match self.lease(space, number) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "a segment cannot be leased");
                    space.pause = Some((Instant::now(), error.again()));
                    return if leased == 0 { Err(error) } else { Ok(false) };
                }
            }
        }
        if leased > 0 {
            return Ok(false);
        }
        let why = "other processes have leased all of its segments";
        let error = Error::new(ErrorKind::Busy, "store to", self.folder.path().display(), why)
            .with_hint("open the tier with ⟦writers=N⟧ in each of the N processes that store to it");
        space.pause = Some((Instant::now(), error.again()));
        Err(error)
    }

    /// Leases a segment, unless another process has it. Its chunks join the order of use, its other slots are free.
    fn lease(&self, space: &mut Space, number: u32) -> Result<bool> {
        let Some(lease) = Lease::take(&self.folder, &self.geometry, number)? else {
            return Ok(false);
        };
        self.open_segment(space, number)?;
        let cell = &self.segments[number as usize];
        let is_valid = |segment: &Arc<Segment>| has_header(&segment.journal, &self.geometry, number);
        if !cell.get().is_some_and(is_valid) {
            Segment::format(&self.folder, &self.geometry, number)?;
            self.open_segment(space, number)?;
            self.superblock.add(FORMATTED, 1);
            self.superblock.add(BELL, 1);
        }
        if !cell.get().is_some_and(is_valid) {
            let path = self.folder.join(journal_name(number));
            let why = "it was replaced or truncated while it was opened";
            return Err(Error::new(ErrorKind::Precondition, "use", path.display(), why));
        }
        space.leases[number as usize] = Some(lease);
        let mut stored = Vec::new();
        let mut free = Vec::new();
        self.scan(space, number, |space, slot, has| match has {
            Some(Slot::Stored(_)) => {
                let used = self
                    .words(slot)
                    .and_then(|(journal, base, _)| journal.load(base + USED));
                space.ticks[slot as usize] = used.unwrap_or(0);
                stored.push((used.unwrap_or(0), slot));
            }
            Some(Slot::Empty | Slot::Busy | Slot::Damaged) => free.push(slot),
            None => {}
        });
        // The slots are used in their order.
        space.free.extend(free.into_iter().rev());
        Self::merge_order(space, stored);
        Ok(true)
    }

    /// Adds chunks to the order of use, by their ticks.
    fn merge_order(space: &mut Space, mut added: Vec<(u64, u32)>) {
        if added.is_empty() {
            return;
        }
        let known = space
            .recency
            .iter()
            .map(|(slot, ())| (space.ticks[*slot as usize], *slot));
        added.extend(known);
        added.sort_unstable();
        let mut order = Lru::new(u64::MAX);
        for (_, slot) in added {
            order.insert(slot, (), 1, |_, ()| {});
        }
        space.recency = order;
    }
}
