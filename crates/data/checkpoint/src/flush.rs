//! The part of a save after its snapshot, while the job runs: writes the shard, reports it and commits the step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Receipt, Result};
use straightway_io::{
    Region,
    store::{Missing, Store},
};

use super::{
    coordination::Home,
    image::Image,
    name::Attempt,
    rendezvous::{Rendezvous, TrustedCoordinator, WaitLimit, announce, gather},
    shard::{ShardWriter, Written},
    shard_report::ShardReport,
    snapshot::Segments,
    steps::Steps,
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
    pub(crate) attempt: Attempt,
    /// The nonce of this saver, which identifies its files.
    pub(crate) nonce: String,
    pub(crate) trusted: TrustedCoordinator,
    /// Attempts of the same run that the coordinator found at its start: left by dead ranks, or begun by its own.
    pub(crate) leftovers: Vec<Attempt>,
    pub(crate) writer: ShardWriter,
    pub(crate) gathering: Gathering,
    pub(crate) parity: usize,
    pub(crate) wait: WaitLimit,
}

impl Flush {
    /// Runs the flush, and returns the memory of the snapshot with the result.
    pub(crate) fn run(&self, image: &Image, mut segments: Segments) -> (Vec<Region>, Result<Flushed>) {
        let outcome = self.flush(image, &mut segments);
        if outcome.is_err() {
            let coordination = self.store.coordination();
            // Leftovers are never read again, and a sweep removes them later.
            let _ = match self.writer.rank.rank {
                0 => coordination.give_up(&self.attempt, &self.nonce),
                _ => coordination.withdraw(&self.attempt, &self.nonce),
            };
        }
        (segments.into_regions(), outcome)
    }

    fn rendezvous(&self) -> Rendezvous<'_> {
        Rendezvous {
            store: &self.store,
            attempt: &self.attempt,
            rank: self.writer.rank.rank,
            trusted: &self.trusted,
            wait: &self.wait,
        }
    }

    fn flush(&self, image: &Image, segments: &mut Segments) -> Result<Flushed> {
        let start = Instant::now();
        let (rank, step, bytes) = (self.writer.rank, self.attempt.step, image.bytes());
        let (home, written) = self
            .write(bytes, segments)
            .map_err(|error| match (&self.gathering, rank.rank) {
                (Gathering::Files(_), 1..) => self.rendezvous().decline(error),
                _ => error,
            })?;
        let record = written.record;
        let written_bytes = record.written_bytes(step);
        let report = ShardReport {
            attempt: self.attempt.clone(),
            world: rank.world,
            chunk_bytes: self.writer.chunk_bytes,
            parent: self.writer.parent.as_ref().map(|parent| parent.step),
            writer: self.nonce.clone(),
            tensors: image.tensors.clone(),
            identities: image.identities.clone(),
            shard: record,
        };
        if let Gathering::Files(metadata) = &self.gathering {
            if rank.rank == 0 {
                let reports = gather(&*self.records()?, report.clone(), &self.wait)?;
                self.store.commit(reports, metadata, self.parity)?;
                // All ranks have reached this save, so no rank uses an older attempt any more.
                let is_over = |old: &&Attempt| old.sequence < self.attempt.sequence;
                for old in self.leftovers.iter().filter(is_over) {
                    self.store.abandon(old);
                }
            } else {
                self.rendezvous().attend(&report)?;
            }
        } else {
            self.store.coordination().sync(&home)?;
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

    /// The store of the attempt's records.
    fn records(&self) -> Result<Arc<dyn Store>> {
        let folder = self.attempt.folder();
        self.store.root().below(folder.as_ref(), Missing::Refuse)
    }

    /// Writes the shard and makes it durable. Returns the place of the attempt's objects too.
    fn write(&self, bytes: u64, segments: &mut Segments) -> Result<(Home, Written)> {
        let rank = self.writer.rank;
        if matches!(self.gathering, Gathering::Files(_)) && rank.rank == 0 && rank.world > 1 {
            // Announced first, because ranks that are done wait for it.
            announce(&*self.records()?, &self.nonce)?;
        }
        let coordination = self.store.coordination();
        let home = coordination.home(&self.attempt, &self.nonce)?;
        let written = self.writer.write((coordination, &home), bytes, segments)?;
        Ok((home, written))
    }
}
