//! Stores: each chunk gets a slot and a proof, is written, and is published once its bytes are on the drive.
//!
//! A batch is written in groups, so that the proofs of one group are computed while another is written. A plain chunk
//! in one piece of host memory is written from there. Others are copied to staging memory first.

use std::{collections::HashMap, sync::Arc, time::Instant};

use straightway_core::{Choice, Error, ErrorKind, Extent, Lock, Move, Place, Receipt, Result};
use straightway_io::{Ask, Executor, Objects, Region, Ticket};
use straightway_sys::{File, Window};

use crate::{
    batch::{Batch, Running},
    cipher::Cipher,
    key::KvNamespace,
    loading::{ChunkAt, Part},
    receipt::{BatchKind, MissReason, Outcome},
    record::{Binding, Position, Proof, Record},
    space::{Found, Shared},
    staging::{self, Staged, Staging},
};

/// The bytes of a group: enough for a full queue, and little compared with a batch.
const GROUP_BYTES: u64 = 64 << 20;

/// The files of segments, for writing.
type Files = HashMap<u32, Arc<File>>;

/// A chunk that has a slot.
#[derive(Debug)]
struct Pending {
    number: usize,
    slot: u32,
    binding: Binding,
}

/// A group while it is written.
#[derive(Debug)]
struct Group {
    records: Vec<(usize, u32, Record)>,
    /// Returned to the pool at the end.
    _staged: Option<Staged>,
}

/// What the groups of a batch share.
struct Store<'a> {
    shared: &'a Arc<Shared>,
    executor: &'a Executor,
    staging: &'a Arc<Staging>,
    namespace: KvNamespace,
    cipher: Option<Cipher>,
    chunks: &'a [ChunkAt],
    running: &'a Arc<Running>,
}

/// Begins to store chunks.
pub(crate) fn store(
    shared: &Arc<Shared>,
    executor: &Executor,
    staging: &Arc<Staging>,
    namespace: KvNamespace,
    chunks: &[ChunkAt],
) -> Result<Batch> {
    let began = Instant::now();
    let chunk_bytes = shared.geometry.chunk_bytes();
    chunks.iter().try_for_each(|one| one.check(chunk_bytes))?;
    let outcomes = vec![Outcome::NotStored; chunks.len()];
    let running = Running::new(shared, BatchKind::Store, outcomes, None, began);
    let store = Store {
        shared,
        executor,
        staging,
        namespace,
        cipher: shared.key.as_ref().map(|key| key.cipher(shared.geometry.id, namespace)),
        chunks,
        running: &running,
    };
    let mut tickets = Vec::new();
    let group = usize::try_from((GROUP_BYTES / chunk_bytes).max(1)).unwrap_or(usize::MAX);
    let mut next = 0;
    while next < chunks.len() {
        // A group is written from one region.
        let source = store.direct_region(&chunks[next]);
        let is_same = |chunk: &&ChunkAt| match (source, store.direct_region(chunk)) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let length = chunks[next..].iter().take(group).take_while(is_same).count();
        let numbers = next..next + length;
        next += length;
        match store.begin(numbers, source) {
            Ok(ticket) => tickets.extend(ticket),
            Err(error) => {
                running.note(&error);
                // The others would fail in the same way.
                break;
            }
        }
    }
    running.leave();
    Ok(Batch::new(running, tickets))
}

impl Store<'_> {
    /// The host memory from which a chunk can be written as it is.
    fn direct_region<'c>(&self, chunk: &'c ChunkAt) -> Option<&'c Arc<Region>> {
        match chunk.parts.as_slice() {
            [part] if self.cipher.is_none() && part.region.place() == Place::Host => Some(&part.region),
            _ => None,
        }
    }

    /// Begins to write a group. `None` if nothing is to be written.
    fn begin(&self, numbers: std::ops::Range<usize>, source: Option<&Arc<Region>>) -> Result<Option<Ticket>> {
        let (pending, files) = self.take_slots(numbers)?;
        if pending.is_empty() {
            return Ok(None);
        }
        let begun = self.write(&pending, &files, source);
        if begun.is_err() {
            for one in &pending {
                self.shared.return_slot(one.slot);
            }
        }
        begun.map(Some)
    }

    /// Slots for the chunks that are not stored yet, and the files of all leased segments.
    fn take_slots(&self, numbers: std::ops::Range<usize>) -> Result<(Vec<Pending>, Files)> {
        let Self { shared, namespace, .. } = *self;
        let mut space = shared.space.lock();
        let mut pending: Vec<Pending> = Vec::new();
        let mut files = HashMap::new();
        for number in numbers {
            let key = self.chunks[number].key;
            if let Found::Hit(..) = shared.find(&mut space, namespace, &key) {
                self.running.set(number, Outcome::Present);
                continue;
            }
            // The same key twice in a batch is stored once.
            if pending.iter().any(|one| one.binding.key == key) {
                self.running.set(number, Outcome::Present);
                continue;
            }
            let taken = match shared.take_slot(&mut space) {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) => {
                    drop(space);
                    for one in &pending {
                        shared.return_slot(one.slot);
                    }
                    return Err(error);
                }
            };
            let (slot, generation) = taken;
            let at = shared.geometry.slot(slot);
            let file = space
                .file_of(at.segment)
                .expect("a slot is taken from a leased segment");
            files.entry(at.segment).or_insert_with(|| Arc::clone(file));
            let position = Position {
                tier: shared.geometry.id,
                at,
            };
            let binding = Binding {
                position,
                generation,
                namespace,
                key,
            };
            pending.push(Pending { number, slot, binding });
        }
        Ok((pending, files))
    }

    /// Computes the proofs of a group, and begins to write it.
    fn write(&self, pending: &[Pending], files: &Files, source: Option<&Arc<Region>>) -> Result<Ticket> {
        let chunk_bytes = self.shared.geometry.chunk_bytes();
        let (region, proofs, staged) = if let Some(region) = source {
            let proof = |one: &Pending| Proof::Sum(one.binding.sum(crc_of(&self.chunks[one.number].parts[0])));
            (Arc::clone(region), pending.iter().map(proof).collect(), None)
        } else {
            let (staged, proofs) = self.stage(pending)?;
            (Arc::clone(&staged.region), proofs, Some(staged))
        };
        let order: Vec<u32> = files.keys().copied().collect();
        let object = |segment| {
            order
                .iter()
                .position(|one| *one == segment)
                .expect("its file is listed")
        };
        let moves = pending.iter().zip(0..).map(|(one, place)| {
            let at = one.binding.position.at;
            Move {
                object: u32::try_from(object(at.segment)).expect("segments are few"),
                extent: Extent::new(self.shared.geometry.offset(at), chunk_bytes),
                at: match source {
                    Some(_) => self.chunks[one.number].parts[0].at,
                    None => place * chunk_bytes,
                },
            }
        });
        let moves = moves.collect();
        let records = pending.iter().zip(proofs).map(|(one, proof)| {
            let binding = one.binding;
            (one.number, one.slot, Record { binding, proof })
        });
        let group = Group {
            records: records.collect(),
            _staged: staged,
        };
        let objects: Vec<_> = order.iter().map(|segment| Arc::clone(&files[segment])).collect();
        let running = Arc::clone(self.running);
        let group = Lock::new(Some(group));
        let ask = Ask::from(Choice::Auto).then(move |outcome| {
            if let Some(group) = group.lock().take() {
                finish(&running, &group, outcome);
            }
            running.leave();
        });
        // A chunk that is not on the drive after a power failure is a miss. So nothing is synced.
        let ask = Ask { syncs: false, ..ask };
        self.running.enter();
        let begun = self.executor.write(&region, Objects::from(objects), moves, ask);
        if begun.is_err() {
            self.running.leave();
        }
        begun
    }

    /// Copies a group to staging memory, and computes its proofs there.
    fn stage(&self, pending: &[Pending]) -> Result<(Staged, Vec<Proof>)> {
        let chunk_bytes = usize::try_from(self.shared.geometry.chunk_bytes()).expect("it is in memory");
        let parts = |one: &Pending| self.chunks[one.number].parts.as_slice();
        let mut contexts = pending.iter().flat_map(parts).filter_map(|part| part.region.context());
        let mut proofs = Vec::with_capacity(pending.len());
        let bytes = chunk_bytes as u64 * pending.len() as u64;
        let staged = self.staging.take(bytes, contexts.next(), |region| {
            let memory = region.as_mut_slice();
            for (one, memory) in pending.iter().zip(memory.chunks_mut(chunk_bytes)) {
                staging::copy(parts(one), memory)?;
                let sum = |memory: &[u8]| {
                    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, memory);
                    Ok(Proof::Sum(one.binding.sum(crc)))
                };
                let proof = match &self.cipher {
                    Some(cipher) => cipher.seal(&one.binding, memory),
                    None => sum(memory),
                };
                proofs.push(proof?);
            }
            Ok(())
        })?;
        Ok((staged, proofs))
    }
}

/// Publishes a group whose bytes were written, or gives its slots back.
fn finish(running: &Running, group: &Group, outcome: &Result<Receipt>) {
    match outcome {
        Ok(receipt) => {
            running.add(receipt);
            let records: Vec<_> = group.records.iter().map(|(_, slot, record)| (*slot, *record)).collect();
            let published = running.shared.publish(&records);
            for ((number, ..), is_published) in group.records.iter().zip(published) {
                let outcome = if is_published {
                    Outcome::Stored
                } else {
                    Outcome::NotStored
                };
                running.set(*number, outcome);
            }
        }
        Err(error) => {
            for (_, slot, _) in &group.records {
                running.shared.return_slot(*slot);
            }
            match error.kind() {
                ErrorKind::Cancelled => running.fail(error),
                _ => running.note(error),
            }
        }
    }
}

/// The CRC-64/NVME of host memory that others may write to.
fn crc_of(part: &Part) -> u64 {
    let bytes = usize::try_from(part.bytes).expect("it is in memory");
    let window = Window::new(&part.region, part.at, bytes);
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
    if let Some(folded) = window.folded() {
        return crc(folded.as_slice());
    }
    let mut copy = vec![0; bytes];
    window.copy_to(&mut copy);
    crc(&copy)
}

/// The error of a store to a tier that is open for reading.
pub(crate) fn read_only(shared: &Shared) -> Error {
    let why = "it is open for reading only";
    Error::new(ErrorKind::Invalid, "store to", shared.folder.path().display(), why)
}

/// The reason of a lookup's miss.
pub(crate) fn lookup(
    shared: &Shared,
    namespace: KvNamespace,
    key: &crate::key::Key,
) -> std::result::Result<(), MissReason> {
    match shared.find(&mut shared.space.lock(), namespace, key) {
        Found::Hit(..) => Ok(()),
        Found::Miss(reason) => Err(reason),
    }
}
