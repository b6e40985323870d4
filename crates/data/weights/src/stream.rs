//! Loads a model in batches: each batch has memory of its own, and the next loads while the last is used.
//!
//! A caller that copies tensors into existing parameters needs no second copy of the model: at most two batches are in
//! memory, one in use and one loading. With [`Loader::stream_in_turns`] they take turns in the same two regions of host
//! memory, if the caller drops each batch when it has the next one. Each page of a fresh region would be faulted in and
//! zeroed: a stream of 64 MiB batches from the page cache took 1.5 times as long, or more.

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

use super::{Loaded, Loader, Model, Selection, sharded::divide};

/// The time that a batch waits for the memory of the last but one. A loop drops its last tensor right after it has
/// received the first one of the next batch.
const RETURN_TIMEOUT: Duration = Duration::from_millis(2);

/// The number of batches in a row that the caller may keep. After these no batch waits.
const KEPT_MAX: u32 = 3;

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
        self.start(model, selection, BatchMemory::new(place, false), batch_bytes)
    }

    /// As [`stream`](Self::stream), but the memory of a dropped batch is used again for a later one. The stream keeps a
    /// reference to the region of each batch for this, so a batch has no exclusive access to its region.
    pub fn stream_in_turns(
        &self,
        model: &Arc<Model>,
        selection: &Selection,
        place: Place,
        batch_bytes: u64,
    ) -> Result<BatchStream> {
        // Work that is queued on a GPU may use memory whose tensors were dropped.
        let memory = BatchMemory::new(place, place == Place::Host);
        self.start(model, selection, memory, batch_bytes)
    }

    fn start(
        &self,
        model: &Arc<Model>,
        selection: &Selection,
        mut memory: BatchMemory,
        batch_bytes: u64,
    ) -> Result<BatchStream> {
        let batches = self.batches(model, selection, batch_bytes)?;
        let left = batches.len();
        // The channel holds no batch: one is in use, and one is loading or ready.
        let (ready, inbox) = sync_channel(0);
        let (loader, model) = (self.clone(), Arc::clone(model));
        let load = move || {
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
    /// Whether it is used again.
    is_reused: bool,
    /// The number of batches in a row that the caller has not dropped in time.
    kept: u32,
    /// The memory of the last two batches, the older one first.
    used: VecDeque<Arc<Region>>,
}

impl BatchMemory {
    fn new(place: Place, is_reused: bool) -> Self {
        Self {
            place,
            is_reused,
            kept: 0,
            used: VecDeque::new(),
        }
    }

    /// Loads a batch, into the memory of an earlier one if the caller has dropped that.
    fn load(&mut self, loader: &Loader, model: &Model, batch: &Selection) -> Result<Loaded> {
        let layout = loader.layout(model, batch, self.place);
        let region = match self.returned(layout.bytes) {
            Some(region) => region,
            None => Arc::new(Region::at(self.place, layout.bytes)?),
        };
        if self.is_reused && self.kept < KEPT_MAX {
            self.used.push_back(Arc::clone(&region));
        }
        loader.prepare_in(model, layout, region).run()
    }

    /// The memory of the last batch but one, if the caller has dropped all of its tensors and it fits.
    fn returned(&mut self, bytes: u64) -> Option<Arc<Region>> {
        if self.used.len() < 2 {
            return None;
        }
        let mut region = self.used.pop_front()?;
        // Memory of a much larger batch is freed.
        if !(bytes..=2 * bytes).contains(&region.bytes()) {
            return None;
        }
        let start = Instant::now();
        // No other reference exists if this one is unique, and none can be made.
        while Arc::get_mut(&mut region).is_none() {
            if start.elapsed() > RETURN_TIMEOUT {
                self.kept += 1;
                if self.kept == KEPT_MAX {
                    self.used.clear();
                }
                return None;
            }
            thread::sleep(RETURN_POLL);
        }
        self.kept = 0;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: u64) -> Arc<Region> {
        Arc::new(Region::host(bytes).unwrap())
    }

    #[test]
    fn memory_is_used_again_when_nobody_else_has_it_and_it_fits() {
        let mut memory = BatchMemory::new(Place::Host, true);
        memory.used.push_back(region(1000));
        assert!(memory.returned(900).is_none(), "the last batch is still in use");
        memory.used.push_back(region(1000));
        let first = Arc::as_ptr(&memory.used[0]);
        assert_eq!(memory.returned(900).map(|region| Arc::as_ptr(&region)), Some(first));
        for (held, wanted) in [(1000, 1001), (1000, 400)] {
            memory.used = [region(held), region(held)].into();
            assert!(memory.returned(wanted).is_none(), "{held} for {wanted}");
        }
    }

    #[test]
    fn a_caller_that_keeps_its_batches_is_waited_for_three_times() {
        let mut memory = BatchMemory::new(Place::Host, true);
        let kept = [region(1000), region(1000)];
        for misses in 1..=KEPT_MAX {
            memory.used = kept.clone().into();
            assert!(memory.returned(1000).is_none());
            assert_eq!(memory.kept, misses);
        }
        memory.used = [region(1000), region(1000)].into();
        assert!(memory.returned(1000).is_some() && memory.kept == 0);
    }
}
