//! The board: the jobs of a crew of lanes, and the choice of the next chunk.
//!
//! A lane asks the board for each chunk. Among several jobs their shares decide ([`straightway_core::share`]).
//! Reservations and limits belong to tenants; weights are relative to the other jobs on the board. A job that is alone
//! on the board and has no rate to keep is handed to its lanes whole: they take its chunks without a lock until the
//! board changes.

use std::{
    collections::HashSet,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use straightway_core::{
    Chunk, Class, Direction, Error, Lock, Result, Signal,
    share::{Due, Schedule},
};

use crate::{
    job::Job,
    tallies::Tallies,
    tenant::{Tenant, Traffic, Urgent},
    track::Track,
};

/// How soon a background job that is held back is tried again.
const HELD_RETRY_S: f64 = 0.002;

/// How soon a job that waits for memory is tried again.
const MEMORY_RETRY_S: f64 = 0.0001;

/// A job on the board.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) job: Arc<Job>,
    pub(crate) tenant: Arc<Tenant>,
    /// The number of lanes that may take its chunks: the first ones of the crew.
    pub(crate) lanes: usize,
    /// When it was posted.
    pub(crate) since: Instant,
    /// The guard of a job of class *now*.
    pub(crate) _urgent: Option<Urgent>,
}

impl Posted {
    pub(crate) fn is_background(&self) -> bool {
        self.tenant.class() == Class::Background
    }

    /// Whether it only writes. A drive merges writes, so their queue is deeper.
    pub(crate) fn writes(&self) -> bool {
        self.job.direction() == Direction::Out
    }
}

/// The jobs of one crew.
#[derive(Debug)]
pub(crate) struct Board {
    track: Track,
    traffic: Arc<Traffic>,
    state: Lock<State>,
    changed: Signal,
    /// The number of changes: jobs posted or removed, and rings requested.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    entries: Schedule<Entry>,
    /// Lanes that have to work on their rings.
    rings: Vec<(usize, RingRequest)>,
    /// Lanes that have a slot, or are about to make their first. Only lanes that make slots one by one are here.
    equipped: HashSet<usize>,
    /// Whether a lane could not make its first slot. Any lane with a slot may then take chunks of any job.
    is_scarce: bool,
    is_closed: bool,
}

/// A job. `tallies` is dropped last: at the job's end the lanes no longer hold the job.
#[derive(Debug)]
struct Entry {
    posted: Arc<Posted>,
    tallies: Tallies,
}

/// The next step of a lane.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this chunk.
    Run(Grant, Chunk),
    /// Wait until this time on the clock of shares.
    NotBefore(f64),
    /// No chunk for this lane.
    Idle,
}

/// The job of a chunk that a lane was given.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) posted: Arc<Posted>,
    pub(crate) tallies: Tallies,
    /// Set if the job is alone on the board: the count of changes for which that holds.
    pub(crate) alone: Option<u64>,
}

/// What a lane has to do with its ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingWork {
    /// Make it, or one more slot.
    Make,
    /// Give its slots back until it has a job.
    GiveBack,
}

/// Work on a ring, and where the lane reports.
pub(crate) type RingRequest = (RingWork, Sender<Result<()>>);

/// What a lane without a slot may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstSlot {
    /// Make one.
    Make,
    /// Take one that another lane gives back: no more can be made, and other lanes have some.
    Await,
    /// Nothing: there is no job for it.
    NotNeeded,
}

/// Why an idle lane was woken.
#[derive(Debug)]
pub(crate) enum Wake {
    /// There are jobs.
    Work,
    /// It has to work on its ring.
    Ring(RingRequest),
    /// The wait timed out.
    Nothing,
    /// The executor was dropped.
    End,
}

impl Board {
    pub(crate) fn new(track: Track, traffic: &Arc<Traffic>) -> Self {
        Self {
            track,
            traffic: Arc::clone(traffic),
            state: Lock::default(),
            changed: Signal::new(),
            changes: AtomicU64::new(0),
        }
    }

    /// The traffic of the lanes of all boards.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Posts a job. Each lane that joins it adds its tally to `tallies`.
    pub(crate) fn post(&self, posted: Posted, tallies: &Tallies, now_s: f64) {
        posted.tenant.arrive(now_s);
        let mut state = self.lock();
        // More slots may be had by now.
        state.is_scarce &= !state.entries.is_empty();
        state.entries.push(Entry {
            posted: Arc::new(posted),
            tallies: tallies.clone(),
        });
        self.change();
    }

    /// Asks a lane to work on its ring.
    pub(crate) fn ask_for_ring(&self, number: usize, work: RingWork, answer: &Sender<Result<()>>) {
        let request = (work, answer.clone());
        self.lock().rings.push((number, request));
        self.change();
    }

    /// The number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The next chunk for lane `number`.
    pub(crate) fn take(&self, number: usize, now_s: f64) -> Next {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let state = &mut *state;
        loop {
            self.drop_finished(state, &mut ended);
            let holds_back = self.traffic.holds_back(now_s);
            let chosen = state.entries.choose(now_s, |Entry { posted, .. }| {
                let is_for_it = number < posted.lanes || state.is_scarce;
                let is_held = holds_back && posted.is_background();
                let due = posted.tenant.due();
                let limit_s = if is_held {
                    now_s + HELD_RETRY_S
                } else if posted.job.waits_for_memory(self.track) {
                    due.limit_s.max(now_s + MEMORY_RETRY_S)
                } else {
                    due.limit_s
                };
                is_for_it.then_some(Due { limit_s, ..due })
            });
            let (at, turn) = match chosen {
                Ok(chosen) => chosen,
                Err(due_s) => return due_s.map_or(Next::Idle, Next::NotBefore),
            };
            let is_alone = state.entries.len() == 1;
            let entry = state.entries.get_mut(at);
            // Another lane may have taken the last one without the lock.
            let Some(chunk) = entry.posted.job.take(self.track) else {
                continue;
            };
            let bytes = entry.posted.job.plan().io_bytes(&chunk);
            let tenant = &entry.posted.tenant;
            tenant.serve(bytes, turn);
            let weight = tenant.share().weight;
            let grant = Grant {
                posted: Arc::clone(&entry.posted),
                tallies: entry.tallies.clone(),
                alone: (is_alone && tenant.is_free()).then(|| self.changes()),
            };
            state.entries.serve(at, turn, bytes as f64, weight);
            return Next::Run(grant, chunk);
        }
    }

    /// Removes jobs whose chunks have all been taken. Their tallies are moved to `ended`, which the caller drops after
    /// the lock: dropping the last tally of a job runs its end, which may block or begin another job.
    fn drop_finished(&self, state: &mut State, ended: &mut Vec<Tallies>) {
        let before = ended.len();
        state.entries.retain(|entry| {
            let is_over = entry.posted.job.is_over(self.track);
            ended.extend(is_over.then(|| entry.tallies.clone()));
            !is_over
        });
        if ended.len() > before {
            self.change();
        }
    }

    /// What lane `number`, which has no slot, may do. If it may make one, it counts as equipped.
    pub(crate) fn claim_slot(&self, number: usize) -> FirstSlot {
        let mut ended = Vec::new();
        let mut state = self.lock();
        self.drop_finished(&mut state, &mut ended);
        if !state.has_work_for(number) {
            return FirstSlot::NotNeeded;
        }
        state.equipped.remove(&number);
        if state.is_scarce && !state.equipped.is_empty() {
            return FirstSlot::Await;
        }
        state.equipped.insert(number);
        FirstSlot::Make
    }

    /// Notes whether lane `number` has a slot.
    pub(crate) fn note_slots(&self, number: usize, has_slots: bool) {
        let mut state = self.lock();
        if has_slots {
            state.equipped.insert(number);
        } else {
            state.equipped.remove(&number);
        }
    }

    /// Notes that lane `number` could not make its first slot. The other lanes take its chunks. If none of them has a
    /// slot, the jobs that it serves fail.
    pub(crate) fn do_without(&self, number: usize, error: &Error) {
        let mut state = self.lock();
        state.equipped.remove(&number);
        if state.equipped.is_empty() {
            drop(state);
            return self.fail(number, error);
        }
        if !state.is_scarce {
            state.is_scarce = true;
            self.change();
        }
    }

    /// Waits up to `timeout` for work for lane `number`.
    pub(crate) fn wait(&self, number: usize, timeout: Option<Duration>) -> Wake {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.lock();
        loop {
            if let Some(request) = state.ring_of(number) {
                return Wake::Ring(request);
            }
            if state.has_work_for(number) {
                return Wake::Work;
            }
            if state.is_closed {
                return Wake::End;
            }
            state = match deadline {
                None => self.changed.wait(state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Wake::Nothing;
                    }
                    self.changed.wait_timeout(state, left)
                }
            };
        }
    }

    /// Waits up to `timeout` for a change after the first `seen`.
    pub(crate) fn wait_for_change(&self, seen: u64, timeout: Duration) {
        let state = self.lock();
        if self.changes() == seen {
            drop(self.changed.wait_timeout(state, timeout));
        }
    }

    /// Takes the request for the ring of lane `number`, if there is one.
    pub(crate) fn ring_of(&self, number: usize) -> Option<RingRequest> {
        self.lock().ring_of(number)
    }

    /// Fails and removes all jobs that lane `number` serves.
    pub(crate) fn fail(&self, number: usize, error: &Error) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        state.entries.retain(|entry| {
            let is_for_it = number < entry.posted.lanes;
            if is_for_it {
                entry.posted.job.fail(error.again());
                ended.push(entry.tallies.clone());
            }
            !is_for_it
        });
        self.change();
    }

    /// Ends its lanes once they have finished all posted jobs.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.change();
    }
}

impl State {
    /// Whether lane `number` may take chunks of a job.
    fn has_work_for(&self, number: usize) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| number < entry.posted.lanes || self.is_scarce)
    }

    fn ring_of(&mut self, number: usize) -> Option<RingRequest> {
        let at = self.rings.iter().position(|(lane, _)| *lane == number)?;
        Some(self.rings.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests;
