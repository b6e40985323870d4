//! Ctrl-C, and other signals that request a stop.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use straightway_sys::signal::Ignored;

/// What a signal stops: transfers, simulations, a server.
static STOPS: Stops = Stops(Mutex::new(Vec::new()));

/// Calls `stop` on SIGINT, SIGTERM and SIGHUP, and so for every earlier call. A signal that was ignored at the start
/// (`nohup`, a shell's `&`) stays ignored.
pub(crate) fn on_interrupt(stop: impl FnMut() + Send + 'static) {
    static INSTALLED: Once = Once::new();
    STOPS.add(stop);
    INSTALLED.call_once(|| {
        let ignored = Ignored::now();
        let _ = ctrlc::set_handler(|| STOPS.run());
        ignored.restore();
    });
}

type Stop = Box<dyn FnMut() + Send>;

/// Functions that are called together.
struct Stops(Mutex<Vec<Stop>>);

impl Stops {
    fn add(&self, stop: impl FnMut() + Send + 'static) {
        self.lock().push(Box::new(stop));
    }

    fn run(&self) {
        for stop in self.lock().iter_mut() {
            stop();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn a_signal_stops_everything_that_asked_for_it() {
        let stops = Stops(Mutex::default());
        let stopped = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let stopped = Arc::clone(&stopped);
            stops.add(move || {
                stopped.fetch_add(1, Ordering::Relaxed);
            });
        }
        stops.run();
        assert_eq!(stopped.load(Ordering::Relaxed), 3);
    }
}
