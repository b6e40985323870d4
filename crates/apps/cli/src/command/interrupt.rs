//! Ctrl-C, and other signals that request a stop.
//!
//! The first signal asks transfers, simulations and servers to stop, and they clean up. An I/O that hangs would keep
//! them from it, so a program that only works with local files ends [`GRACE`] later all the same. A second signal ends
//! any program at once.

use std::{
    sync::{
        MutexGuard, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use straightway_core::Lock;
use straightway_sys::{ending::end_now, signal::Ignored};

use super::output::say;

/// How long a program has to stop after a signal, if it may be ended. Ctrl-C should take less than 2 s.
const GRACE: Duration = Duration::from_millis(1700);

/// 128 + SIGINT, the convention of shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Whether the program may be ended although it has not cleaned up.
static IS_LOCAL: AtomicBool = AtomicBool::new(false);

/// What a signal stops: transfers, simulations, a server.
static STOPS: Stops = Stops(Lock::new(Stopping {
    stops: Vec::new(),
    has_fired: false,
}));

/// Calls `stop` on SIGINT, SIGTERM and SIGHUP, and so for every earlier call. After such a signal it is called at once.
/// A signal that was ignored at the start (`nohup`, a shell's `&`) stays ignored.
pub(crate) fn on_interrupt(stop: impl FnMut() + Send + 'static) {
    static INSTALLED: Once = Once::new();
    STOPS.add(stop);
    INSTALLED.call_once(|| {
        let ignored = Ignored::now();
        let _ = ctrlc::set_handler(|| {
            if !STOPS.run() {
                end();
            }
            thread::spawn(|| {
                thread::sleep(GRACE);
                if IS_LOCAL.load(Ordering::Relaxed) {
                    end();
                }
            });
        });
        ignored.restore();
    });
}

/// Permits that the program is ended [`GRACE`] after a signal, even if an I/O hangs. It then leaves hidden temporary
/// files, which the next run removes. A program that writes to a server is not ended: it would leave parts of an upload
/// there.
pub(crate) fn end_soon_after_interrupt() {
    IS_LOCAL.store(true, Ordering::Relaxed);
}

/// Ends the program.
fn end() -> ! {
    say("error: interrupted before the cleanup was complete: hidden temporary files may be left");
    say("hint: the next run on that folder removes them; if storage hangs, see the kernel's log");
    end_now(INTERRUPTED)
}

type Stop = Box<dyn FnMut() + Send>;

/// Functions that are called together.
struct Stops(Lock<Stopping>);

#[derive(Default)]
struct Stopping {
    stops: Vec<Stop>,
    /// Whether they were called. Later ones are then called at once.
    has_fired: bool,
}

impl Stops {
    fn add(&self, mut stop: impl FnMut() + Send + 'static) {
        let mut inside = self.lock();
        if inside.has_fired {
            stop();
        }
        inside.stops.push(Box::new(stop));
    }

    /// Calls them, and returns whether that is the first time.
    fn run(&self) -> bool {
        let mut inside = self.lock();
        let is_first = !std::mem::replace(&mut inside.has_fired, true);
        for stop in &mut inside.stops {
            stop();
        }
        is_first
    }

    fn lock(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn a_signal_stops_everything_that_asked_for_it() {
        let stops = Stops(Lock::default());
        let stopped = Arc::new(AtomicUsize::new(0));
        let add = || {
            let stopped = Arc::clone(&stopped);
            stops.add(move || {
                stopped.fetch_add(1, Ordering::Relaxed);
            });
        };
        for _ in 0..3 {
            add();
        }
        assert_eq!(stopped.load(Ordering::Relaxed), 0);
        assert!(stops.run());
        assert_eq!(stopped.load(Ordering::Relaxed), 3);
        // It came too late for the signal.
        add();
        assert_eq!(stopped.load(Ordering::Relaxed), 4);
        assert!(!stops.run(), "a second signal");
    }
}
