//! Receivers: they accept packets in order, answer marks, and request missing packets.

use super::{super::scenario::Control, Engine, Event};

/// The receiving half of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    /// The next packet in order.
    pub(crate) expected: u32,
    packets: u32,
    /// The time of the last notification, sent or scheduled.
    notified_ps: Option<u64>,
    /// Payload that arrived in order.
    pub(crate) delivered_bytes: u64,
    /// The time at which the last byte arrived.
    pub(crate) finished_ps: Option<u64>,
    /// Whether the expected packet has been requested.
    asked: bool,
    /// Ranges of packets that arrived after a gap, for senders without go-back-N.
    ahead: Vec<(u32, u32)>,
}

impl Receiver {
    pub(super) fn new(packets: u32) -> Self {
        Self {
            expected: 0,
            packets,
            notified_ps: None,
            delivered_bytes: 0,
            finished_ps: None,
            asked: false,
            ahead: Vec::new(),
        }
    }

    /// The time at which to send the notification for a marked packet, unless one is already scheduled: at once after
    /// an idle interval, else at the end of the current interval.
    fn notify(&mut self, now: u64, interval_ps: u64) -> Option<u64> {
        let leaves = match self.notified_ps {
            Some(last) if last > now => return None,
            Some(last) => now.max(last + interval_ps),
            None => now,
        };
        self.notified_ps = Some(leaves);
        Some(leaves)
    }

    /// Keeps a packet that arrived after a gap; false if it is a duplicate.
    fn keep(&mut self, seq: u32) -> bool {
        let place = self.ahead.partition_point(|(start, _)| *start <= seq);
        let before = place.checked_sub(1).map(|i| self.ahead[i]);
        if before.is_some_and(|(_, end)| seq < end) {
            return false;
        }
        let joins_before = before.is_some_and(|(_, end)| end == seq);
        let joins_after = self.ahead.get(place).is_some_and(|(start, _)| *start == seq + 1);
        match (joins_before, joins_after) {
            (true, true) => {
                self.ahead[place - 1].1 = self.ahead[place].1;
                self.ahead.remove(place);
            }
            (true, false) => self.ahead[place - 1].1 = seq + 1,
            (false, true) => self.ahead[place].0 = seq,
            (false, false) => self.ahead.insert(place, (seq, seq + 1)),
        }
        true
    }

    /// Advances past the expected packet, and past kept packets that follow it.
    #[inline]
    fn advance(&mut self) {
        self.expected += 1;
        self.asked = false;
        while let Some((start, end)) = self.ahead.first().copied()
            && start <= self.expected
        {
            self.expected = self.expected.max(end);
            self.ahead.remove(0);
        }
    }
}

impl Engine<'_> {
    /// Handles the arrival of a packet at its host.
    #[inline]
    pub(super) fn deliver(&mut self, place: u32) {
        let packet = *self.pool.at(place);
        self.pool.free(place);
        let (flow, bytes) = (packet.flow, u64::from(packet.bytes));
        let windowed = matches!(self.control, Control::Dctcp | Control::Newreno);
        let receiver = &mut self.receivers[flow as usize];
        let taken = if packet.seq == receiver.expected {
            receiver.advance();
            true
        } else {
            windowed && packet.seq > receiver.expected && receiver.keep(packet.seq)
        };
        if taken {
            receiver.delivered_bytes += bytes - self.overhead_bytes;
            self.tally.delivered_bytes += bytes;
            if receiver.expected == receiver.packets && receiver.finished_ps.is_none() {
                receiver.finished_ps = Some(self.now);
                self.unfinished -= 1;
            }
        } else {
            self.tally.discarded_bytes += bytes;
        }
        self.answer(flow, packet.seq, packet.marked, windowed);
    }

    /// Sends the receiver's answer to a packet.
    #[inline]
    fn answer(&mut self, flow: u32, seq: u32, marked: bool, windowed: bool) {
        let receiver = &mut self.receivers[flow as usize];
        let sender = &self.senders[flow as usize];
        let back_ps = self.now + sender.return_ps;
        if windowed {
            let ack = receiver.expected;
            self.wheel.push(back_ps, Event::Ack { flow, ack, marked });
            return;
        }
        if marked && self.control == Control::Dcqcn {
            let interval = self.constants[sender.constants as usize].cnp_interval_ps;
            if let Some(leaves) = receiver.notify(self.now, interval) {
                self.tally.notifications += 1;
                let at = leaves + sender.return_ps;
                self.wheel.push(at, Event::Notify { flow });
            }
        }
        if seq > receiver.expected && !receiver.asked {
            receiver.asked = true;
            let seq = receiver.expected;
            self.wheel.push(back_ps, Event::Nak { flow, seq });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_are_answered_at_once_then_once_an_interval() {
        let mut receiver = Receiver::new(1);
        let answers: Vec<Option<u64>> = [10, 20, 30, 60, 70, 500]
            .into_iter()
            .map(|now| receiver.notify(now, 50))
            .collect();
        assert_eq!(answers, [Some(10), Some(60), None, Some(110), None, Some(500)]);
    }

    proptest! {
        #[test]
        fn packets_in_any_order_and_number_are_each_accepted_once(
            order in prop::collection::vec(0u32..40, 1..300),
        ) {
            let mut receiver = Receiver::new(40);
            let mut seen = HashSet::new();
            for seq in order {
                let taken = if seq == receiver.expected {
                    receiver.advance();
                    true
                } else {
                    seq > receiver.expected && receiver.keep(seq)
                };
                prop_assert_eq!(taken, seen.insert(seq));
                let in_order = (0..=40).find(|s| !seen.contains(s)).unwrap();
                prop_assert_eq!(receiver.expected, in_order);
            }
        }
    }
}
