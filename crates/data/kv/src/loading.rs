//! Loads: chunks are read into a ring, checked there, and only then copied to the caller's memory.

use std::{collections::HashMap, sync::Arc, time::Instant};

use straightway_core::{Choice, Delivery, Error, ErrorKind, Extent, Lock, Portion, Result};
use straightway_io::{Ask, Checked, Executor, Image, Inspect, Objects, Region};
use straightway_sys::File;

use crate::{
    batch::{Batch, Running},
    cipher::Cipher,
    key::{Key, KvNamespace},
    receipt::{BatchKind, MissReason, Outcome, Prefill},
    record::{Proof, Record},
    space::{Found, Shared},
};

/// A part of a chunk in memory. The parts of a chunk follow each other.
#[derive(Clone, Debug)]
pub struct Part {
    /// The memory, of the host or of a GPU.
    pub region: Arc<Region>,
    /// The offset in it.
    pub at: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// A chunk, and its place in memory: the target of a load, or the source of a store.
#[derive(Clone, Debug)]
pub struct ChunkAt {
    /// Its key.
    pub key: Key,
    /// Its parts, in order. Together they have the length of a chunk.
    pub parts: Vec<Part>,
}

impl ChunkAt {
    /// A chunk of `bytes` bytes in one part.
    pub fn whole(key: Key, region: &Arc<Region>, at: u64, bytes: u64) -> Self {
        let region = Arc::clone(region);
        let parts = vec![Part { region, at, bytes }];
        Self { key, parts }
    }

    /// Returns an error unless its parts have the length of a chunk.
    pub(crate) fn check(&self, chunk_bytes: u64) -> Result<()> {
        let bytes = self
            .parts
            .iter()
            .try_fold(0_u64, |all, part| all.checked_add(part.bytes));
        let is_inside = |part: &Part| {
            part.at
                .checked_add(part.bytes)
                .is_some_and(|end| end <= part.region.bytes())
        };
        let refuse = |why: String| {
            let target = format!("the chunk {}", self.key);
            Err(Error::new(ErrorKind::Invalid, "use the memory of", target, why))
        };
        if bytes != Some(chunk_bytes) {
            return refuse(format!("its parts do not have the {chunk_bytes} bytes of a chunk"));
        }
        if !self.parts.iter().all(|part| part.bytes > 0 && is_inside(part)) {
            return refuse("a part is empty, or ends beyond its memory".to_owned());
        }
        Ok(())
    }
}

/// A chunk that is read.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its number in the batch.
    pub(crate) number: usize,
    pub(crate) slot: u32,
    pub(crate) record: Record,
    pub(crate) cipher: Option<Arc<Cipher>>,
}

/// Checks the chunks of a job after they were read.
#[derive(Debug)]
pub(crate) struct Inspector {
    shared: Arc<Shared>,
    targets: Vec<Target>,
    outcomes: Lock<Vec<Option<Outcome>>>,
    errors: Lock<Vec<Error>>,
}

/// The most errors that are kept of one job.
const ERRORS_MAX: usize = 8;

impl Inspector {
    pub(crate) fn new(shared: &Arc<Shared>, targets: Vec<Target>) -> Self {
        Self {
            shared: Arc::clone(shared),
            outcomes: Lock::new(vec![None; targets.len()]),
            errors: Lock::default(),
            targets,
        }
    }

    /// What became of each chunk, with its number in the batch. One that was not reached is damaged.
    pub(crate) fn outcomes(&self) -> Vec<(usize, Outcome)> {
        let outcomes = self.outcomes.lock();
        let unread = Outcome::Miss(MissReason::Damaged);
        let numbers = self.targets.iter().map(|target| target.number);
        numbers
            .zip(outcomes.iter().map(|outcome| outcome.unwrap_or(unread)))
            .collect()
    }

    /// The first errors.
    pub(crate) fn take_errors(&self) -> Vec<Error> {
        std::mem::take(&mut *self.errors.lock())
    }

    /// Whether the bytes are those of the chunk. They are decrypted to `open` if they are encrypted.
    fn is_whole(target: &Target, stored: &[u8], open: &mut [u8]) -> bool {
        let binding = &target.record.binding;
        match (target.record.proof, &target.cipher) {
            (Proof::Sum(sum), _) => {
                let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, stored);
                binding.sum(crc) == sum
            }
            (Proof::Sealed { nonce, tag, .. }, Some(cipher)) => cipher.open(binding, nonce, tag, stored, open),
            (Proof::Sealed { .. }, None) => false,
        }
    }

    /// The error of a chunk that is not what its record says.
    fn refusal(&self, target: &Target) -> (MissReason, Error) {
        let generation = target.record.binding.generation;
        let at = target.record.binding.position.at;
        let path = self.shared.folder.join(crate::format::chunks_name(at.segment));
        let (reason, why) = if self.shared.is_current(target.slot, generation) {
            (MissReason::Damaged, "is damaged: its bytes do not match their checksum")
        } else {
            (MissReason::Evicted, "was evicted while it was read")
        };
        let message = format!("the chunk in slot {} {why}", at.number);
        (
            reason,
            Error::new(ErrorKind::Corrupt, "load from", path.display(), message),
        )
    }
}

impl Inspect for Inspector {
    fn unpacks(&self) -> bool {
        self.targets.iter().any(|target| target.cipher.is_some())
    }

    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error> {
        let target = &self.targets[number];
        let generation = target.record.binding.generation;
        let is_whole = Self::is_whole(target, stored, unpacked);
        // In this order: bytes that are checked before the slot is looked at again belong to the generation.
        if is_whole && self.shared.is_current(target.slot, generation) {
            self.outcomes.lock()[number] = Some(Outcome::Hit);
            let is_sealed = matches!(target.record.proof, Proof::Sealed { .. });
            return Ok(if is_sealed { Image::Unpacked } else { Image::Stored });
        }
        let (reason, error) = self.refusal(target);
        self.outcomes.lock()[number] = Some(Outcome::Miss(reason));
        Err(error)
    }

    fn refuse(&self, number: usize, error: Error) -> bool {
        let target = &self.targets[number];
        let reason = *self.outcomes.lock()[number].get_or_insert(Outcome::Miss(MissReason::Damaged));
        if reason == Outcome::Miss(MissReason::Damaged) {
            self.shared.drop_damaged(target.slot, target.record.binding.generation);
            let mut errors = self.errors.lock();
            if errors.len() < ERRORS_MAX {
                errors.push(error);
            }
        }
        // A chunk that cannot be read is a miss. The others are still wanted.
        true
    }
}

/// Begins to load chunks.
pub(crate) fn load(
    shared: &Arc<Shared>,
    executor: &Executor,
    namespace: KvNamespace,
    wanted: &[ChunkAt],
    prefill: Option<Prefill>,
) -> Result<Batch> {
    let began = Instant::now();
    let chunk_bytes = shared.geometry.chunk_bytes();
    wanted.iter().try_for_each(|one| one.check(chunk_bytes))?;
    let cipher = shared
        .key
        .as_ref()
        .map(|key| Arc::new(key.cipher(shared.geometry.id, namespace)));
    let mut outcomes = Vec::with_capacity(wanted.len());
    let mut targets = Vec::new();
    let mut space = shared.space.lock();
    for (number, one) in wanted.iter().enumerate() {
        outcomes.push(match shared.find(&mut space, namespace, &one.key) {
            Found::Miss(reason) => Outcome::Miss(reason),
            Found::Hit(slot, record) => {
                targets.push(Target {
                    number,
                    slot,
                    record,
                    cipher: cipher.clone(),
                });
                // Until it was read and checked.
                Outcome::Miss(MissReason::Damaged)
            }
        });
    }
    drop(space);
    let running = Running::new(shared, BatchKind::Load, outcomes, prefill, began);
    let mut tickets = Vec::new();
    if !targets.is_empty() {
        let mut places = Places::default();
        let deliveries: Vec<_> = targets.iter().map(|target| places.of(&wanted[target.number])).collect();
        let counts: Vec<_> = deliveries.iter().map(Vec::len).collect();
        let checked = checked(
            shared,
            targets,
            &counts,
            deliveries.into_iter().flatten().collect(),
            places.regions,
        )?;
        tickets.push(begin(&running, executor, checked)?);
    }
    running.leave();
    Ok(Batch::new(running, tickets))
}

/// Begins a job whose outcomes go to a batch.
pub(crate) fn begin(
    running: &Arc<Running>,
    executor: &Executor,
    job: (Checked, Arc<Inspector>),
) -> Result<straightway_io::Ticket> {
    let (checked, inspector) = job;
    let batch = Arc::clone(running);
    let ask = Ask::from(Choice::Auto).then(move |outcome| {
        match outcome {
            Ok(receipt) => {
                batch.add(receipt);
                for (number, outcome) in inspector.outcomes() {
                    batch.set(number, outcome);
                }
                for error in inspector.take_errors() {
                    batch.warn(error.to_string());
                }
            }
            Err(error) => batch.fail(error),
        }
        batch.leave();
    });
    running.enter();
    executor.check(checked, ask)
}

/// A checked read of chunks. `counts` are the deliveries of each; a chunk without deliveries is only checked.
pub(crate) fn checked(
    shared: &Arc<Shared>,
    targets: Vec<Target>,
    counts: &[usize],
    deliveries: Vec<Delivery>,
    regions: Vec<Arc<Region>>,
) -> Result<(Checked, Arc<Inspector>)> {
    let chunk_bytes = shared.geometry.chunk_bytes();
    let mut files: Vec<Arc<File>> = Vec::new();
    let mut objects = HashMap::new();
    let mut portions = Vec::with_capacity(targets.len());
    for (target, deliveries) in targets.iter().zip(counts) {
        let at = target.record.binding.position.at;
        let segment = shared.segments[at.segment as usize].get();
        let segment = segment.expect("a record was read from it");
        let object = *objects.entry(at.segment).or_insert_with(|| {
            files.push(Arc::clone(&segment.chunks));
            u32::try_from(files.len() - 1).expect("segments are few")
        });
        portions.push(Portion {
            object,
            extent: Extent::new(shared.geometry.offset(at), chunk_bytes),
            image_bytes: chunk_bytes,
            wanted_bytes: chunk_bytes,
            deliveries: u32::try_from(*deliveries)
                .map_err(|_| Error::new(ErrorKind::Invalid, "load", "a chunk", "it has more than 2^32 parts"))?,
        });
    }
    let inspector = Arc::new(Inspector::new(shared, targets));
    let checked = Checked {
        from: Objects::from(files),
        portions,
        deliveries,
        to: regions,
        inspect: Arc::clone(&inspector) as Arc<dyn Inspect>,
    };
    Ok((checked, inspector))
}

/// The regions of a batch, each once.
#[derive(Default)]
struct Places {
    regions: Vec<Arc<Region>>,
    numbers: HashMap<*const Region, u32>,
}

impl Places {
    /// The deliveries of a chunk.
    fn of(&mut self, chunk: &ChunkAt) -> Vec<Delivery> {
        let mut from = 0;
        let deliver = |part: &Part| {
            let region = *self.numbers.entry(Arc::as_ptr(&part.region)).or_insert_with(|| {
                self.regions.push(Arc::clone(&part.region));
                u32::try_from(self.regions.len() - 1).expect("regions are listed in memory")
            });
            let delivery = Delivery {
                from,
                bytes: part.bytes,
                region,
                at: part.at,
            };
            from += part.bytes;
            delivery
        };
        chunk.parts.iter().map(deliver).collect()
    }
}
