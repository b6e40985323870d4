//! Scheduling of commands if hosts have shares: mClock, by [`Schedule`].
//!
//! A few commands with data are in service at a time. Commands of hosts with a due reservation go first. Hosts over
//! their limit wait. The rest are served by weight. Without shares there is no gate.
//!
//! A command keeps its slot until its data is transferred: only if commands wait for slots do weights divide the
//! throughput. But a host may read slowly or not at all, and a few such queues could keep all slots. A command
//! therefore loses its slot when its time is over. It continues without one, and its bytes are counted as before.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use straightway_core::share::{Account, Schedule, Share, Turn};
use straightway_core::{Lock, Signal};

/// The time by which a host may be late and still get its full rate.
const SLACK_S: f64 = 0.01;

/// The time for which a command keeps its slot, in addition to that for its bytes. A queue that does not read holds up
/// other hosts for this long with each command, and it has only one at a time.
const SLOT_TIME_S: f64 = 0.01;

/// The rate of a slot below which a command loses it. It is low, because the slots of a large machine share one drive
/// or network card: 64 slots have 1 GiB/s.
const SLOT_RATE_BYTES_PER_S: f64 = 16.0 * 1024.0 * 1024.0;

/// The maximum wait before the state is checked again.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The scheduler of commands with data.
#[derive(Debug)]
pub(crate) struct Gate {
    start: Instant,
    slots: usize,
    state: Lock<State>,
    changed: Signal,
}

#[derive(Debug, Default)]
struct State {
    /// The commands with a slot: their tickets, and the times when they lose it.
    in_service: Vec<(u64, f64)>,
    next_ticket: u64,
    hosts: Schedule<Queue>,
}

#[derive(Debug)]
struct Queue {
    host: usize,
    account: Account,
    tickets: VecDeque<u64>,
}

/// A command in service. Dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    ticket: u64,
}

impl Gate {
    /// A gate with `slots` slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            start: Instant::now(),
            slots: slots.max(1),
            state: Lock::default(),
            changed: Signal::new(),
        }
    }

    /// Waits until a command of `host` that transfers `bytes` may be served.
    pub(crate) fn enter(&self, host: usize, share: &Share, bytes: u64) -> Pass<'_> {
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.arrive(host, share, ticket, self.now_s());
        loop {
            let now_s = self.now_s();
            let has_slot = state.busy_slots(now_s) < self.slots;
            let wait = match state.first(now_s) {
                Ok((first, turn)) if has_slot => {
                    if state.hosts.get_mut(first).tickets.front() == Some(&ticket) {
                        state.serve(first, turn, bytes as f64, now_s);
                        drop(state);
                        self.changed.notify_all();
                        return Pass { gate: self, ticket };
                    }
                    WAIT_MAX
                }
                Ok(_) => state.slot_wait(now_s),
                Err(due_s) => wait_until(due_s, now_s),
            };
            state = self.changed.wait_timeout(state, wait);
        }
    }

    fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.leave(self.ticket);
        drop(state);
        self.gate.changed.notify_all();
    }
}

/// The wait until a limit permits a command.
fn wait_until(due_s: Option<f64>, now_s: f64) -> Duration {
    Duration::from_secs_f64((due_s.unwrap_or(now_s) - now_s).max(0.0)).min(WAIT_MAX)
}

impl State {
    fn arrive(&mut self, host: usize, share: &Share, ticket: u64, now_s: f64) {
        let known = self.hosts.iter().position(|queue| queue.host == host);
        let at = known.unwrap_or_else(|| {
            self.hosts.push(Queue {
                host,
                account: Account::new(*share),
                tickets: VecDeque::new(),
            });
            self.hosts.len() - 1
        });
        let queue = self.hosts.get_mut(at);
        queue.tickets.push_back(ticket);
        if queue.tickets.len() == 1 {
            // Share that was unused while no command waited does not accumulate.
            queue.account.arrive(now_s - SLACK_S);
            self.hosts.resume(at);
        }
    }

    /// The queue whose first command may be served. The error is the time at which a limit permits one.
    fn first(&self, now_s: f64) -> Result<(usize, Turn), Option<f64>> {
        let is_waiting = |queue: &Queue| !queue.tickets.is_empty();
        self.hosts
            .choose(now_s, |queue| is_waiting(queue).then(|| queue.account.due()))
    }

    /// The number of slots in use. Commands whose time is over lose theirs.
    fn busy_slots(&mut self, now_s: f64) -> usize {
        self.in_service.retain(|(_, until_s)| *until_s > now_s);
        self.in_service.len()
    }

    /// The time until a command loses its slot.
    fn slot_wait(&self, now_s: f64) -> Duration {
        let ends = self.in_service.iter().map(|(_, until_s)| *until_s);
        let first_s = ends.fold(f64::INFINITY, f64::min);
        Duration::try_from_secs_f64(first_s - now_s).map_or(WAIT_MAX, |wait| wait.min(WAIT_MAX))
    }

    /// Frees the slot of a command, if it still has one.
    fn leave(&mut self, ticket: u64) {
        self.in_service.retain(|(known, _)| *known != ticket);
    }

    fn serve(&mut self, at: usize, turn: Turn, cost: f64, now_s: f64) {
        let queue = self.hosts.get_mut(at);
        let ticket = queue.tickets.pop_front().expect("it waits");
        queue.account.serve(cost, turn, now_s - SLACK_S);
        let weight = queue.account.share().weight;
        self.hosts.serve(at, turn, cost, weight);
        let until_s = now_s + SLOT_TIME_S + cost / SLOT_RATE_BYTES_PER_S;
        self.in_service.push((ticket, until_s));
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
    };

    use straightway_core::quantity::Rate;

    use super::*;

    const COMMAND_BYTES: u64 = 64 << 10;
    const SERVICE_S: f64 = 0.001;

    /// The bytes that each of these shares transfers in a second of simulated time, if one command takes a millisecond
    /// and each host always has two commands that wait. The clock is simulated because a busy machine runs threads late.
    fn moved(shares: &[Share]) -> Vec<u64> {
        let mut state = State::default();
        let mut sums = vec![0; shares.len()];
        let mut now_s = 0.0;
        for (host, share) in shares.iter().enumerate() {
            state.arrive(host, share, 0, now_s);
            state.arrive(host, share, 1, now_s);
        }
        while now_s < 1.0 {
            let (host, turn) = match state.first(now_s) {
                Ok(first) => first,
                Err(due_s) => {
                    now_s += wait_until(due_s, now_s).as_secs_f64().max(1e-6);
                    continue;
                }
            };
            state.serve(host, turn, COMMAND_BYTES as f64, now_s);
            now_s += SERVICE_S;
            // Only this command is in service.
            assert_eq!(state.busy_slots(now_s), 1);
            state.in_service.clear();
            sums[host] += COMMAND_BYTES;
            state.arrive(host, &shares[host], 0, now_s);
        }
        sums
    }

    #[test]
    fn a_limit_applies_only_to_its_host() {
        let limited = Share {
            limit: Some(Rate(4e6)),
            ..Share::default()
        };
        let moved = moved(&[limited, Share::default()]);
        assert!((3_800_000..4_200_000).contains(&moved[0]), "{moved:?}");
        assert!(moved[1] > 60_000_000, "{moved:?}");
    }

    #[test]
    fn weights_divide_the_throughput() {
        let light = Share::default();
        let heavy = Share { weight: 4.0, ..light };
        let moved = moved(&[light, heavy]);
        let ratio = moved[1] as f64 / moved[0] as f64;
        assert!((3.9..4.1).contains(&ratio), "{moved:?}");
    }

    #[test]
    fn a_reservation_goes_before_weights() {
        let reserved = Share {
            reservation: Some(Rate(20e6)),
            weight: 0.001,
            ..Share::default()
        };
        let moved = moved(&[reserved, Share::default()]);
        assert!((19_000_000..21_500_000).contains(&moved[0]), "{moved:?}");
    }

    #[test]
    fn every_command_is_served_and_no_more_at_a_time_than_there_are_slots() {
        let gate = Gate::new(2);
        let (in_service, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for host in 0..4 {
                let (gate, in_service, served) = (&gate, &in_service, &served);
                scope.spawn(move || {
                    let share = Share {
                        weight: 1.0 + host as f64,
                        ..Share::default()
                    };
                    for _ in 0..100 {
                        // A minute for each: a busy machine may run a thread late.
                        let _pass = gate.enter(host, &share, 1 << 30);
                        assert!(in_service.fetch_add(1, Ordering::SeqCst) < 2);
                        thread::yield_now();
                        in_service.fetch_sub(1, Ordering::SeqCst);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(served.into_inner(), 400);
    }

    #[test]
    fn commands_that_are_stuck_do_not_stop_other_hosts() {
        let gate = Arc::new(Gate::new(2));
        let _stuck = [0, 0].map(|host| gate.enter(host, &Share::default(), 4 << 20));
        let (done, is_done) = mpsc::channel();
        let own = Arc::clone(&gate);
        // Not a scoped thread: the test must fail and not wait for it.
        thread::spawn(move || {
            for _ in 0..4 {
                drop(own.enter(1, &Share::default(), COMMAND_BYTES));
            }
            let _ = done.send(());
        });
        let served = is_done.recv_timeout(Duration::from_secs(10));
        assert!(served.is_ok(), "the second host waits for the first");
    }
}
