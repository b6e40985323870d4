//! Ctrl-C, and other signals that request a stop.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use straightway_sys::signal::Ignored;

/// What a signal stops: transfers, simulations, a server.
static STOPS: Stops = Stops(Mutex::new(Stopping {
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
        let _ = ctrlc::set_handler(|| STOPS.run());
        ignored.restore();
    });
}

type Stop = Box<dyn FnMut() + Send>;

/// Functions that are called together.
struct Stops(Mutex<Stopping>);

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

    fn run(&self) {
        let mut inside = self.lock();
        inside.has_fired = true;
        for stop in &mut inside.stops {
            stop();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stopping> {
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
        stops.run();
        assert_eq!(stopped.load(Ordering::Relaxed), 3);
        // It came too late for the signal.
        add();
        assert_eq!(stopped.load(Ordering::Relaxed), 4);
    }
}
