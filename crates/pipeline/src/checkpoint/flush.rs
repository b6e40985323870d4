//! A save after its snapshot, while the job goes on: the shard is written, its part told, and the step committed.

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
    meeting::{Allegiance, Meeting, Patience, announce, gather},
    name::{Attempt, writer_file},
    part::Part,
    shard::{Rank, ShardWriter, Written},
    snapshot::Segment,
    steps::{Steps, put},
};

/// A step that was committed, as the rank that asks knows it.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The step.
    pub step: u64,
    /// How long this rank's image is.
    pub bytes: u64,
    /// How many bytes of it were written: fewer where it is incremental or compressed.
    pub written_bytes: u64,
    /// Which way they went.
    pub receipt: Receipt,
    /// What part of its bytes compression would leave, by a sample.
    pub estimate: f64,
    /// From the snapshot's end to the commit.
    pub took: Duration,
}

/// What came of a shard.
#[derive(Debug)]
pub(crate) struct Flushed {
    pub(crate) committed: Committed,
    pub(crate) part: Part,
}

/// Who brings the parts together.
#[derive(Clone, Debug)]
pub(crate) enum Gathering {
    /// The ranks, by way of the file system. The metadata are the coordinator's.
    Files(String),
    /// The caller, who then commits.
    Caller,
}

/// A save after its snapshot.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) store: Steps,
    pub(crate) rank: Rank,
    pub(crate) attempt: Attempt,
    /// What no other saver has, by which this one's files are known.
    pub(crate) nonce: String,
    pub(crate) allegiance: Allegiance,
    /// Attempts of the same run that the coordinator found when it began: those of dead ranks, or of its own.
    pub(crate) leftovers: Vec<Attempt>,
    pub(crate) writer: ShardWriter,
    pub(crate) parent: Option<Manifest>,
    pub(crate) gathering: Gathering,
    pub(crate) parity: usize,
    pub(crate) patience: Patience,
}

impl Flush {
    /// Runs it, and gives the memory of the snapshot back with what came of it.
    pub(crate) fn run(
        &self,
        image: &Image,
        segments: impl Iterator<Item = Segment>,
    ) -> (Vec<Region>, Result<Flushed>) {
        let mut regions = Vec::new();
        let outcome = self.flush(&mut regions, image, segments);
        if outcome.is_err() && self.rank.rank == 0 {
            self.store.abandon(&self.attempt);
        }
        (regions, outcome)
    }

    fn meeting(&self) -> Meeting<'_> {
        Meeting {
            store: &self.store,
            attempt: &self.attempt,
            rank: self.rank.rank,
            allegiance: &self.allegiance,
            patience: &self.patience,
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
        let (records, written) =
            self.write(bytes, segments)
                .map_err(|error| match (&self.gathering, rank.rank) {
                    (Gathering::Files(_), 1..) => self.meeting().decline(error),
                    _ => error,
                })?;
        *regions = written.regions;
        let record = written.record;
        let written_bytes = record.written_bytes(step);
        let part = Part {
            attempt: self.attempt.clone(),
            world: rank.world,
            chunk_bytes: self.writer.chunk_bytes,
            parent: self.parent.as_ref().map(|parent| parent.step),
            writer: self.nonce.clone(),
            tensors: image.tensors.clone(),
            shard: record,
        };
        if let Gathering::Files(metadata) = &self.gathering {
            if rank.rank == 0 {
                let parts = gather(&*records, part.clone(), &self.patience)?;
                self.store.commit(parts, metadata, self.parity)?;
                // All ranks have come this far, so nobody works in what was there before and is older.
                let is_over = |old: &&Attempt| old.sequence < self.attempt.sequence;
                for old in self.leftovers.iter().filter(is_over) {
                    self.store.abandon(old);
                }
            } else {
                self.meeting().attend(&part)?;
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
        Ok(Flushed { committed, part })
    }

    /// Writes the shard, and makes it durable. Answers where the attempt's records are.
    fn write(
        &self,
        bytes: u64,
        segments: impl Iterator<Item = Segment>,
    ) -> Result<(Arc<dyn Store>, Written)> {
        let folder = self.attempt.folder();
        let records = self.store.root().below(folder.as_ref(), Missing::Refuse)?;
        let rank = self.rank;
        if matches!(self.gathering, Gathering::Files(_)) && rank.rank == 0 && rank.world > 1 {
            // First of all: ranks that are done wait for it.
            announce(&*records, &self.nonce)?;
        }
        let home = self.store.home(&self.attempt, &self.nonce)?;
        if home.mark.is_some() {
            // By this the objects are found again if the attempt is given up.
            let name = writer_file(&self.nonce);
            put(&*records, &name, "", Durability::Unsynced)?;
        }
        let (step, parent) = (self.attempt.step, self.parent.as_ref());
        let written = self
            .writer
            .write(&home, rank, step, bytes, segments, parent)?;
        Ok((records, written))
    }
}
