//! Restoring: wanted rectangles, from any sharding into any other, checked before they arrive.

use std::{sync::Arc, time::Instant};

use straightway_core::{Error, Kind, Leg, Rate, Reason, Result, Route};
use straightway_io::{Books, Progress, Settings, Tally};

use super::{
    fetch::{Bad, Fetch},
    fetched::Fetched,
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

    /// The rate that it is held to, if it is.
    pub(crate) fn rate_max(&self) -> Option<Rate> {
        self.settings.rate_max
    }

    /// Puts all that is wanted where it goes. What is damaged is mended where there is parity, and
    /// refused otherwise; after an error some of what is wanted may be in place, and all that is was
    /// checked.
    pub fn restore(&self, checkpoint: &Checkpoint, wanted: &[Wanted]) -> Result<Fetched> {
        let mut books = Books::default();
        let scatter = Scatter::new(checkpoint.manifest(), wanted)?;
        let has_parity = !checkpoint.manifest().parity.is_empty();
        open_files(checkpoint, &scatter, has_parity)?;
        let fetch = self.fetch(checkpoint, &scatter, has_parity);
        let (chunks, bad) = fetch.run(&mut books)?;
        let mut rebuilt = Vec::new();
        for (number, error) in first_first(bad) {
            if !has_parity {
                return Err(error);
            }
            books.add_read(&self.mend(&fetch, number)?);
            rebuilt.push(error.to_string());
        }
        Ok(Fetched {
            receipt: books.close(self.rate_max()),
            chunks,
            rebuilt,
        })
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
    fn mend(&self, fetch: &Fetch<'_>, number: usize) -> Result<Tally> {
        let task = &fetch.scatter.tasks[number];
        let chunk = parity::rebuild(fetch.checkpoint, task.shard, task.chunk)?;
        let mut ring = fetch.ring()?;
        let mut slot = ring
            .slot()?
            .expect("a ring that nobody uses has a free slot");
        slot.as_mut_slice()[..chunk.len()].copy_from_slice(&chunk);
        let regions = &fetch.scatter.regions;
        let delivered = ring.deliver(slot, 0, &task.copies, regions, Instant::now());
        let delivered = delivered.and(ring.settle());
        self.rings.give_back(ring);
        let mut tally = Tally::default();
        let bytes = fetch.wanted_bytes(task);
        tally.count(Leg::Read, Route::Buffered, Reason::Rebuilt, bytes);
        delivered.map(|()| tally)
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
