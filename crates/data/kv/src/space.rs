//! The slots of a tier as one process sees them: which chunk is where, which slots are free, and which chunk is evicted
//! next.
//!
//! A process evicts only in segments that it has leased. It leases a segment more before it evicts, until it has its
//! share. Among its chunks the order is that of use, exactly. Other processes write the time of their uses to the
//! journals, and such a chunk is moved to the end of the order when its turn comes: across processes the order is an
//! approximation.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result, lru::Lru};
use straightway_sys::{Folder, SharedWords, WordAccess};

use crate::{
    cipher::KeyFile,
    format::{BELL, FORMATTED, Geometry, PAGE_WORDS, PUBLISHED, SlotAt, TICK, change_word, record_word},
    index::Index,
    key::{Key, Namespace},
    protocol::{self, Slot},
    receipt::{Counters, MissReason},
    record::{Position, Proof, Record, USED},
    segment::{Lease, Segment, has_header},
};

/// The interval between attempts to lease a segment that could not be created, on a full drive.
const RETRY: Duration = Duration::from_secs(5);

/// The files of a tier, and the state of this process.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: Folder,
    pub(crate) geometry: Geometry,
    pub(crate) superblock: SharedWords,
    pub(crate) access: WordAccess,
    pub(crate) segments: Vec<OnceLock<Arc<Segment>>>,
    /// The most segments that this process leases.
    pub(crate) leases_max: u32,
    pub(crate) key: Option<KeyFile>,
    pub(crate) counters: Counters,
    pub(crate) space: straightway_core::Lock<Space>,
}

/// What changes while the tier is in use.
#[derive(Debug)]
pub(crate) struct Space {
    index: Index,
    /// Chunks in leased segments.
    recency: Lru<u32, ()>,
    free: Vec<u32>,
    leases: Vec<Option<Lease>>,
    /// The tick of the last use of each slot, as far as this process took part.
    ticks: Vec<u64>,
    /// The publications of each segment that are in the index.
    cursors: Vec<u64>,
    /// The counters of the superblock when the index was last refreshed.
    bell: u64,
    formatted: u64,
    /// The segment at which this process begins to lease.
    first: u32,
    /// Until then no segment is leased, because the last attempt failed.
    pause: Option<(Instant, Error)>,
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    Hit(u32, Record),
    Miss(MissReason),
}

impl Space {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let segments = geometry.segments() as usize;
        let slots = geometry.slots();
        Self {
            index: Index::new(slots),
            recency: Lru::new(u64::MAX),
            free: Vec::new(),
            leases: (0..segments).map(|_| None).collect(),
            ticks: vec![0; slots as usize],
            cursors: vec![0; segments],
            bell: 0,
            formatted: 0,
            first: u32::try_from(straightway_sys::nonce::nonce() % segments as u64).expect("segments are few"),
            pause: None,
        }
    }

    /// The chunks in the index, and the memory that they need.
    pub(crate) fn size(&self) -> (usize, usize) {
        // A node of the order has 24 bytes, and its index up to 12; both may have room for more.
        let recency = self.recency.len() * 39;
        (self.index.len(), self.index.memory_bytes() + 8 * self.ticks.len() + recency)
    }

    /// The segments that this process has leased.
    pub(crate) fn leased(&self) -> usize {
        self.leases.iter().flatten().count()
    }

    /// The file with the slots of a leased segment, for writing.
    pub(crate) fn file_of(&self, segment: u32) -> Option<&Arc<straightway_sys::File>> {
        self.leases[segment as usize].as_ref().map(|lease| &lease.chunks)
    }
}

impl Shared {
    /// Opens the segments that exist, and enters their chunks.
    pub(crate) fn load_index(&self) -> Result<()> {
        let mut space = self.space.lock();
        space.bell = self.superblock.load(BELL).unwrap_or(0);
        space.formatted = self.superblock.load(FORMATTED).unwrap_or(0);
        for number in 0..self.geometry.segments() {
            self.open_segment(&mut space, number)?;
        }
        Ok(())
    }

    /// Opens a segment, if it exists and is not open, and enters its chunks.
    fn open_segment(&self, space: &mut Space, number: u32) -> Result<()> {
        let cell = &self.segments[number as usize];
        if cell.get().is_none()
            && let Some(segment) = Segment::open(&self.folder, &self.geometry, number, self.access)?
        {
            segment.journal.populate();
            let segment = cell.get_or_init(|| Arc::new(segment));
            space.cursors[number as usize] = segment.journal.load(PUBLISHED).unwrap_or(0);
            self.scan(space, number, |_, _, _| {});
        }
        Ok(())
    }

    /// Reads all records of a segment. Chunks are entered; `each` gets every slot and what it has.
    fn scan(&self, space: &mut Space, number: u32, mut each: impl FnMut(&mut Space, u32, Option<Slot>)) {
        for at in 0..self.geometry.slots_of(number) {
            let at = SlotAt { segment: number, number: at };
            let slot = self.geometry.number(at);
            let has = self.read(slot);
            if let Some(Slot::Stored(record)) = has {
                let print = space.index.print(&record.binding.key);
                space.index.insert(slot, print);
            }
            each(space, slot, has);
        }
    }

    /// What a slot has; `None` if its segment does not exist or its record is lost.
    pub(crate) fn read(&self, slot: u32) -> Option<Slot> {
        let (journal, base, position) = self.words(slot)?;
        protocol::read(journal, base, position)
    }

    /// Whether a slot still has the chunk of this generation.
    pub(crate) fn is_current(&self, slot: u32, generation: u64) -> bool {
        let words = self.words(slot);
        words.is_some_and(|(journal, base, _)| protocol::is_current(journal, base, generation))
    }

    /// The journal of a slot, the first word of its record, and its position.
    fn words(&self, slot: u32) -> Option<(&SharedWords, usize, Position)> {
        let at = self.geometry.slot(slot);
        let segment = self.segments[at.segment as usize].get()?;
        let position = Position {
            tier: self.geometry.id,
            at,
        };
        Some((&segment.journal, record_word(at.number), position))
    }

    /// Finds a chunk, which becomes the most recently used one.
    pub(crate) fn find(&self, space: &mut Space, namespace: Namespace, key: &Key) -> Found {
        self.counters.lookups.fetch_add(1, Ordering::Relaxed);
        self.refresh(space);
        let print = space.index.print(key);
        let mut stale = Vec::new();
        let mut miss = None;
        let mut hit = None;
        for slot in space.index.candidates(print) {
            match self.read(slot) {
                Some(Slot::Stored(record)) if record.binding.key == *key => {
                    if record.binding.namespace != namespace {
                        miss = miss.or(Some(MissReason::OtherConfiguration));
                    } else if self.is_readable(&record) {
                        hit = Some((slot, record));
                        break;
                    } else {
                        miss = Some(MissReason::WrongKey);
                    }
                }
                _ => stale.push(slot),
            }
        }
        for slot in stale {
            self.forget(space, slot);
        }
        if let Some((slot, record)) = hit {
            self.touch(space, slot);
            return Found::Hit(slot, record);
        }
        let unknown = || match space.index.was_evicted(print) {
            true => MissReason::Evicted,
            false => MissReason::NeverStored,
        };
        Found::Miss(miss.unwrap_or_else(unknown))
    }

    /// Whether a chunk is encrypted with the key of this process, or neither has one.
    fn is_readable(&self, record: &Record) -> bool {
        match (&self.key, record.proof) {
            (None, Proof::Sum(_)) => true,
            (Some(key), Proof::Sealed { key_number, .. }) => key.number() == key_number,
            (None, Proof::Sealed { .. }) | (Some(_), Proof::Sum(_)) => false,
        }
    }

    /// Removes a chunk from the index that its slot does not have any more.
    fn forget(&self, space: &mut Space, slot: u32) {
        if let Some(print) = space.index.remove(slot) {
            space.index.note_evicted(print);
        }
        // Another chunk may be there by now.
        if let Some(Slot::Stored(record)) = self.read(slot) {
            let print = space.index.print(&record.binding.key);
            space.index.insert(slot, print);
        }
    }

    /// Removes a damaged chunk. Its slot is free, if its segment is leased; otherwise only this process forgets it.
    pub(crate) fn drop_damaged(&self, slot: u32, generation: u64) {
        let mut space = self.space.lock();
        if !self.is_current(slot, generation) {
            return;
        }
        space.index.remove(slot);
        if space.recency.remove(&slot).is_some()
            && let Some((journal, base, _)) = self.words(slot)
            && protocol::begin(journal, base).is_some()
        {
            space.free.push(slot);
        }
    }

    /// Records a use.
    fn touch(&self, space: &mut Space, slot: u32) {
        let tick = self.tick();
        if let Some((journal, base, _)) = self.words(slot) {
            journal.store(base + USED, tick);
        }
        space.ticks[slot as usize] = tick;
        space.recency.get(&slot);
    }

    /// The next tick of the clock that all processes share. It counts uses, so no change of the time of day matters.
    fn tick(&self) -> u64 {
        self.superblock.add(TICK, 1).map_or(0, |before| before.wrapping_add(1))
    }

    /// Enters the chunks that other processes published since the last call. Without such, it costs one load.
    fn refresh(&self, space: &mut Space) {
        let bell = self.superblock.load(BELL).unwrap_or(space.bell);
        if bell == space.bell {
            return;
        }
        space.bell = bell;
        let formatted = self.superblock.load(FORMATTED).unwrap_or(space.formatted);
        let is_formatted = std::mem::replace(&mut space.formatted, formatted) != formatted;
        for number in 0..self.geometry.segments() {
            if is_formatted {
                // A segment that cannot be opened has no chunks for this process.
                let opened = self.open_segment(space, number);
                opened.unwrap_or_else(|error| tracing::warn!(%error, "a segment is not used"));
            }
            if space.leases[number as usize].is_none() {
                self.follow(space, number);
            }
        }
    }

    /// Enters the newest publications of a segment that another process has leased.
    fn follow(&self, space: &mut Space, number: u32) {
        let Some(journal) = self.segments[number as usize].get().map(|segment| &segment.journal) else {
            return;
        };
        let before = space.cursors[number as usize];
        let Some(published) = journal.load(PUBLISHED).filter(|published| *published != before) else {
            return;
        };
        space.cursors[number as usize] = published;
        let slots: Option<Vec<u64>> = (published.wrapping_sub(before) <= PAGE_WORDS as u64)
            .then(|| (before..published).map(|at| journal.load(change_word(at)).unwrap_or(u64::MAX)).collect());
        // The ring may have been overwritten while it was read.
        let is_whole = journal.load(PUBLISHED).is_some_and(|now| now.wrapping_sub(before) <= PAGE_WORDS as u64);
        match slots.filter(|_| is_whole) {
            None => self.scan(space, number, |_, _, _| {}),
            Some(slots) => {
                let count = u64::from(self.geometry.slots_of(number));
                for at in slots.into_iter().filter(|at| *at < count) {
                    let at = u32::try_from(at).expect("it is a slot");
                    let slot = self.geometry.number(SlotAt { segment: number, number: at });
                    if let Some(Slot::Stored(record)) = self.read(slot) {
                        let print = space.index.print(&record.binding.key);
                        space.index.insert(slot, print);
                    }
                }
            }
        }
    }

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
            let used = self.words(slot).and_then(|(journal, base, _)| journal.load(base + USED));
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
            let path = self.folder.join(crate::format::journal_name(number));
            let why = "it was replaced or truncated while it was opened";
            return Err(Error::new(ErrorKind::Precondition, "use", path.display(), why));
        }
        space.leases[number as usize] = Some(lease);
        let mut stored = Vec::new();
        let mut free = Vec::new();
        self.scan(space, number, |space, slot, has| match has {
            Some(Slot::Stored(_)) => {
                let used = self.words(slot).and_then(|(journal, base, _)| journal.load(base + USED));
                space.ticks[slot as usize] = used.unwrap_or(0);
                stored.push((used.unwrap_or(0), slot));
            }
            Some(Slot::Empty | Slot::Busy | Slot::Damaged) => free.push(slot),
            None => {}
        });
        // The slots are used in their order.
        space.free.extend(free.into_iter().rev());
        self.merge_order(space, stored);
        Ok(true)
    }

    /// Adds chunks to the order of use, by their ticks.
    fn merge_order(&self, space: &mut Space, mut added: Vec<(u64, u32)>) {
        if added.is_empty() {
            return;
        }
        let known = space.recency.iter().map(|(slot, ())| (space.ticks[*slot as usize], *slot));
        added.extend(known);
        added.sort_unstable();
        let mut order = Lru::new(u64::MAX);
        for (_, slot) in added {
            order.insert(slot, (), 1, |_, ()| {});
        }
        space.recency = order;
    }

    /// Publishes stored chunks. Returns whether each of them could be published.
    pub(crate) fn publish(&self, records: &[(u32, Record)]) -> Vec<bool> {
        let mut space = self.space.lock();
        let published = records.iter().map(|(slot, record)| self.publish_one(&mut space, *slot, record).is_some());
        let published = published.collect();
        self.superblock.add(BELL, 1);
        published
    }

    fn publish_one(&self, space: &mut Space, slot: u32, record: &Record) -> Option<()> {
        let (journal, base, position) = self.words(slot)?;
        let tick = self.tick();
        journal.store(base + USED, tick);
        protocol::publish(journal, base, record)?;
        let count = journal.load(PUBLISHED)?;
        journal.store(change_word(count), position.at.number.into());
        journal.store(PUBLISHED, count.wrapping_add(1));
        space.ticks[slot as usize] = tick;
        let print = space.index.print(&record.binding.key);
        space.index.insert(slot, print);
        space.recency.insert(slot, (), 1, |_, ()| {});
        Some(())
    }
}
