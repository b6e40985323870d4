//! The next wake time of each port.
//!
//! A port has at most one pending event, so no queue of events is needed: a tournament tree over
//! the ports holds each port's next time and its root is the earliest of all. A key is the time
//! with the port's number in the low bits, which also breaks ties the same way every time. Setting
//! a time costs one comparison per level, without a branch that depends on the data.

use super::Ps;

/// No event is due.
pub(super) const NEVER: Ps = Ps::MAX;

/// Low bits of a key that hold the port.
const PORT_BITS: u32 = 14;

/// The maximum number of ports: every node has a link up, a link down and its memory.
pub(super) const PORTS_MAX: usize = 1 << PORT_BITS;

/// The latest time a key can hold, 1,125 s.
pub(super) const TIME_MAX: Ps = (1 << (u64::BITS - PORT_BITS)) - 2;

/// The next time of every port.
#[derive(Debug)]
pub(super) struct Wakes {
    /// A binary tree in an array: the root at 1, the leaves from `leaves` on.
    keys: Vec<u64>,
    leaves: usize,
}

impl Wakes {
    /// For `ports` ports that all sleep.
    pub(super) fn new(ports: usize) -> Self {
        assert!(ports <= PORTS_MAX, "ports fit a key");
        let leaves = ports.next_power_of_two();
        Self {
            keys: vec![NEVER; 2 * leaves],
            leaves,
        }
    }

    /// The earliest port and its time; `None` when all sleep.
    #[inline]
    pub(super) fn first(&self) -> Option<(usize, Ps)> {
        let key = self.keys[1];
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are the port")]
        let port = key as usize & (PORTS_MAX - 1);
        (key != NEVER).then_some((port, key >> PORT_BITS))
    }

    /// Begins to serve a port: its own time no longer counts, and is set again by [`Self::end`]. Only its leaf
    /// changes, which only its own climb reads.
    #[inline]
    pub(super) fn begin(&mut self, port: usize) {
        self.keys[self.leaves + port] = NEVER;
    }

    /// Ends serving a port: it wakes at `time`, or earlier if it was woken meanwhile.
    #[inline]
    pub(super) fn end(&mut self, port: usize, time: Ps) {
        let at = self.leaves + port;
        self.keys[at] = self.keys[at].min(key(port, time));
        self.climb(at);
    }

    /// Wakes a port at `time`, unless it wakes earlier anyway.
    #[inline]
    pub(super) fn wake(&mut self, port: usize, time: Ps) {
        let key = key(port, time);
        let at = self.leaves + port;
        if key < self.keys[at] {
            self.keys[at] = key;
            self.climb(at);
        }
    }

    #[inline]
    fn climb(&mut self, leaf: usize) {
        let mut at = leaf;
        let mut least = self.keys[at];
        while at > 1 {
            least = least.min(self.keys[at ^ 1]);
            at >>= 1;
            if self.keys[at] == least {
                return;
            }
            self.keys[at] = least;
        }
    }
}

/// A time with its port in the low bits; a time that is too late is `NEVER`.
#[inline]
fn key(port: usize, time: Ps) -> u64 {
    if time < TIME_MAX {
        time << PORT_BITS | port as u64
    } else {
        NEVER
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_later_wake_does_not_move_an_earlier_one() {
        let mut wakes = Wakes::new(3);
        wakes.wake(2, 50);
        wakes.wake(2, 70);
        assert_eq!(wakes.first(), Some((2, 50)));
        wakes.begin(2);
        wakes.end(2, NEVER);
        assert_eq!(wakes.first(), None);
    }

    proptest! {
        #[test]
        fn the_first_is_the_least_of_all(
            ports in 1usize..70,
            steps in prop::collection::vec((any::<u16>(), prop::option::of(0u64..1000)), 1..200),
        ) {
            let mut wakes = Wakes::new(ports);
            let mut plain = vec![NEVER; ports];
            for (port, time) in steps {
                let port = usize::from(port) % ports;
                if let Some(time) = time {
                    wakes.wake(port, time);
                    plain[port] = plain[port].min(time);
                } else {
                    // Others may be woken while the port is served.
                    let next = (port + 1) % ports;
                    wakes.begin(port);
                    wakes.wake(next, 500);
                    wakes.end(port, NEVER);
                    plain[port] = NEVER;
                    plain[next] = plain[next].min(500);
                }
                let least = (0..ports).map(|p| (plain[p], p)).min().expect("at least one port");
                let want = (least.0 != NEVER).then_some((least.1, least.0));
                prop_assert_eq!(wakes.first(), want);
            }
        }
    }
}
