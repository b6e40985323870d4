//! Progress bars. All are drawn to stderr, and hidden if that is not a terminal.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use straightway_core::{Bytes, Rate, text::shown};

use super::interrupt::on_interrupt;

/// The interval between updates of a bar.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A bar of `bytes` bytes, with their rate and the time left, in the units of a receipt.
pub(crate) fn bytes_bar(bytes: u64) -> ProgressBar {
    let template = match stderr_columns() {
        0..WIDE => "{percent:>3} %  {done}  {rate}  {left}",
        _ => "{bar:32} {done} of {all}  {rate}  {left}",
    };
    let style = style(template)
        .with_key("done", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{}", Bytes(state.pos()));
        })
        .with_key("all", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{}", Bytes(state.len().unwrap_or(0)));
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{}", Rate(state.per_sec()));
        })
        .with_key("left", left);
    ProgressBar::new(bytes).with_style(style)
}

/// A bar of `points` measurements, with the time left and the name of the current one.
pub(crate) fn points_bar(points: usize) -> ProgressBar {
    let template = match stderr_columns() {
        0..WIDE => "{pos} of {len}  {left}",
        _ => "{bar:32} {pos} of {len}  {left}  {msg}",
    };
    ProgressBar::new(points as u64).with_style(style(template).with_key("left", left))
}

/// The width from which a bar fits beside its figures.
const WIDE: u16 = 80;

/// The width of the terminal at stderr.
fn stderr_columns() -> u16 {
    console::Term::stderr()
        .size_checked()
        .map_or(WIDE, |(_, columns)| columns)
}

/// Writes the time that is left of a bar.
fn left(state: &ProgressState, out: &mut dyn fmt::Write) {
    let done = state.pos() as f64 / state.len().unwrap_or(0).max(1) as f64;
    let _ = out.write_str(&time_left(state.elapsed(), done));
}

/// The time left if the rest takes as long as what is done did; empty while that is not known.
fn time_left(elapsed: Duration, done: f64) -> String {
    /// The time and the share from which on the estimate is shown.
    const KNOWN: (Duration, f64) = (Duration::from_secs(1), 0.002);
    if elapsed < KNOWN.0 || done < KNOWN.1 {
        return String::new();
    }
    let seconds = (elapsed.as_secs_f64() * (1.0 - done).max(0.0) / done).ceil();
    if seconds < 100.0 {
        return format!("{seconds:.0} s left");
    }
    format!("{:.0} min left", (seconds / 60.0).ceil())
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
        let template = match stderr_columns() {
            0..WIDE => "{percent:>3} %  {left}",
            _ => "{bar:32} {percent:>3} %  {msg}  {left}",
        };
        let bar = ProgressBar::new(STEPS).with_style(style(template).with_key("left", left));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_shown_when_it_is_known() {
        let left = |elapsed_s, done| time_left(Duration::from_secs(elapsed_s), done);
        assert_eq!(left(10, 0.0), "");
        assert_eq!(left(0, 0.5), "");
        assert_eq!(left(10, 0.25), "30 s left");
        assert_eq!(left(60, 0.1), "9 min left");
        assert_eq!(left(10, 1.0), "0 s left");
    }
}
