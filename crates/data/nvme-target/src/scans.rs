//! Scans of the sources on request.
//!
//! A host that reads the index may need a newer scan than the last one: a file has another length, or the host asks for
//! the names of new files. The scan runs on a thread of its own, because a file system may hang. Requests that wait at
//! the same time share a scan.

use std::{io, sync::MutexGuard, time::Instant};

use straightway_core::{Lock, Signal};

use crate::refresh::WAIT_MAX;

/// The scans that requests wait for.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    state: Lock<State>,
    /// Signalled when a scan has ended.
    ended: Signal,
}

#[derive(Debug, Default)]
struct State {
    /// The time when the current scan began.
    running: Option<Instant>,
    /// Whether another scan must follow.
    is_wanted: bool,
    /// The time when the last scan that has ended began.
    last: Option<Instant>,
}

impl Scans {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for the end of a scan that began at `since` or later. `start` starts a thread that calls [`Scans::run`].
    /// Returns false if the scan has not ended at the deadline. A scan that hangs is not waited for.
    pub(crate) fn wait(&self, since: Instant, deadline: Instant, start: impl Fn() -> io::Result<()>) -> bool {
        let mut state = self.lock();
        loop {
            if state.last.is_some_and(|last| last >= since) {
                return true;
            }
            let now = Instant::now();
            let is_hung = state.running.is_some_and(|begun| begun + WAIT_MAX <= now);
            if now >= deadline || is_hung {
                return false;
            }
            if state.running.is_none() {
                if let Err(error) = start() {
                    tracing::warn!("cannot start a thread to scan for changes: {error}");
                    return false;
                }
                (state.running, state.is_wanted) = (Some(now), true);
            } else if state.running.is_some_and(|begun| begun < since) {
                state.is_wanted = true;
            }
            state = self.ended.wait_timeout(state, deadline - now);
        }
    }

    /// Runs scans until no further one is wanted.
    pub(crate) fn run(&self, scan: impl Fn()) {
        loop {
            let begun = {
                let mut state = self.lock();
                if !state.is_wanted {
                    state.running = None;
                    return;
                }
                let begun = Instant::now();
                (state.running, state.is_wanted) = (Some(begun), false);
                begun
            };
            scan();
            self.lock().last = Some(begun);
            self.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn requests_that_wait_at_the_same_time_share_a_scan_that_began_after_them() {
        let (scans, count) = (Arc::new(Scans::default()), Arc::new(AtomicUsize::new(0)));
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = Arc::new(Lock::new(may_go));
        let start = || {
            let (scans, count, may_go) = (Arc::clone(&scans), Arc::clone(&count), Arc::clone(&may_go));
            thread::spawn(move || {
                scans.run(|| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = may_go.lock().recv();
                });
            });
            Ok(())
        };
        let wait = |since: Instant| scans.wait(since, since + LONG, start);
        thread::scope(|scope| {
            let first = scope.spawn(|| wait(Instant::now()));
            while count.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            // These began after the scan, and need the next one.
            let later: Vec<_> = (0..5).map(|_| scope.spawn(|| wait(Instant::now()))).collect();
            while !scans.lock().is_wanted {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(20));
            go.send(()).unwrap();
            assert!(first.join().unwrap());
            go.send(()).unwrap();
            for waiter in later {
                assert!(waiter.join().unwrap());
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_scan_that_hangs_is_waited_for_once() {
        let scans = Scans::default();
        let since = Instant::now();
        let start = || Ok(());
        assert!(!scans.wait(since, since + WAIT_MAX, start));
        assert!(since.elapsed() >= WAIT_MAX);
        let again = Instant::now();
        assert!(!scans.wait(again, again + WAIT_MAX, start));
        assert!(again.elapsed() < WAIT_MAX / 2);
    }
}
