//! The progress bar of a transfer, which also stops it on Ctrl-C.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use indicatif::ProgressBar;
use straightway_io::{Progress, store::Location};

use super::{
    bar::{TICK, bytes_bar},
    interrupt::{end_soon_after_interrupt, on_interrupt},
};

/// Shows the progress of a transfer until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Shows `progress` out of `bytes`, and cancels the transfer on SIGINT, SIGTERM and SIGHUP. `written` is where the
    /// transfer writes to, if it does.
    pub(crate) fn begin(progress: &Arc<Progress>, bytes: u64, written: Option<&Location>) -> Self {
        Self::with(progress, bytes_bar(bytes), written)
    }

    /// As [`begin`](Self::begin), without a bar.
    pub(crate) fn hidden(progress: &Arc<Progress>, written: Option<&Location>) -> Self {
        Self::with(progress, ProgressBar::hidden(), written)
    }

    fn with(progress: &Arc<Progress>, bar: ProgressBar, written: Option<&Location>) -> Self {
        let watched = Arc::clone(progress);
        on_interrupt(move || watched.cancel());
        if written.is_none_or(|at| at.path().is_some()) {
            end_soon_after_interrupt();
        }
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, progress) = (Arc::clone(&over), Arc::clone(progress));
        let show = move || {
            while !is_over.load(Ordering::Relaxed) {
                bar.set_position(progress.moved_bytes());
                std::thread::park_timeout(TICK);
            }
            bar.finish_and_clear();
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { over, thread }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
