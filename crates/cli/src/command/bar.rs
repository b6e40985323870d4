//! Showing how far a simulation or a sweep has come, and stopping it on Ctrl-C.

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

/// A bar on stderr (nothing where that is no terminal) with an ear for Ctrl-C.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

/// Steps of a whole bar.
const STEPS: u64 = 1000;

impl Bar {
    /// An empty bar.
    pub(crate) fn begin() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // A second bar in one process finds the first one's handler set, and is stopped with it.
        on_interrupt(move || stopped.store(true, Ordering::Relaxed));
        let template = "{bar:32} {percent:>3} %  {msg}  {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        let bar = ProgressBar::new(STEPS).with_style(style);
        Self { bar, stop }
    }

    /// Shows a share of the whole and what is being done; breaks where the user has had enough.
    pub(crate) fn show(&self, done: f64, doing: &str) -> ControlFlow<()> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a thousand"
        )]
        self.bar.set_position((done * STEPS as f64) as u64);
        self.bar.set_message(shown(doing).into_owned());
        self.look()
    }

    /// Breaks where the user has had enough.
    pub(crate) fn look(&self) -> ControlFlow<()> {
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
