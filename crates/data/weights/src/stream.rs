//! Loads a model in batches: each batch has memory of its own, and the next loads while the last is used.
//!
//! A caller that copies tensors into existing parameters needs no second copy of the model: at most two batches are in
//! memory, one in use and one loading.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use straightway_core::{Error, Place, Result};
use straightway_io::Progress;

use super::{Loaded, Loader, Model, Selection, sharded::divide};

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
            for batch in batches {
                let weights = loader.load(&model, &batch, place);
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
