//! Progress bars. All are drawn to stderr, and hidden if that is not a terminal.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use straightway_core::text::shown;

use super::interrupt::on_interrupt;

/// The interval between updates of a bar.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A bar of `bytes` bytes, with their rate.
pub(crate) fn bytes_bar(bytes: u64) -> ProgressBar {
    let template = "{bar:32} {binary_bytes:>10} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    ProgressBar::new(bytes).with_style(style(template))
}

/// A bar of `points` measurements, with the name of the current one.
pub(crate) fn points_bar(points: usize) -> ProgressBar {
    ProgressBar::new(points as u64).with_style(style("{bar:32} {pos} of {len}  {msg}"))
}

/// Shows a spinner while `work` runs.
pub(crate) fn spin<T>(work: impl FnOnce() -> T) -> T {
    let spinner = ProgressBar::new_spinner().with_message("reading");
    spinner.enable_steady_tick(TICK);
    let result = work();
    spinner.finish_and_clear();
    result
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}

/// The bar of a simulation or a sweep. It also watches for Ctrl-C.
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
        on_interrupt(move || stopped.store(true, Ordering::Relaxed));
        let style = style("{bar:32} {percent:>3} %  {msg}  {eta} left");
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
