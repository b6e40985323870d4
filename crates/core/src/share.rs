//! Who goes next where several want the same: a rate that is always given, one that is never exceeded, and a weight for
//! what is left. The arithmetic is mClock's (OSDI 2010).
//!
//! The lanes and the planner's model of a shared store use the same functions. Time is in seconds from any start, so
//! that tests and models can run on a clock of their own.

use std::fmt;

use crate::{
    error::{Error, Kind, Result},
    quantity::Rate,
};

/// How soon a job's bytes are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// Somebody waits for them. It has lanes of its own, and background jobs make room on the drive.
    Now,
    /// They are worked on next.
    #[default]
    Soon,
    /// Nobody waits for them: the flush of a checkpoint.
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

/// What one of several gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The rate that it always gets.
    pub reservation: Option<Rate>,
    /// The rate that it never exceeds.
    pub limit: Option<Rate>,
    /// Its part of what is left, against the weights of others.
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
    /// The share of a class where nothing else was asked for. Background jobs get a tenth of what others do.
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

    /// An error where a figure is out of range, or more is reserved than the limit allows.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, value: String, allowed: &str| {
            let target = format!("{what} {value}");
            Err(Error::new(Kind::Invalid, "share by", target, allowed))
        };
        let rates = [
            ("a limit of", self.limit),
            ("a reservation of", self.reservation),
        ];
        for (what, rate) in rates {
            if let Some(rate) = rate.filter(|rate| !(rate.0.is_finite() && rate.0 >= 1.0)) {
                return refuse(what, rate.to_string(), "at least 1 B/s is meant");
            }
        }
        if !(self.weight.is_finite() && self.weight > 0.0) {
            let value = self.weight.to_string();
            return refuse("a weight of", value, "it has to be above 0");
        }
        match (self.reservation, self.limit) {
            (Some(reserved), Some(limit)) if reserved.0 > limit.0 => refuse(
                "a reservation of",
                reserved.to_string(),
                "it is above the limit",
            ),
            _ => Ok(()),
        }
    }
}

/// When the first request of one who waits is due, by each of the three figures of its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tags {
    /// From when on its reservation is behind.
    pub reservation_s: f64,
    /// From when on its limit lets it go.
    pub limit_s: f64,
    /// Its place among those that go by weight.
    pub weight_s: f64,
}

/// What gave one its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Its reservation was due.
    Reservation,
    /// It was the first by weight among those within their limits.
    Weight,
}

/// The tag of a request that costs `cost` and follows one with the tag `previous_s`, at a rate of `per_s`. It is no
/// earlier than `floor_s`: what was not used is not caught up with.
pub fn after(previous_s: f64, cost: f64, per_s: f64, floor_s: f64) -> f64 {
    if per_s > 0.0 {
        (previous_s + cost / per_s).max(floor_s)
    } else {
        f64::INFINITY
    }
}

/// Who of those that wait goes at `now_s`: among those within their limits the one whose reservation is most overdue,
/// else the first by weight.
pub fn choose<T: Copy>(
    waiting: impl Iterator<Item = (T, Tags)> + Clone,
    now_s: f64,
) -> Option<(T, Turn)> {
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

/// When one of those that wait may go, where none may now.
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
    fn nobody_goes_before_its_limit_and_the_first_of_them_is_known() {
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
