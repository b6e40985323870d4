//! What a tier has, and whether all of it is whole.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use serde::Serialize;
use straightway_core::Result;

use crate::{
    batch::{Batch, Running},
    loading::{self, Target},
    protocol::Slot,
    receipt::{BatchKind, MissReason, Outcome},
    record::Proof,
    tier::Tier,
};

/// Chunks that are checked by one job.
const JOB_CHUNKS: usize = 4096;

/// The most errors of a report.
const ERRORS_MAX: usize = 100;

/// The chunks of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The length of a chunk.
    pub chunk_bytes: u64,
    /// The most bytes that the files may take.
    pub bytes_max: u64,
    /// The bytes that they take once all segments are in use.
    pub bytes: u64,
    /// The most chunks.
    pub slots: u64,
    /// The segments, and those of them that exist.
    pub segments: u64,
    /// The segments that exist.
    pub segments_used: u64,
    /// The chunks.
    pub chunks: u64,
    /// The chunks that are encrypted.
    pub encrypted: u64,
    /// The namespaces that have chunks.
    pub namespaces: u64,
    /// Slots that are being written, or were when their process died.
    pub unfinished: u64,
    /// Records that are damaged.
    pub damaged_records: u64,
}

/// The result of a check of all chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierCheck {
    /// The chunks that were checked.
    pub chunks: u64,
    /// Those that are whole.
    pub good: u64,
    /// Those that are damaged, or whose record is.
    pub damaged: u64,
    /// Those that were evicted while they were checked.
    pub evicted: u64,
    /// Those that are encrypted with another key, and were not checked.
    pub wrong_key: u64,
    /// The first errors.
    pub errors: Vec<String>,
}

impl Tier {
    /// Counts what the journals have. No chunk is read.
    pub fn stats(&self) -> Stats {
        let geometry = self.geometry();
        let segments_used = self
            .shared
            .segments
            .iter()
            .filter(|segment| segment.get().is_some())
            .count();
        let mut stats = Stats {
            chunk_bytes: geometry.chunk_bytes(),
            bytes_max: geometry.bytes_max(),
            bytes: geometry.bytes(),
            slots: geometry.slots().into(),
            segments: geometry.segments().into(),
            segments_used: segments_used as u64,
            ..Stats::default()
        };
        let mut namespaces = HashSet::new();
        for slot in 0..geometry.slots() {
            match self.shared.read(slot) {
                None | Some(Slot::Empty) => {}
                Some(Slot::Busy) => stats.unfinished += 1,
                Some(Slot::Damaged) => stats.damaged_records += 1,
                Some(Slot::Stored(record)) => {
                    stats.chunks += 1;
                    stats.encrypted += u64::from(matches!(record.proof, Proof::Sealed { .. }));
                    namespaces.insert(record.binding.namespace);
                }
            }
        }
        stats.namespaces = namespaces.len() as u64;
        stats
    }

    /// Reads and checks every chunk, in class *background*.
    pub fn verify(&self) -> Result<TierCheck> {
        let mut verified = TierCheck::default();
        let mut ciphers = HashMap::new();
        let mut targets = Vec::new();
        for slot in 0..self.geometry().slots() {
            let record = match self.shared.read(slot) {
                Some(Slot::Stored(record)) => record,
                Some(Slot::Damaged) => {
                    verified.chunks += 1;
                    verified.damaged += 1;
                    continue;
                }
                None | Some(Slot::Empty | Slot::Busy) => continue,
            };
            verified.chunks += 1;
            let cipher = match (record.proof, &self.shared.key) {
                (Proof::Sum(_), _) => None,
                (Proof::Sealed { key_number, .. }, Some(key)) if key.number() == key_number => {
                    let namespace = record.binding.namespace;
                    let make = || Arc::new(key.cipher(self.geometry().id, namespace));
                    Some(Arc::clone(ciphers.entry(namespace).or_insert_with(make)))
                }
                (Proof::Sealed { .. }, _) => {
                    verified.wrong_key += 1;
                    continue;
                }
            };
            targets.push(Target {
                number: targets.len(),
                slot,
                record,
                cipher,
            });
            if targets.len() == JOB_CHUNKS {
                self.verify_some(std::mem::take(&mut targets), &mut verified)?;
            }
        }
        self.verify_some(targets, &mut verified)?;
        Ok(verified)
    }

    fn verify_some(&self, targets: Vec<Target>, verified: &mut TierCheck) -> Result<()> {
        if targets.is_empty() {
            return Ok(());
        }
        let outcomes = vec![Outcome::Miss(MissReason::Damaged); targets.len()];
        let running = Running::new(&self.shared, BatchKind::Load, outcomes, None, Instant::now());
        let counts = vec![0; targets.len()];
        let checked = loading::checked(&self.shared, targets, &counts, Vec::new(), Vec::new())?;
        let ticket = loading::begin(&running, &self.background, checked)?;
        running.leave();
        let done = Batch::new(running, vec![ticket]).wait()?;
        for outcome in done.outcomes {
            match outcome {
                Outcome::Hit => verified.good += 1,
                Outcome::Miss(MissReason::Evicted) => verified.evicted += 1,
                _ => verified.damaged += 1,
            }
        }
        let room = ERRORS_MAX.saturating_sub(verified.errors.len());
        verified.errors.extend(done.receipt.warnings.into_iter().take(room));
        Ok(())
    }
}
