//! Scheduling of a shared resource: a guaranteed rate (reservation), a maximum rate (limit), and a weight that divides
//! the remaining capacity. The algorithm is mClock (OSDI 2010).
//!
//! A [`Schedule`] holds the queues and their weight tags. Reservations and limits are in an [`Account`] for each user of
//! the resource, because a user may have several queues. The lanes, the NVMe/TCP target and the model of a shared store
//! use them. Times are seconds since any origin, so that tests and models can use a simulated clock.

use std::fmt;

use crate::{
    error::{Error, ErrorKind, Result},
    quantity::Rate,
};

/// How soon a job's bytes are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// A caller is waiting for them. The job has separate lanes, and background jobs yield the drive to it.
    Now,
    /// They are needed next.
    #[default]
    Soon,
    /// No caller is waiting for them, as in the flush of a checkpoint.
    Background,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Now => "now",
            Self::Soon => "soon",
            Self::Background => "background",
        })
    }
}

/// A job's share of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The rate that is guaranteed.
    pub reservation: Option<Rate>,
    /// The rate that is never exceeded.
    pub limit: Option<Rate>,
    /// Its part of the remaining capacity, relative to the weights of others.
    pub weight: f64,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            reservation: None,
            limit: None,
            weight: 1.0,
        }
    }
}

impl Share {
    /// The default share of a class. The weight of background jobs is a tenth of the others'.
    pub fn of(class: Class) -> Self {
        let weight = match class {
            Class::Now | Class::Soon => 1.0,
            Class::Background => 0.1,
        };
        Self {
            weight,
            ..Self::default()
        }
    }

    /// Returns an error if a value is out of range, or if the reservation exceeds the limit.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, value: String, allowed: &str| {
            let target = format!("{what} {value}");
            Err(Error::new(ErrorKind::Invalid, "use", target, allowed))
        };
        let rates = [("a limit of", self.limit), ("a reservation of", self.reservation)];
        for (what, rate) in rates {
            if let Some(rate) = rate.filter(|rate| !(rate.0.is_finite() && rate.0 >= 1.0)) {
                return refuse(what, rate.to_string(), "it must be at least 1 B/s");
            }
        }
        if !(self.weight.is_finite() && self.weight > 0.0) {
            let value = self.weight.to_string();
            return refuse("a weight of", value, "it must be above 0");
        }
        match (self.reservation, self.limit) {
            (Some(reserved), Some(limit)) if reserved.0 > limit.0 => {
                refuse("a reservation of", reserved.to_string(), "it is above the limit")
            }
            _ => Ok(()),
        }
    }
}

/// The value of a share by which a request was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Its reservation was due.
    Reservation,
    /// It was the first by weight among the requests within their limits.
    Weight,
}

/// The tag of a request with cost `cost` that follows one with the tag `previous_s`, at the rate `per_s`. It is not
/// earlier than `floor_s`: unused capacity is not saved up.
pub fn after(previous_s: f64, cost: f64, per_s: f64, floor_s: f64) -> f64 {
    if per_s > 0.0 {
        (previous_s + cost / per_s).max(floor_s)
    } else {
        f64::INFINITY
    }
}

/// When the reservation and the limit of a user let its next request run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Due {
    /// The time from which on its reservation is overdue.
    pub reservation_s: f64,
    /// The time from which on its limit permits the request.
    pub limit_s: f64,
}

impl Due {
    /// The times of a user without a reservation and without a limit.
    pub const FREE: Self = Self {
        reservation_s: f64::INFINITY,
        limit_s: f64::NEG_INFINITY,
    };
}

/// What a user has used of its reservation and its limit.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    share: Share,
    due: Due,
}

impl Account {
    /// The account of a user that has used nothing.
    pub const fn new(share: Share) -> Self {
        Self {
            share,
            due: Due {
                reservation_s: f64::NEG_INFINITY,
                limit_s: f64::NEG_INFINITY,
            },
        }
    }

    /// Its share.
    pub const fn share(&self) -> &Share {
        &self.share
    }

    /// When its next request is due.
    pub fn due(&self) -> Due {
        Due {
            reservation_s: self.share.reservation.map_or(f64::INFINITY, |_| self.due.reservation_s),
            limit_s: self.share.limit.map_or(f64::NEG_INFINITY, |_| self.due.limit_s),
        }
    }

    /// Records a request that arrives while no other waits. Share that was unused before `floor_s` is lost.
    pub fn arrive(&mut self, floor_s: f64) {
        self.due.reservation_s = self.due.reservation_s.max(floor_s);
        self.due.limit_s = self.due.limit_s.max(floor_s);
    }

    /// Counts a served request. One that was served by weight does not count against the reservation. Share that was
    /// unused before `floor_s` is lost.
    pub fn serve(&mut self, cost: f64, turn: Turn, floor_s: f64) {
        let next = |due_s: f64, per_s: f64| after(due_s.max(floor_s), cost, per_s, floor_s);
        if let Some(limit) = self.share.limit {
            self.due.limit_s = next(self.due.limit_s, limit.0);
        }
        if let (Turn::Reservation, Some(rate)) = (turn, self.share.reservation) {
            self.due.reservation_s = next(self.due.reservation_s, rate.0);
        }
    }
}

/// Queues that share a resource.
#[derive(Debug)]
pub struct Schedule<Q> {
    queues: Vec<Scheduled<Q>>,
    /// The largest weight tag that was served by weight. A queue that was idle starts there.
    virtual_s: f64,
}

#[derive(Debug)]
struct Scheduled<Q> {
    queue: Q,
    weight_s: f64,
}

impl<Q> Default for Schedule<Q> {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            virtual_s: 0.0,
        }
    }
}

impl<Q> Schedule<Q> {
    /// Adds a queue.
    pub fn push(&mut self, queue: Q) {
        let weight_s = self.virtual_s;
        self.queues.push(Scheduled { queue, weight_s });
    }

    /// The queues, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Q> {
        self.queues.iter().map(|scheduled| &scheduled.queue)
    }

    /// The number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A queue by its index.
    pub fn get_mut(&mut self, at: usize) -> &mut Q {
        &mut self.queues[at].queue
    }

    /// Removes the queues for which `is_kept` is false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&Q) -> bool) {
        self.queues.retain(|scheduled| is_kept(&scheduled.queue));
    }

    /// Notes that a queue has a request after it was empty. Weight that was unused meanwhile is lost.
    pub fn resume(&mut self, at: usize) {
        let scheduled = &mut self.queues[at];
        scheduled.weight_s = scheduled.weight_s.max(self.virtual_s);
    }

    /// Chooses the queue that is served at `now_s`. Among those within their limits it is the one whose reservation is
    /// most overdue, else the first by weight. `due` is asked for each queue; `None` if it has no request. The error is
    /// the earliest time at which a limit permits a request; `None` if there is no request.
    pub fn choose(&self, now_s: f64, due: impl Fn(&Q) -> Option<Due>) -> Result<(usize, Turn), Option<f64>> {
        let waiting = self.queues.iter().enumerate().filter_map(|(at, scheduled)| {
            let due = due(&scheduled.queue)?;
            Some((at, due, scheduled.weight_s))
        });
        let within = waiting.clone().filter(|(_, due, _)| due.limit_s <= now_s);
        let overdue = within.clone().filter(|(_, due, _)| due.reservation_s <= now_s);
        let reserved = overdue.min_by(|a, b| a.1.reservation_s.total_cmp(&b.1.reservation_s));
        let reserved = reserved.map(|(at, ..)| (at, Turn::Reservation));
        let by_weight = || within.min_by(|a, b| a.2.total_cmp(&b.2));
        let chosen = reserved.or_else(|| by_weight().map(|(at, ..)| (at, Turn::Weight)));
        chosen.ok_or_else(|| waiting.map(|(_, due, _)| due.limit_s).reduce(f64::min))
    }

    /// Counts a request that was served.
    pub fn serve(&mut self, at: usize, turn: Turn, cost: f64, weight: f64) {
        let scheduled = &mut self.queues[at];
        if turn == Turn::Weight {
            self.virtual_s = self.virtual_s.max(scheduled.weight_s);
        }
        scheduled.weight_s = after(scheduled.weight_s, cost, weight, self.virtual_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The choice among queues with these times and weight tags.
    fn choose(queues: &[(f64, f64, f64)], now_s: f64) -> Result<(usize, Turn), Option<f64>> {
        let mut schedule = Schedule::default();
        for (at, (reservation_s, limit_s, weight_s)) in queues.iter().enumerate() {
            let due = Due {
                reservation_s: *reservation_s,
                limit_s: *limit_s,
            };
            schedule.push(due);
            schedule.serve(at, Turn::Reservation, *weight_s, 1.0);
        }
        schedule.choose(now_s, |due| Some(*due))
    }

    #[test]
    fn a_reservation_that_is_due_goes_before_any_weight() {
        let waiting = [(f64::INFINITY, 0.0, 0.0), (1.0, 0.0, 9.0)];
        assert_eq!(choose(&waiting, 0.5), Ok((0, Turn::Weight)));
        assert_eq!(choose(&waiting, 1.0), Ok((1, Turn::Reservation)));
    }

    #[test]
    fn no_request_runs_before_its_limit_and_the_next_due_time_is_known() {
        let waiting = [(f64::INFINITY, 2.0, 0.0), (f64::INFINITY, 3.0, 0.0)];
        assert_eq!(choose(&waiting, 1.0), Err(Some(2.0)));
        assert_eq!(choose(&[], 1.0), Err(None));
    }

    #[test]
    fn a_queue_that_was_idle_gets_no_weight_for_that_time() {
        let mut schedule = Schedule::default();
        schedule.push(false);
        schedule.push(true);
        let free = Due::FREE;
        for _ in 0..10 {
            let (at, turn) = schedule.choose(0.0, |waits| waits.then_some(free)).unwrap();
            assert_eq!((at, turn), (1, Turn::Weight));
            schedule.serve(at, turn, 1.0, 1.0);
        }
        *schedule.get_mut(0) = true;
        schedule.resume(0);
        let mut served = [0; 2];
        for _ in 0..10 {
            let (at, turn) = schedule.choose(0.0, |waits| waits.then_some(free)).unwrap();
            schedule.serve(at, turn, 1.0, 1.0);
            served[at] += 1;
        }
        assert!(served[0] <= 6, "{served:?}");
    }

    #[test]
    fn only_requests_served_by_reservation_count_against_it() {
        let mut account = Account::new(Share {
            reservation: Some(Rate(10.0)),
            limit: Some(Rate(20.0)),
            weight: 1.0,
        });
        account.arrive(1.0);
        account.serve(1.0, Turn::Weight, f64::NEG_INFINITY);
        let due = account.due();
        assert_eq!((due.reservation_s, due.limit_s), (1.0, 1.05));
        account.serve(1.0, Turn::Reservation, f64::NEG_INFINITY);
        let due = account.due();
        assert_eq!((due.reservation_s, due.limit_s), (1.1, 1.1));
        // Share that was unused is lost.
        account.arrive(9.0);
        let due = account.due();
        assert_eq!((due.reservation_s, due.limit_s), (9.0, 9.0));
    }

    #[test]
    fn shares_out_of_range_are_refused() {
        let limit = |rate| Share {
            limit: Some(Rate(rate)),
            ..Share::default()
        };
        assert!(limit(1e6).check().is_ok());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(limit(bad).check().is_err(), "{bad}");
            let weight = Share {
                weight: bad,
                ..Share::default()
            };
            assert!(weight.check().is_err(), "{bad}");
        }
        let above = Share {
            reservation: Some(Rate(2e6)),
            ..limit(1e6)
        };
        assert!(above.check().is_err());
    }
}
