//! The trial of two methods by the first large transfer of a kind: its first chunks run by both, the rest by the
//! faster.
//!
//! Each method runs twice, alternating, and its better run counts, because other users of the drive slow some of them.
//! If the second method is clearly faster already, there are no further runs. The bytes of the trial belong to the
//! transfer, and its receipt names the routes of all.

use std::time::Instant;

use straightway_core::{Choice, Class, Error, Extent, Move, Result, extent::down};

use super::Executor;
use crate::{
    ask::Ask,
    books::Books,
    job::Job,
    learning::{Learning, Method, WorkKind},
    opening::Running,
    ticket::Ticket,
};

/// Each run moves 1/8 of the smallest transfer that learns, 64 MiB: several times what is in flight. A shorter run
/// through the ring would end before its copies overlap with reads.
const RUN_SHARE: u64 = 8;
const RUNS: usize = 2;

/// If the second method is this much faster in its first run, there is no further run: those of the first method would
/// only take time.
const GAIN_CLEAR: f64 = 1.3;

/// The second method has to be this much faster to be chosen, so that noise does not decide.
const GAIN_MIN: f64 = 1.1;

/// Transfers are cut at multiples of this: whole blocks of any file system.
const CUT_BYTES: u64 = 1 << 20;

impl Executor {
    /// Begins a transfer. `make` plans a job for some of its moves, with a method if there is a choice. The first
    /// transfer of its kind on a drive is a trial.
    pub(super) fn begin(
        &self,
        work: Option<WorkKind>,
        moves: Vec<Move>,
        ask: Ask,
        make: impl Fn(Vec<Move>, Option<Method>, Ask) -> Result<Job>,
    ) -> Result<Ticket> {
        let bytes: u64 = moves.iter().map(|m| m.extent.bytes).sum();
        let learning = self.learning.as_ref();
        let learning = learning.filter(|l| ask.choice == Choice::Auto && bytes >= l.bytes_min());
        let (Some(learning), Some(work)) = (learning, work) else {
            return make(moves, None, ask).map(|job| self.post(job));
        };
        let make = |moves, method, ask| make(moves, Some(method), ask);
        let [usual, other] = work.methods();
        if let Some(method) = learning.known(work) {
            return make(moves, method, ask).map(|job| self.post(job));
        }
        let whole = make(moves.clone(), usual, ask.clone())?;
        if !ask.may_try || !self.is_undisturbed() || !whole.suits(work) {
            return Ok(self.post(whole));
        }
        drop(whole);
        let mut trial = Trial {
            executor: self,
            rest: moves,
            earlier: None,
        };
        // The last job syncs everything, and its end is that of the transfer.
        let asked = Ask {
            syncs: false,
            at_end: None,
            ..ask.clone()
        };
        let stopped = |error: Error| {
            if let Some(at_end) = &ask.at_end {
                // A panic of the caller's function must not reach the caller of this one.
                let _ = at_end.call(&Err(error.again()));
            }
            Ok(Ticket::ended(Err(error)))
        };
        let make_one = |moves, method| make(moves, method, asked.clone());
        // Makes the lanes, which both methods use, and the rings of those that need them.
        for method in [usual, other] {
            if let Err(error) = trial.run(CUT_BYTES, |moves| make_one(moves, method))? {
                return stopped(error);
            }
        }
        let mut best = [f64::INFINITY; 2];
        for _ in 0..RUNS {
            for (method, best) in [usual, other].into_iter().zip(&mut best) {
                let bytes = learning.bytes_min() / RUN_SHARE;
                match trial.run(bytes, |moves| make_one(moves, method))? {
                    Ok(s_per_byte) => *best = best.min(s_per_byte),
                    Err(error) => return stopped(error),
                }
            }
            if best[1] * GAIN_CLEAR < best[0] {
                break;
            }
        }
        let method = chosen(work, best, learning);
        let last = make(trial.rest, method, ask.clone())?;
        Ok(self.post_after(trial.earlier, last))
    }

    /// Whether its jobs run at full speed, and no other job of this process is running.
    fn is_undisturbed(&self) -> bool {
        let is_free = self.share().limit.is_none() && self.tenant.class() != Class::Background;
        is_free && Running::count() == 0
    }
}

/// A trial in progress.
struct Trial<'a> {
    executor: &'a Executor,
    rest: Vec<Move>,
    /// The books of the jobs so far.
    earlier: Option<Books>,
}

impl Trial<'_> {
    /// Moves about `bytes` bytes from the front of the rest. Returns the seconds per byte, which are infinite if there
    /// were too few bytes, or the error of the job. An outer error is that of its planning.
    fn run(&mut self, bytes: u64, make: impl FnOnce(Vec<Move>) -> Result<Job>) -> Result<Result<f64>> {
        let head = take_front(&mut self.rest, bytes);
        let taken: u64 = head.iter().map(|m| m.extent.bytes).sum();
        let job = make(head)?;
        let begun = Instant::now();
        let ended = match self.executor.post(job).outcome() {
            Ok(books) => books,
            Err(error) => return Ok(Err(error)),
        };
        let took_s = begun.elapsed().as_secs_f64();
        match &mut self.earlier {
            Some(earlier) => earlier.merge(&ended),
            None => self.earlier = Some(ended),
        }
        let is_enough = taken >= bytes / 2;
        Ok(Ok(if is_enough {
            took_s / taken as f64
        } else {
            f64::INFINITY
        }))
    }
}

/// Returns the faster method by the seconds per byte of each, and records it. Nothing is learned from a method without
/// a run that is long enough.
fn chosen(work: WorkKind, [usual_s, other_s]: [f64; 2], learning: &Learning) -> Method {
    let [usual, other] = work.methods();
    let method = if other_s * GAIN_MIN < usual_s { other } else { usual };
    tracing::debug!(%work, %method, usual_s, other_s, "two methods were compared");
    if usual_s.is_finite() && other_s.is_finite() {
        learning.learn(work, method);
        return method;
    }
    usual
}

/// Removes moves of about `bytes` bytes from the front. A move is cut only inside, at a multiple of [`CUT_BYTES`] of
/// its object.
fn take_front(moves: &mut Vec<Move>, bytes: u64) -> Vec<Move> {
    let (mut front, mut left) = (Vec::new(), bytes);
    let mut taken = 0;
    for m in moves.iter_mut() {
        if left == 0 {
            break;
        }
        let end = down(m.extent.offset.saturating_add(left), CUT_BYTES);
        if m.extent.bytes > left && end <= m.extent.offset && !front.is_empty() {
            // Less than a cut is left, and this move would be taken whole.
            break;
        }
        if m.extent.bytes <= left || end <= m.extent.offset || end >= m.extent.end() {
            left = left.saturating_sub(m.extent.bytes);
            front.push(*m);
            taken += 1;
            continue;
        }
        let head = Extent::between(m.extent.offset, end);
        front.push(Move { extent: head, ..*m });
        m.at += head.bytes;
        m.extent = Extent::between(end, m.extent.end());
        break;
    }
    moves.drain(..taken);
    front
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn taking_from_the_front_keeps_every_byte_and_its_place(
            sizes in prop::collection::vec((0_u64..3, 0_u64..40 << 20, 0_u64..5000), 1..20),
            bytes in 1_u64..64 << 20,
        ) {
            let mut at = 0;
            let mut moves = Vec::new();
            for (number, (object, length, gap)) in (0_u64..).zip(sizes) {
                let extent = Extent::new(number * (64 << 20) + gap, length);
                moves.push(Move { object: u32::try_from(object).unwrap(), extent, at });
                at += length + gap;
            }
            let mut rest = moves.clone();
            let mut parts = Vec::new();
            while !rest.is_empty() {
                let front = take_front(&mut rest, bytes);
                prop_assert!(!front.is_empty());
                parts.extend(front);
            }
            let mut joined: Vec<Move> = Vec::new();
            for part in parts {
                match joined.last_mut() {
                    Some(last) if last.object == part.object && last.extent.end() == part.extent.offset
                        && last.at + last.extent.bytes == part.at && !part.extent.is_empty() && !last.extent.is_empty() =>
                    {
                        last.extent.bytes += part.extent.bytes;
                    }
                    _ => joined.push(part),
                }
            }
            prop_assert_eq!(joined, moves);
        }
    }

    #[test]
    fn a_long_move_is_not_taken_whole_for_the_last_bytes_of_a_run() {
        let moved = |offset, bytes, at| Move {
            object: 0,
            extent: Extent::new(offset, bytes),
            at,
        };
        let first = (64 << 20) - (1 << 19);
        let mut rest = vec![moved(0, first, 0), moved(1 << 30, 5 << 30, first)];
        assert_eq!(take_front(&mut rest, 64 << 20), [moved(0, first, 0)]);
        assert_eq!(rest.len(), 1);
    }
}
