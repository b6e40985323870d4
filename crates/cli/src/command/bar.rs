//! The progress bar of a simulation or a sweep, which also stops on Ctrl-C.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use indicatif::{ProgressBar, ProgressStyle};
use straightway_core::text::shown;

use super::interrupt::on_interrupt;

/// A progress bar on stderr (hidden if that is not a terminal) that also watches for Ctrl-C.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

/// The number of steps of a full bar.
const STEPS: u64 = 1000;

impl Bar {
    /// An empty bar.
    pub(crate) fn begin() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // Only the first handler of a process is installed: a second bar does not stop on Ctrl-C.
        on_interrupt(move || stopped.store(true, Ordering::Relaxed));
        let template = "{bar:32} {percent:>3} %  {msg}  {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let bar = ProgressBar::new(STEPS).with_style(style);
        Self { bar, stop }
    }

    /// Shows the share that is done and the current activity. Breaks on Ctrl-C.
    pub(crate) fn show(&self, done: f64, doing: &str) -> ControlFlow<()> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a thousand"
        )]
        self.bar.set_position((done * STEPS as f64) as u64);
        self.bar.set_message(shown(doing).into_owned());
        self.check()
    }

    /// Breaks on Ctrl-C.
    pub(crate) fn check(&self) -> ControlFlow<()> {
        if self.stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
