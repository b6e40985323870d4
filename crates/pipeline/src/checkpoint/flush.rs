//! A save after its snapshot, while the job goes on: the shard is written, its part told, and the step committed.

use std::time::{Duration, Instant};

use straightway_core::{Receipt, Result};
use straightway_io::Region;

use super::{
    commit::{Patience, given_up},
    image::Image,
    manifest::{Manifest, Stored},
    name::Attempt,
    part::Part,
    shard::{Rank, ShardWriter},
    snapshot::Segment,
    store::Store,
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
    pub(crate) store: Store,
    pub(crate) rank: Rank,
    pub(crate) attempt: Attempt,
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
        match &outcome {
            Err(_) if self.rank.rank == 0 => self.store.abandon(&self.attempt),
            Err(error) if self.store.attempt_path(&self.attempt).exists() => {
                self.store.report(&self.attempt, self.rank.rank, error);
            }
            // Whatever failed here, it failed because the folder went away under it.
            Err(_) => return (regions, Err(given_up(&self.attempt))),
            Ok(_) => {}
        }
        (regions, outcome)
    }

    fn flush(
        &self,
        regions: &mut Vec<Region>,
        image: &Image,
        segments: impl Iterator<Item = Segment>,
    ) -> Result<Flushed> {
        let start = Instant::now();
        let folder = self.store.attempt_path(&self.attempt);
        let (rank, step) = (self.rank, self.attempt.step);
        let parent = self.parent.as_ref();
        let bytes = image.bytes();
        let written = self
            .writer
            .write(&folder, rank, step, bytes, segments, parent)?;
        *regions = written.regions;
        let record = written.record;
        let own = |place: &&Stored| place.step == step;
        let stored = record
            .stored
            .as_ref()
            .map(|stored| stored.iter().filter(own));
        let written_bytes = stored.map_or(record.bytes, |own| own.map(|s| s.bytes).sum());
        let part = Part {
            attempt: self.attempt.clone(),
            world: rank.world,
            chunk_bytes: self.writer.chunk_bytes,
            parent: parent.map(|parent| parent.step),
            tensors: image.tensors.clone(),
            shard: record,
        };
        if let Gathering::Files(metadata) = &self.gathering {
            self.store.publish(&part)?;
            if rank.rank == 0 {
                let parts = self
                    .store
                    .gather(&self.attempt, rank.world, &self.patience)?;
                self.store.commit(parts, metadata, self.parity)?;
            } else {
                self.store.await_commit(&self.attempt, &self.patience)?;
            }
        } else {
            straightway_io::draft::sync_folder(&folder)?;
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
}
