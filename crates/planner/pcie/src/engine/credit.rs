//! The credits of a receiver, and the times of their return.
//!
//! A credit returns some time after its TLP left the receiver's buffer. Instead of an event per credit, a pool keeps
//! the pending returns in order of time, and applies those that have arrived when its sender next asks. Only a sender
//! that found too few credits is woken by further returns: then `sender_waits` is set.
//!
//! Read tags are credits of the same kind: taken with a request, returned with its completion.

use super::{Ps, ring::Ring, wake::NEVER};

/// Data credits count in units of 16 bytes.
pub(super) const UNIT_BYTES: u32 = 16;

/// Credits of one link, channel and class of TLP.
#[derive(Debug)]
pub(super) struct Pool {
    headers: u32,
    data: u32,
    returns: Ring<Return>,
    /// The advertised credits; `None` for a receiver that must accept everything.
    limit: Option<CreditLimit>,
    /// Whether the sender waits for a return that it does not know of yet.
    sender_waits: bool,
}

/// The advertised credits of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreditLimit {
    /// TLPs.
    pub(super) headers: u32,
    /// Units of payload.
    pub(super) data: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Return {
    at: Ps,
    data: u32,
}

impl Pool {
    /// A receiver with these credits, or with unlimited ones.
    pub(super) fn new(limit: Option<CreditLimit>) -> Self {
        let CreditLimit { headers, data } = limit.unwrap_or(CreditLimit { headers: 0, data: 0 });
        Self {
            headers,
            data,
            returns: Ring::default(),
            limit,
            sender_waits: false,
        }
    }

    /// Makes the credits unlimited: the traffic here can never use them up.
    pub(super) fn make_unlimited(&mut self) {
        *self = Self::new(None);
    }

    /// The advertised credits.
    pub(super) fn limit(&self) -> Option<CreditLimit> {
        self.limit
    }

    /// Returns `now` if a TLP with `data` units can go. Otherwise returns the time at which it can, or [`NEVER`] if
    /// no known return suffices.
    #[inline(always)]
    pub(super) fn ready_at(&mut self, now: Ps, data: u32) -> Ps {
        if self.limit.is_none() || (self.headers > 0 && self.data >= data) {
            return now;
        }
        self.settle(now);
        self.sender_waits = !(self.headers > 0 && self.data >= data);
        if !self.sender_waits {
            return now;
        }
        let (mut headers, mut units) = (self.headers, self.data);
        for back in self.returns.iter() {
            headers += 1;
            units += back.data;
            if units >= data && headers > 0 {
                return back.at;
            }
        }
        NEVER
    }

    /// Advances to `at`, when [`Self::ready_at`] found credits.
    #[inline(always)]
    pub(super) fn wait(&mut self, at: Ps) {
        self.settle(at);
        self.sender_waits = false;
    }

    /// Takes the credits of a TLP that [`Self::ready_at`] allowed.
    #[inline(always)]
    pub(super) fn take(&mut self, data: u32) {
        if self.limit.is_some() {
            self.headers = self.headers.checked_sub(1).expect("allowed by ready_at");
            self.data = self.data.checked_sub(data).expect("allowed by ready_at");
        }
    }

    /// Returns the credits at `at`; true if the sender must be woken then.
    #[inline(always)]
    pub(super) fn give_back(&mut self, at: Ps, data: u32) -> bool {
        if self.limit.is_none() {
            return false;
        }
        // Returns are nearly in order: different ports of one switch are at most a window apart.
        self.returns.insert(Return { at, data }, |other| other.at <= at);
        self.sender_waits
    }

    fn settle(&mut self, now: Ps) {
        while let Some(back) = self.returns.front().filter(|back| back.at <= now) {
            self.headers += 1;
            self.data += back.data;
            self.returns.pop_front();
        }
    }

    /// The number of credits that were taken and never returned, at the end of a run.
    pub(super) fn missing(&mut self) -> u64 {
        self.settle(NEVER);
        let limit = self.limit.unwrap_or(CreditLimit { headers: 0, data: 0 });
        let apart = |have: u32, want: u32| u64::from(have.abs_diff(want));
        apart(self.headers, limit.headers) + apart(self.data, limit.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(headers: u32, data: u32) -> Pool {
        Pool::new(Some(CreditLimit { headers, data }))
    }

    #[test]
    fn a_sender_waits_for_the_return_that_suffices() {
        let mut pool = pool(2, 32);
        pool.take(16);
        pool.take(16);
        pool.give_back(100, 8);
        pool.give_back(200, 16);
        assert_eq!(pool.ready_at(50, 16), 200);
        assert_eq!(pool.ready_at(200, 16), 200);
    }

    #[test]
    fn a_waiting_sender_is_woken_by_a_return() {
        let mut pool = pool(1, 16);
        pool.take(16);
        assert_eq!(pool.ready_at(50, 16), NEVER);
        assert!(pool.give_back(70, 16));
        assert_eq!(pool.ready_at(60, 16), 70);
        assert_eq!(pool.missing(), 0);
    }

    #[test]
    fn returns_out_of_order_are_applied_in_order() {
        let mut pool = pool(2, 2);
        pool.take(1);
        pool.take(1);
        pool.give_back(300, 1);
        pool.give_back(100, 1);
        assert_eq!(pool.ready_at(0, 1), 100);
    }

    #[test]
    fn credits_that_are_not_returned_are_missing() {
        let mut pool = pool(4, 64);
        pool.take(16);
        assert_eq!(pool.missing(), 17);
    }

    #[test]
    fn a_receiver_without_a_limit_accepts_everything() {
        let mut pool = Pool::new(None);
        for _ in 0..1000 {
            assert_eq!(pool.ready_at(5, 256), 5);
            pool.take(256);
        }
        assert_eq!(pool.missing(), 0);
    }
}
