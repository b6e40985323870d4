//! Scheduling of a shared resource: a guaranteed rate (reservation), a maximum rate (limit), and a weight that divides
//! the remaining capacity. The algorithm is mClock (OSDI 2010).
//!
//! The lanes and the model of a shared store use the same functions. Times are seconds since any origin, so that tests
//! and models can use a simulated clock.

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

/// The due times of a queue's first request, one for each of the three values of its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tags {
    /// The time from which on its reservation is overdue.
    pub reservation_s: f64,
    /// The time from which on its limit permits the request.
    pub limit_s: f64,
    /// Its position among requests that are scheduled by weight.
    pub weight_s: f64,
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

/// Chooses which waiting request runs at `now_s`. Among those within their limits it is the one whose reservation is
/// most overdue, else the first by weight.
pub fn choose<T: Copy>(waiting: impl Iterator<Item = (T, Tags)> + Clone, now_s: f64) -> Option<(T, Turn)> {
    let within = waiting.filter(|(_, tags)| tags.limit_s <= now_s);
    let reserved = within
        .clone()
        .filter(|(_, tags)| tags.reservation_s <= now_s)
        .min_by(|a, b| a.1.reservation_s.total_cmp(&b.1.reservation_s))
        .map(|(who, _)| (who, Turn::Reservation));
    reserved.or_else(|| {
        within
            .min_by(|a, b| a.1.weight_s.total_cmp(&b.1.weight_s))
            .map(|(who, _)| (who, Turn::Weight))
    })
}

/// The earliest time at which a limit permits one of the waiting requests.
pub fn next_due_s(waiting: impl Iterator<Item = Tags>) -> Option<f64> {
    waiting.map(|tags| tags.limit_s).reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(reservation_s: f64, limit_s: f64, weight_s: f64) -> Tags {
        Tags {
            reservation_s,
            limit_s,
            weight_s,
        }
    }

    #[test]
    fn a_reservation_that_is_due_goes_before_any_weight() {
        let waiting = [tags(f64::INFINITY, 0.0, 0.0), tags(1.0, 0.0, 9.0)];
        let who = |now_s| choose(waiting.iter().copied().enumerate(), now_s);
        assert_eq!(who(0.5), Some((0, Turn::Weight)));
        assert_eq!(who(1.0), Some((1, Turn::Reservation)));
    }

    #[test]
    fn no_request_runs_before_its_limit_and_the_next_due_time_is_known() {
        let waiting = [tags(f64::INFINITY, 2.0, 0.0), tags(f64::INFINITY, 3.0, 0.0)];
        assert_eq!(choose(waiting.iter().copied().enumerate(), 1.0), None);
        assert_eq!(next_due_s(waiting.into_iter()), Some(2.0));
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
