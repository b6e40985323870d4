//! The jobs of a lane, and its tally for each.
//!
//! A flight refers to its job by a number. The number stays valid as long as a flight of the job exists, even if the
//! lane has left the job: a late completion is never taken for another job's.

use std::{
    ops::{Index, IndexMut},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{board::Posted, job::Job, tallies::Tallies, tally::Tally};

/// A job that a lane has joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) posted: Arc<Posted>,
    pub(super) tally: Tally,
    /// The number of its chunks that the lane has in progress.
    pub(super) chunks: usize,
    /// The bytes of those chunks.
    pub(super) chunk_bytes: u64,
    since: Instant,
    /// When the lane noticed that it was stopped.
    stopped: Option<Instant>,
    /// Where the lane leaves its tally; `None` once it has, and only waits for I/Os in flight.
    tallies: Option<Tallies>,
}

impl Joined {
    /// Whether it was stopped. Records the time when this is first true.
    pub(super) fn note_stop(&mut self) -> bool {
        let is_stopped = self.posted.job.is_stopped();
        if is_stopped && self.stopped.is_none() {
            self.stopped = Some(Instant::now());
        }
        is_stopped
    }

    /// Whether it was stopped more than `most` ago, and the lane has not left it yet.
    pub(super) fn has_stop_timed_out(&self, most: Duration) -> bool {
        let stopped = self.stopped.filter(|_| self.is_live());
        stopped.is_some_and(|stopped| stopped.elapsed() > most)
    }

    fn is_live(&self) -> bool {
        self.tallies.is_some()
    }
}

/// The jobs of a lane, by number.
#[derive(Debug, Default)]
pub(super) struct Jobs(Vec<Option<Joined>>);

impl Index<u32> for Jobs {
    type Output = Joined;

    fn index(&self, number: u32) -> &Joined {
        self.get(number).expect("a flight's job is there")
    }
}

impl IndexMut<u32> for Jobs {
    fn index_mut(&mut self, number: u32) -> &mut Joined {
        self.get_mut(number).expect("a flight's job is there")
    }
}

impl Jobs {
    pub(super) fn job(&self, number: u32) -> Arc<Job> {
        Arc::clone(&self[number].posted.job)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Joined> {
        self.0.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Joined> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    /// All numbers, including unused ones.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.0.len()).expect("jobs are few")
    }

    /// The number of a job that the lane has joined.
    pub(super) fn find(&self, posted: &Arc<Posted>) -> Option<u32> {
        let is_it = |joined: &Joined| Arc::ptr_eq(&joined.posted, posted);
        self.numbers().find(|number| self.get(*number).is_some_and(is_it))
    }

    /// Joins another job.
    pub(super) fn join(&mut self, posted: &Arc<Posted>, tallies: Tallies) -> u32 {
        let now = Instant::now();
        let mut tally = Tally::default();
        let mut since = now;
        if self.has_live() {
            since = posted.since;
            tally.others = now - since;
        }
        let joined = Joined {
            posted: Arc::clone(posted),
            tally,
            chunks: 0,
            chunk_bytes: 0,
            since,
            stopped: None,
            tallies: Some(tallies),
        };
        let at = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some(joined);
        u32::try_from(at).expect("jobs are few")
    }

    /// All jobs that the lane has not left.
    pub(super) fn live(&self) -> impl Iterator<Item = &Joined> {
        self.0.iter().flatten().filter(|joined| joined.is_live())
    }

    /// Whether there are any such jobs.
    pub(super) fn has_live(&self) -> bool {
        self.live().next().is_some()
    }

    /// The bytes of all chunks of background jobs in progress.
    pub(super) fn background_bytes(&self) -> u64 {
        let jobs = self.0.iter().flatten();
        let background = jobs.filter(|joined| joined.posted.is_background());
        background.map(|joined| joined.chunk_bytes).sum()
    }

    /// Adds time that was spent on one job; all others waited meanwhile.
    pub(super) fn book(&mut self, own: u32, time: Duration, of: impl Fn(&mut Tally) -> &mut Duration) {
        for (number, joined) in (0..).zip(&mut self.0) {
            if let Some(joined) = joined {
                let tally = &mut joined.tally;
                *(if number == own { of(tally) } else { &mut tally.others }) += time;
            }
        }
    }

    /// Adds time that was spent on all jobs together.
    pub(super) fn book_all(&mut self, time: Duration, of: impl Fn(&mut Tally) -> &mut Duration) {
        let count = u32::try_from(self.live().count()).unwrap_or(1).max(1);
        for joined in self.0.iter_mut().flatten() {
            let own = time / count;
            *of(&mut joined.tally) += own;
            joined.tally.others += time.saturating_sub(own);
        }
    }

    /// Leaves a job and its tally. The job is dropped once none of its chunks is in progress.
    pub(super) fn leave(&mut self, number: u32, note: impl FnOnce(&mut Tally)) {
        let joined = &mut self[number];
        let (tallies, ran) = (joined.tallies.take(), joined.since.elapsed());
        let mut tally = match self.0[number as usize].take_if(|joined| joined.chunks == 0) {
            // The job is dropped before its end begins.
            Some(joined) => joined.tally,
            None => std::mem::take(&mut self[number].tally),
        };
        if let Some(tallies) = tallies {
            note(&mut tally);
            tally.lanes = 1;
            tally.finish(ran);
            tallies.add(tally);
        }
    }
}
