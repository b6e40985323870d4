//! A model piece by piece: each batch in memory of its own, the next loading while the last is used.
//!
//! Who copies tensors into parameters that exist already needs no second copy of the model: there
//! are never more than two batches, the one in use and the one that is loading.

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

use super::{Loaded, Loader, Model, Selection};

/// Batches of a model, in order. After an error there are no more.
///
/// Dropped before its end, it cancels its progress and waits for what is in flight.
#[derive(Debug)]
pub struct Stream {
    batches: Option<Receiver<Result<Loaded>>>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Cuts a selection into selections of at most `batch_bytes`, or one tensor that is larger.
    pub fn batches(
        &self,
        model: &Model,
        selection: &Selection,
        batch_bytes: u64,
    ) -> Result<Vec<Selection>> {
        let picks = selection.picks().iter().cloned();
        let groups = super::divide(picks, |pick| pick.bytes(pick.of(model)), batch_bytes);
        let groups = groups.into_iter().filter(|group| !group.is_empty());
        groups.map(|group| Selection::of(model, group)).collect()
    }

    /// Loads what is selected of a model batch by batch. Each has at most `batch_bytes`, or one
    /// tensor that is larger.
    pub fn stream(
        &self,
        model: &Arc<Model>,
        selection: &Selection,
        place: Place,
        batch_bytes: u64,
    ) -> Result<Stream> {
        let batches = self.batches(model, selection, batch_bytes)?;
        // No batch waits in between: one is in use, one is loading or ready.
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
        Ok(Stream {
            batches: Some(inbox),
            progress: Arc::clone(&self.progress),
            thread: Some(thread),
        })
    }
}

impl Stream {
    /// The next batch, if it comes within this time; `None` where it does not. For who has to look
    /// after something else while it waits.
    pub fn next_within(&mut self, patience: Duration) -> Option<Option<Result<Loaded>>> {
        let Some(batches) = &self.batches else {
            return Some(None);
        };
        match batches.recv_timeout(patience) {
            Ok(loaded) => Some(Some(loaded)),
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Loaded>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.as_ref()?.recv().ok()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if !thread.is_finished() {
            self.progress.cancel();
        }
        self.batches = None;
        // If it panicked, its last batch never came, and that was seen.
        let _ = thread.join();
    }
}
