//! Looks at the served files on request. Requests that wait at the same time share one look.
//!
//! A host reads the index to learn whether a file changed while it was read. The answer must come from a look that
//! began after the request: a look that is running may have passed the file before it changed.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use straightway_nvme::Status;

/// The longest wait for a look of another request. The command then fails and may be retried. Hosts wait 5 s and more
/// for an admin command.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// The longest pause between two looks. The pause is as long as the last look, so that hosts that read the index all
/// the time take at most half of one processor.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The looks so far.
#[derive(Debug)]
pub(crate) struct Refresh {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    /// The number of looks that have begun.
    begun: u64,
    /// The number of looks that have ended.
    ended: u64,
    /// Whether a request runs a look, or pauses before it begins one.
    has_runner: bool,
    /// The earliest time of the next look.
    next: Instant,
}

impl Refresh {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                begun: 0,
                ended: 0,
                has_runner: false,
                next: Instant::now(),
            }),
            ended: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns after a look that began after this call. Runs `look`, unless another request runs it.
    pub(crate) fn wait(&self, look: impl FnOnce()) -> Result<(), Status> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut state = self.lock();
        let wanted = state.begun + 1;
        while state.ended < wanted {
            if !state.has_runner {
                self.run(state, look);
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Status::INTERRUPTED);
            }
            let woken = self.ended.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn run(&self, mut state: MutexGuard<'_, State>, look: impl FnOnce()) {
        state.has_runner = true;
        let pause = state.next.saturating_duration_since(Instant::now());
        drop(state);
        // Requests that arrive during the pause share this look.
        thread::sleep(pause);
        let start = Instant::now();
        self.lock().begun += 1;
        look();
        let mut state = self.lock();
        state.ended = state.begun;
        state.has_runner = false;
        state.next = Instant::now() + start.elapsed().min(PAUSE_MAX);
        drop(state);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[test]
    fn requests_during_a_look_wait_for_the_next_one_and_share_it() {
        const REQUESTS: usize = 8;
        let refresh = Refresh::new();
        let looks = AtomicUsize::new(0);
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        thread::scope(|scope| {
            let (refresh, looks) = (&refresh, &looks);
            scope.spawn(move || {
                let look = || {
                    begun.send(()).expect("the test waits");
                    released.recv().expect("the test releases it");
                };
                refresh.wait(look).expect("it runs the look itself");
            });
            has_begun.recv().expect("the look begins");
            let requests: Vec<_> = (0..REQUESTS)
                .map(|_| {
                    scope.spawn(move || {
                        let look = || {
                            looks.fetch_add(1, Ordering::SeqCst);
                        };
                        refresh.wait(look).expect("the first look ends");
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(200));
            assert!(requests.iter().all(|request| !request.is_finished()));
            release.send(()).expect("the look waits");
        });
        let looks = looks.into_inner();
        // A busy machine may begin to run a request only after the second look has begun.
        assert!((1..REQUESTS).contains(&looks), "{looks}");
    }
}
