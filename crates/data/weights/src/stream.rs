//! Loads a model in batches: each batch has memory of its own, and the next loads while the last is used.
//!
//! A caller that copies tensors into existing parameters needs no second copy of the model: at most two batches are in
//! memory, one in use and one loading. In host memory they take turns in the same two regions: each page of a fresh
//! region would be faulted in and zeroed, which takes as long as the copy from the page cache.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::{self, Builder, JoinHandle},
    time::{Duration, Instant},
};

use straightway_core::{Error, Place, Result};
use straightway_io::{Progress, Region};

use super::{Layout, Loaded, Loader, Model, Selection, sharded::divide};

/// The time that a batch waits for the memory of the last but one. Its last tensor is usually dropped right after the
/// caller has received the next batch.
const RETURN_TIMEOUT: Duration = Duration::from_millis(2);

/// The interval at which the returned memory is looked for.
const RETURN_POLL: Duration = Duration::from_micros(50);

/// The batches of a model, in order. An error ends the stream.
///
/// Dropping it before its end cancels its progress and waits for transfers in flight.
#[derive(Debug)]
pub struct BatchStream {
    batches: Option<Receiver<Result<Loaded>>>,
    /// The number of batches that were not received yet.
    left: usize,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Divides a selection into selections of at most `batch_bytes`, or one larger tensor.
    pub fn batches(&self, model: &Model, selection: &Selection, batch_bytes: u64) -> Result<Vec<Selection>> {
        let picks = selection.picks().iter().cloned();
        let groups = divide(picks, |pick| pick.bytes(pick.of(model)), batch_bytes);
        let groups = groups.into_iter().filter(|group| !group.is_empty());
        groups.map(|group| Selection::of(model, group)).collect()
    }

    /// Loads the selected tensors of a model batch by batch. Each batch has at most `batch_bytes`, or one larger
    /// tensor.
    pub fn stream(
        &self,
        model: &Arc<Model>,
        selection: &Selection,
        place: Place,
        batch_bytes: u64,
    ) -> Result<BatchStream> {
        let batches = self.batches(model, selection, batch_bytes)?;
        let left = batches.len();
        // The channel holds no batch: one is in use, and one is loading or ready.
        let (ready, inbox) = sync_channel(0);
        let (loader, model) = (self.clone(), Arc::clone(model));
        let load = move || {
            let mut memory = BatchMemory::new(place);
            for batch in batches {
                let weights = memory.load(&loader, &model, &batch);
                let is_over = weights.is_err();
                if ready.send(weights).is_err() || is_over {
                    return;
                }
            }
        };
        let thread = Builder::new()
            .name("straightway-stream".to_owned())
            .spawn(load)
            .map_err(|e| Error::os("start", "a stream", e))?;
        Ok(BatchStream {
            batches: Some(inbox),
            left,
            progress: Arc::clone(&self.progress),
            thread: Some(thread),
        })
    }
}

/// The memory of the batches of a stream.
struct BatchMemory {
    place: Place,
    /// The memory of the last two batches, the older one first.
    used: VecDeque<Arc<Region>>,
}

impl BatchMemory {
    fn new(place: Place) -> Self {
        let used = VecDeque::new();
        Self { place, used }
    }

    /// Loads a batch, into the memory of an earlier one if the caller has dropped that.
    fn load(&mut self, loader: &Loader, model: &Model, batch: &Selection) -> Result<Loaded> {
        let layout = loader.layout(model, batch, self.place);
        let region = match self.returned(&layout) {
            Some(region) => region,
            None => Arc::new(Region::at(self.place, layout.bytes)?),
        };
        // Work that is queued on a GPU may use memory whose tensors were dropped.
        if self.place == Place::Host {
            self.used.push_back(Arc::clone(&region));
        }
        loader.prepare_in(model, layout, region).load()
    }

    /// The memory of the last batch but one, if the caller has dropped all of its tensors and it fits.
    fn returned(&mut self, layout: &Layout) -> Option<Arc<Region>> {
        if self.used.len() < 2 {
            return None;
        }
        let mut region = self.used.pop_front()?;
        // Memory of a much larger batch is freed.
        if !(layout.bytes..=2 * layout.bytes).contains(&region.bytes()) {
            return None;
        }
        let start = Instant::now();
        while Arc::get_mut(&mut region).is_none() {
            if start.elapsed() > RETURN_TIMEOUT {
                return None;
            }
            thread::sleep(RETURN_POLL);
        }
        Some(region)
    }
}

impl BatchStream {
    /// Waits for the next batch for at most `timeout`; `None` if it expires. For callers that have other work while
    /// they wait.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Option<Result<Loaded>>> {
        let Some(batches) = &self.batches else {
            return Some(None);
        };
        match batches.recv_timeout(timeout) {
            Ok(loaded) => {
                self.note(&loaded);
                Some(Some(loaded))
            }
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// Notes a batch that was received. None follows an error.
    fn note(&mut self, loaded: &Result<Loaded>) {
        self.left = match loaded {
            Ok(_) => self.left.saturating_sub(1),
            Err(_) => 0,
        };
    }
}

impl Iterator for BatchStream {
    type Item = Result<Loaded>;

    fn next(&mut self) -> Option<Self::Item> {
        let loaded = self.batches.as_ref()?.recv().ok()?;
        self.note(&loaded);
        Some(loaded)
    }
}

impl Drop for BatchStream {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        // After the last batch the thread ends by itself. The loader may be used again, with the same progress.
        if self.left > 0 && !thread.is_finished() {
            self.progress.cancel();
        }
        self.batches = None;
        // If the thread panicked, its last batch never arrived, which the caller has seen.
        let _ = thread.join();
    }
}
