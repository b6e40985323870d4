//! The part of a save after its snapshot, while the job runs: writes the shard, reports it and commits the step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Receipt, Result};
use straightway_io::{
    Region,
    store::{Durability, Missing, Store},
};

use super::{
    image::Image,
    manifest::Manifest,
    name::{Attempt, writer_file},
    rendezvous::{Rendezvous, TrustedCoordinator, WaitLimit, announce, gather},
    shard::{Rank, ShardWriter, Written},
    shard_report::ShardReport,
    snapshot::Segment,
    steps::{Steps, put},
};

/// A committed step, as one rank sees it.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The step.
    pub step: u64,
    /// The length of this rank's image.
    pub bytes: u64,
    /// The number of bytes that were written: fewer if the save is incremental or compressed.
    pub written_bytes: u64,
    /// The receipt of the write.
    pub receipt: Receipt,
    /// The estimated ratio of compressed to original size, from a sample.
    pub estimate: f64,
    /// The time from the start of the flush to the commit.
    pub took: Duration,
}

/// The result of a flush.
#[derive(Debug)]
pub(crate) struct Flushed {
    pub(crate) committed: Committed,
    pub(crate) report: ShardReport,
}

/// How the coordinator gets the reports of all ranks.
#[derive(Clone, Debug)]
pub(crate) enum Gathering {
    /// The ranks put them into the attempt's folder. The text is the coordinator's metadata.
    Files(String),
    /// The caller collects them, and commits.
    Caller,
}

/// A save after its snapshot.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) store: Steps,
    pub(crate) rank: Rank,
    pub(crate) attempt: Attempt,
    /// The nonce of this saver, which identifies its files.
    pub(crate) nonce: String,
    pub(crate) trusted: TrustedCoordinator,
    /// Attempts of the same run that the coordinator found at its start: left by dead ranks, or begun by its own.
    pub(crate) leftovers: Vec<Attempt>,
    pub(crate) writer: ShardWriter,
    pub(crate) parent: Option<Manifest>,
    pub(crate) gathering: Gathering,
    pub(crate) parity: usize,
    pub(crate) wait: WaitLimit,
}

impl Flush {
    /// Runs the flush, and returns the memory of the snapshot with the result.
    pub(crate) fn run(&self, image: &Image, segments: impl Iterator<Item = Segment>) -> (Vec<Region>, Result<Flushed>) {
        let mut regions = Vec::new();
        let outcome = self.flush(&mut regions, image, segments);
        if outcome.is_err() {
            match self.rank.rank {
                0 => self.store.give_up(&self.attempt, &self.nonce),
                _ => self.store.withdraw(&self.attempt, &self.nonce),
            }
        }
        (regions, outcome)
    }

    fn rendezvous(&self) -> Rendezvous<'_> {
        Rendezvous {
            store: &self.store,
            attempt: &self.attempt,
            rank: self.rank.rank,
            trusted: &self.trusted,
            wait: &self.wait,
        }
    }

    fn flush(
        &self,
        regions: &mut Vec<Region>,
        image: &Image,
        segments: impl Iterator<Item = Segment>,
    ) -> Result<Flushed> {
        let start = Instant::now();
        let (rank, step, bytes) = (self.rank, self.attempt.step, image.bytes());
        let (records, written) = self
            .write(bytes, segments)
            .map_err(|error| match (&self.gathering, rank.rank) {
                (Gathering::Files(_), 1..) => self.rendezvous().decline(error),
                _ => error,
            })?;
        *regions = written.regions;
        let record = written.record;
        let written_bytes = record.written_bytes(step);
        let report = ShardReport {
            attempt: self.attempt.clone(),
            world: rank.world,
            chunk_bytes: self.writer.chunk_bytes,
            parent: self.parent.as_ref().map(|parent| parent.step),
            writer: self.nonce.clone(),
            tensors: image.tensors.clone(),
            identities: image.identities.clone(),
            shard: record,
        };
        if let Gathering::Files(metadata) = &self.gathering {
            if rank.rank == 0 {
                let reports = gather(&*records, report.clone(), &self.wait)?;
                self.store.commit(reports, metadata, self.parity)?;
                // All ranks have reached this save, so no rank uses an older attempt any more.
                let is_over = |old: &&Attempt| old.sequence < self.attempt.sequence;
                for old in self.leftovers.iter().filter(is_over) {
                    self.store.abandon(old);
                }
            } else {
                self.rendezvous().attend(&report)?;
            }
        } else if let Some(folder) = records.folder() {
            folder.sync()?;
        }
        let committed = Committed {
            step,
            bytes,
            written_bytes,
            receipt: written.receipt,
            estimate: written.estimate,
            took: start.elapsed(),
        };
        Ok(Flushed { committed, report })
    }

    /// Writes the shard and makes it durable. Returns the store of the attempt's records too.
    fn write(&self, bytes: u64, segments: impl Iterator<Item = Segment>) -> Result<(Arc<dyn Store>, Written)> {
        let folder = self.attempt.folder();
        let records = self.store.root().below(folder.as_ref(), Missing::Refuse)?;
        let rank = self.rank;
        if matches!(self.gathering, Gathering::Files(_)) && rank.rank == 0 && rank.world > 1 {
            // Announced first, because ranks that are done wait for it.
            announce(&*records, &self.nonce)?;
        }
        let home = self.store.home(&self.attempt, &self.nonce)?;
        if home.mark.is_some() {
            // This record finds the objects again if the attempt is abandoned.
            let name = writer_file(&self.nonce);
            put(&*records, &name, "", Durability::Unsynced)?;
        }
        let (step, parent) = (self.attempt.step, self.parent.as_ref());
        let written = self.writer.write(&home, rank, step, bytes, segments, parent)?;
        Ok((records, written))
    }
}
