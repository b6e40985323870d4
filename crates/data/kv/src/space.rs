//! The slots of a tier as one process sees them: which chunk is where, and what other processes have published.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Instant,
};

use straightway_core::{Error, Result, lru::Lru};
use straightway_sys::{Folder, SharedWords, WordAccess};

use crate::{
    cipher::KeyFile,
    format::{BELL, FORMATTED, Geometry, PAGE_WORDS, PUBLISHED, SlotAt, TICK, change_word, record_word},
    index::Index,
    key::{Key, KvNamespace},
    protocol::{self, Slot},
    receipt::{Counters, MissReason},
    record::{Position, Proof, Record, USED},
    segment::{Lease, Segment},
};

/// The most damaged chunks that are remembered. Others are found to be damaged again.
const DAMAGED_MAX: usize = 4096;

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
    pub(crate) index: Index,
    /// Chunks in leased segments.
    pub(crate) recency: Lru<u32, ()>,
    pub(crate) free: Vec<u32>,
    pub(crate) leases: Vec<Option<Lease>>,
    /// The tick of the last use of each slot, as far as this process took part.
    pub(crate) ticks: Vec<u64>,
    /// The publications of each segment that are in the index.
    cursors: Vec<u64>,
    /// The counters of the superblock when the index was last refreshed.
    bell: u64,
    formatted: u64,
    /// The segment at which this process begins to lease.
    pub(crate) first: u32,
    /// The generations of damaged chunks in segments that are not leased.
    damaged: HashMap<u32, u64>,
    /// Until then no segment is leased, because the last attempt failed.
    pub(crate) pause: Option<(Instant, Error)>,
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
            damaged: HashMap::new(),
            pause: None,
        }
    }

    /// Enters the chunk of a slot, unless this process has found it to be damaged. Returns whether it is entered.
    fn enter(&mut self, slot: u32, record: &Record) -> bool {
        if self.damaged.get(&slot) == Some(&record.binding.generation) {
            return false;
        }
        let print = self.index.print(&record.binding.key);
        self.index.insert(slot, print);
        true
    }

    /// The chunks in the index, and the memory that they need.
    pub(crate) fn size(&self) -> (usize, usize) {
        // A node of the order has 24 bytes, and its index up to 12; both may have room for more.
        let recency = self.recency.len() * 39;
        (
            self.index.len(),
            self.index.memory_bytes() + 8 * self.ticks.len() + recency,
        )
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
    pub(crate) fn open_segment(&self, space: &mut Space, number: u32) -> Result<()> {
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
    pub(crate) fn scan(&self, space: &mut Space, number: u32, mut each: impl FnMut(&mut Space, u32, Option<Slot>)) {
        for at in 0..self.geometry.slots_of(number) {
            let at = SlotAt {
                segment: number,
                number: at,
            };
            let slot = self.geometry.number(at);
            let has = self.read(slot);
            let is_damaged = matches!(has, Some(Slot::Stored(record)) if !space.enter(slot, &record));
            each(space, slot, if is_damaged { Some(Slot::Damaged) } else { has });
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
    pub(crate) fn words(&self, slot: u32) -> Option<(&SharedWords, usize, Position)> {
        let at = self.geometry.slot(slot);
        let segment = self.segments[at.segment as usize].get()?;
        let position = Position {
            tier: self.geometry.id,
            at,
        };
        Some((&segment.journal, record_word(at.number), position))
    }

    /// Finds a chunk, which becomes the most recently used one.
    pub(crate) fn find(&self, space: &mut Space, namespace: KvNamespace, key: &Key) -> Found {
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
        let was_evicted = space.index.was_evicted(print);
        let unknown = || {
            if was_evicted {
                MissReason::Evicted
            } else {
                MissReason::NeverStored
            }
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
            space.enter(slot, &record);
        }
    }

    /// Removes a damaged chunk. Its slot is free, if its segment is leased. Otherwise only this process forgets it, and
    /// frees the slot when it leases the segment.
    pub(crate) fn drop_damaged(&self, slot: u32, generation: u64) {
        let mut space = self.space.lock();
        if !self.is_current(slot, generation) {
            return;
        }
        space.index.remove(slot);
        if space.recency.remove(&slot).is_none() {
            if space.damaged.len() < DAMAGED_MAX {
                space.damaged.insert(slot, generation);
            }
        } else if let Some((journal, base, _)) = self.words(slot)
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
        let slots: Option<Vec<u64>> = (published.wrapping_sub(before) <= PAGE_WORDS as u64).then(|| {
            (before..published)
                .map(|at| journal.load(change_word(at)).unwrap_or(u64::MAX))
                .collect()
        });
        // The ring may have been overwritten while it was read.
        let is_whole = journal
            .load(PUBLISHED)
            .is_some_and(|now| now.wrapping_sub(before) <= PAGE_WORDS as u64);
        match slots.filter(|_| is_whole) {
            None => self.scan(space, number, |_, _, _| {}),
            Some(slots) => {
                let count = u64::from(self.geometry.slots_of(number));
                for at in slots.into_iter().filter(|at| *at < count) {
                    let at = u32::try_from(at).expect("it is a slot");
                    let slot = self.geometry.number(SlotAt {
                        segment: number,
                        number: at,
                    });
                    if let Some(Slot::Stored(record)) = self.read(slot) {
                        space.enter(slot, &record);
                    }
                }
            }
        }
    }

    /// Publishes stored chunks. Returns whether each of them could be published.
    pub(crate) fn publish(&self, records: &[(u32, Record)]) -> Vec<bool> {
        let mut space = self.space.lock();
        let published = records
            .iter()
            .map(|(slot, record)| self.publish_one(&mut space, *slot, record).is_some());
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
