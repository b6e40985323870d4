//! The progress bar of a transfer, which also stops it on Ctrl-C.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use straightway_io::Progress;

use super::interrupt::on_interrupt;

/// The interval between updates of the bar.
const TICK: Duration = Duration::from_millis(100);

/// Shows the progress of a transfer until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Shows `progress` out of `bytes`, and cancels the transfer on SIGINT, SIGTERM and SIGHUP.
    pub(crate) fn begin(progress: &Arc<Progress>, bytes: u64) -> Self {
        let watched = Arc::clone(progress);
        on_interrupt(move || watched.cancel());
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, progress) = (Arc::clone(&over), Arc::clone(progress));
        // indicatif draws to stderr, and nothing if that is not a terminal.
        let bar = ProgressBar::new(bytes).with_style(style());
        let show = move || {
            while !is_over.load(Ordering::Relaxed) {
                bar.set_position(progress.moved_bytes());
                std::thread::park_timeout(TICK);
            }
            bar.finish_and_clear();
        };
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(show)
            .ok();
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

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{bar:32} {binary_bytes:>10} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left",
    )
    .expect("the template is a constant")
}
