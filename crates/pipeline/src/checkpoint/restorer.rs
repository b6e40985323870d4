//! Restoring: wanted rectangles, from any sharding into any other, checked before they arrive.

use std::sync::Arc;

use straightway_core::{Error, Kind, Result};
use straightway_io::{Progress, Settings};

use super::{
    fetch::{Bad, Fetch, Fetched},
    opened::Checkpoint,
    parity,
    ring::Rings,
    scatter::{Scatter, Wanted},
};

/// Restores checkpoints. What it needs for that, pinned memory above all, is kept from one to the next.
#[derive(Debug)]
pub struct Restorer {
    settings: Settings,
    rings: Rings,
    progress: Arc<Progress>,
}

impl Restorer {
    /// A restorer with these settings.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        Ok(Self {
            settings,
            rings: Rings::default(),
            progress: Arc::default(),
        })
    }

    /// Shares how far it has come with `progress`.
    #[must_use]
    pub fn with_progress(mut self, progress: &Arc<Progress>) -> Self {
        self.progress = Arc::clone(progress);
        self
    }

    /// How far it has come.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Puts all that is wanted where it goes. What is damaged is mended where there is parity, and
    /// refused otherwise; after an error some of what is wanted may be in place, and all that is was
    /// checked.
    pub fn restore(&self, checkpoint: &Checkpoint, wanted: &[Wanted]) -> Result<Fetched> {
        let scatter = Scatter::new(checkpoint.manifest(), wanted)?;
        let has_parity = !checkpoint.manifest().parity.is_empty();
        open_files(checkpoint, &scatter, has_parity)?;
        let fetch = self.fetch(checkpoint, &scatter, has_parity);
        let (mut fetched, bad) = fetch.run()?;
        for (number, error) in first_first(bad) {
            if !has_parity {
                return Err(error);
            }
            self.mend(&fetch, number)?;
            fetched.rebuilt.push(error.to_string());
        }
        Ok(fetched)
    }

    pub(crate) fn fetch<'a>(
        &'a self,
        checkpoint: &'a Checkpoint,
        scatter: &'a Scatter,
        is_patient: bool,
    ) -> Fetch<'a> {
        Fetch {
            checkpoint,
            scatter,
            settings: &self.settings,
            rings: &self.rings,
            progress: &self.progress,
            is_patient,
        }
    }

    /// Makes a chunk from parity and puts it where it goes.
    fn mend(&self, fetch: &Fetch<'_>, number: usize) -> Result<()> {
        let task = &fetch.scatter.tasks[number];
        let chunk = parity::rebuild(fetch.checkpoint, task.shard, task.chunk)?;
        let mut ring = fetch.ring()?;
        let mut slot = ring
            .slot()?
            .expect("a ring that nobody uses has a free slot");
        slot.as_mut_slice()[..chunk.len()].copy_from_slice(&chunk);
        let delivered = ring.deliver(slot, 0, &task.copies, &fetch.scatter.regions);
        let delivered = delivered.and(ring.settle());
        self.rings.give_back(ring);
        delivered
    }
}

/// Opens every file that chunks lie in, so that they stay readable when the step is removed. Where
/// there is parity, one that is not there is only one more that is lost.
fn open_files(checkpoint: &Checkpoint, scatter: &Scatter, has_parity: bool) -> Result<()> {
    for task in &scatter.tasks {
        let place = checkpoint.place(task.shard, task.chunk);
        match checkpoint.file(place.step, &place.file) {
            Err(error) if !has_parity => {
                return Err(match error.kind() {
                    Kind::NotFound => {
                        let path = checkpoint.path(place.step, &place.file);
                        let message = "it is missing, and its manifest names it";
                        Error::new(Kind::Corrupt, "open", path.display(), message)
                            .with_hint("restore an earlier step")
                    }
                    _ => error,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// In the order of the chunks, so that of several errors it is always the same that is told.
pub(crate) fn first_first(mut bad: Vec<Bad>) -> Vec<Bad> {
    bad.sort_by_key(|(number, _)| *number);
    bad
}
