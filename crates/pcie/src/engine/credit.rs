//! What a receiver has promised to hold, and when it gave room back.
//!
//! A credit comes back some time after its TLP left the receiver's buffer. Instead of an event per
//! credit, a pool keeps the returns that are on their way, in order of time, and settles those that
//! have arrived when its sender next asks. Only a sender that found too little is told of further
//! returns: then `hungry` is set, and whoever returns a credit wakes it.
//!
//! Read tags are credits of the same kind: taken with a request, given back with its completion.

use super::{Ps, ring::Ring, wake::NEVER};

/// Data credits count in units of 16 bytes.
pub(super) const UNIT_BYTES: u32 = 16;

/// Credits of one link, channel and class of TLP.
#[derive(Debug)]
pub(super) struct Pool {
    headers: u32,
    data: u32,
    returns: Ring<Return>,
    /// What was promised at the start; `None` for a receiver that must take everything.
    promised: Option<Promise>,
    /// Whether the sender waits: a return it does not know of yet may be the one it needs.
    hungry: bool,
}

/// How much a receiver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
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
    /// A receiver that holds what it promises, or all that comes.
    pub(super) fn new(promised: Option<Promise>) -> Self {
        let Promise { headers, data } = promised.unwrap_or(Promise {
            headers: 0,
            data: 0,
        });
        Self {
            headers,
            data,
            returns: Ring::default(),
            promised,
            hungry: false,
        }
    }

    /// Forgets the promise: what is sent here can never use it up.
    pub(super) fn forget(&mut self) {
        *self = Self::new(None);
    }

    /// What was promised.
    pub(super) fn promised(&self) -> Option<Promise> {
        self.promised
    }

    /// Whether a TLP with `data` units may go at `now`; if not, when it may, or [`NEVER`] as far
    /// as is known.
    #[inline(always)]
    pub(super) fn ready_at(&mut self, now: Ps, data: u32) -> Ps {
        if self.promised.is_none() || (self.headers > 0 && self.data >= data) {
            return now;
        }
        self.settle(now);
        self.hungry = !(self.headers > 0 && self.data >= data);
        if !self.hungry {
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

    /// Lets time pass until `at`, when [`Self::ready_at`] promised credits.
    #[inline(always)]
    pub(super) fn wait(&mut self, at: Ps) {
        self.settle(at);
        self.hungry = false;
    }

    /// Takes the credits of a TLP that [`Self::ready_at`] allowed.
    #[inline(always)]
    pub(super) fn take(&mut self, data: u32) {
        if self.promised.is_some() {
            self.headers = self.headers.checked_sub(1).expect("allowed by ready_at");
            self.data = self.data.checked_sub(data).expect("allowed by ready_at");
        }
    }

    /// Gives them back at `at`; true when the sender must be woken then.
    #[inline(always)]
    pub(super) fn give_back(&mut self, at: Ps, data: u32) -> bool {
        if self.promised.is_none() {
            return false;
        }
        // Returns come nearly in order: different ports of one switch are at most a window apart.
        self.returns
            .insert(Return { at, data }, |other| other.at <= at);
        self.hungry
    }

    fn settle(&mut self, now: Ps) {
        while let Some(back) = self.returns.front().filter(|back| back.at <= now) {
            self.headers += 1;
            self.data += back.data;
            self.returns.pop_front();
        }
    }

    /// Credits that were taken and never given back, once all time has passed.
    pub(super) fn missing(&mut self) -> u64 {
        self.settle(NEVER);
        let promised = self.promised.unwrap_or(Promise {
            headers: 0,
            data: 0,
        });
        let apart = |have: u32, want: u32| u64::from(have.abs_diff(want));
        apart(self.headers, promised.headers) + apart(self.data, promised.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(headers: u32, data: u32) -> Pool {
        Pool::new(Some(Promise { headers, data }))
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
    fn a_sender_that_knows_of_no_return_is_woken_by_one() {
        let mut pool = pool(1, 16);
        pool.take(16);
        assert_eq!(pool.ready_at(50, 16), NEVER);
        assert!(pool.give_back(70, 16));
        assert_eq!(pool.ready_at(60, 16), 70);
        assert_eq!(pool.missing(), 0);
    }

    #[test]
    fn returns_that_come_out_of_order_are_settled_in_order() {
        let mut pool = pool(2, 2);
        pool.take(1);
        pool.take(1);
        pool.give_back(300, 1);
        pool.give_back(100, 1);
        assert_eq!(pool.ready_at(0, 1), 100);
    }

    #[test]
    fn what_was_not_given_back_is_missed() {
        let mut pool = pool(4, 64);
        pool.take(16);
        assert_eq!(pool.missing(), 17);
    }

    #[test]
    fn a_receiver_without_a_promise_takes_all() {
        let mut pool = Pool::new(None);
        for _ in 0..1000 {
            assert_eq!(pool.ready_at(5, 256), 5);
            pool.take(256);
        }
        assert_eq!(pool.missing(), 0);
    }
}
