//! A window-based sender: DCTCP, and a window halved on loss.
//!
//! It serves as a comparison and models only the essentials: slow start, one more packet per round trip, a cut by
//! half on loss (three duplicate acknowledgements, with `NewReno`'s partial ones) or by half the smoothed share of
//! marks (DCTCP), and a timeout that starts over. There is no SACK, no pacing, no delayed acknowledgement, and no
//! limit of the receive window.

/// The initial window in packets: RFC 6928.
const WINDOW_START: f64 = 10.0;

/// DCTCP's gain: RFC 8257.
const DCTCP_GAIN: f64 = 1.0 / 16.0;

/// The number of duplicate acknowledgements that indicate a loss: RFC 5681.
const DUPLICATES_LOSS: u32 = 3;

/// One sender's window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The packets that may be in flight.
    size: f64,
    threshold: f64,
    /// The first packet not acknowledged.
    pub(crate) acked: u32,
    duplicates: u32,
    /// During recovery: the packet that ends it.
    recover: Option<u32>,
    /// DCTCP's smoothed share of marks, and the count of the running round trip.
    alpha: f64,
    uses_marks: bool,
    round_end: u32,
    round_acks: u32,
    round_marks: u32,
}

/// The action of the sender on an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckAction {
    /// Continue.
    Continue,
    /// Send this packet again.
    Resend(u32),
}

impl Window {
    pub(crate) fn new(uses_marks: bool) -> Self {
        Self {
            size: WINDOW_START,
            threshold: f64::INFINITY,
            acked: 0,
            duplicates: 0,
            recover: None,
            alpha: 1.0,
            uses_marks,
            round_end: 0,
            round_acks: 0,
            round_marks: 0,
        }
    }

    /// Whether packet `next` may be sent.
    #[inline]
    pub(crate) fn open(&self, next: u32) -> bool {
        // Each duplicate means that one more packet has left the network.
        let inflated = self.size + f64::from(self.duplicates);
        f64::from(next.saturating_sub(self.acked)) < inflated
    }

    /// Handles an acknowledgement of all packets before `ack`; `next` is the next packet to send.
    pub(crate) fn acknowledged(&mut self, ack: u32, marked: bool, next: u32) -> AckAction {
        self.count_mark(ack, marked, next);
        if ack > self.acked {
            return self.progress(ack);
        }
        if self.acked < next {
            self.duplicates += 1;
        }
        if self.duplicates == DUPLICATES_LOSS && self.recover.is_none() {
            self.cut(0.5);
            self.recover = Some(next);
            return AckAction::Resend(self.acked);
        }
        AckAction::Continue
    }

    fn progress(&mut self, ack: u32) -> AckAction {
        let newly = f64::from(ack - self.acked);
        self.acked = ack;
        match self.recover {
            Some(end) if ack < end => {
                // A partial acknowledgement: the next hole is at its front.
                self.duplicates = 0;
                return AckAction::Resend(ack);
            }
            Some(_) => self.recover = None,
            None if self.size < self.threshold => self.size += newly,
            None => self.size += newly / self.size,
        }
        self.duplicates = 0;
        AckAction::Continue
    }

    /// DCTCP: once per window, cuts by half the smoothed share of marks.
    fn count_mark(&mut self, ack: u32, marked: bool, next: u32) {
        if !self.uses_marks {
            return;
        }
        self.round_acks += 1;
        self.round_marks += u32::from(marked);
        if marked && self.size < self.threshold {
            // The first mark ends slow start.
            self.threshold = self.size;
        }
        if ack <= self.round_end {
            return;
        }
        let share = f64::from(self.round_marks) / f64::from(self.round_acks);
        self.alpha = (1.0 - DCTCP_GAIN) * self.alpha + DCTCP_GAIN * share;
        if self.round_marks > 0 {
            self.cut(1.0 - self.alpha / 2.0);
        }
        self.round_end = next;
        self.round_acks = 0;
        self.round_marks = 0;
    }

    fn cut(&mut self, to: f64) {
        self.threshold = (self.size * to).max(2.0);
        self.size = self.threshold;
    }

    /// Handles a timeout: starts over from the first packet not acknowledged.
    pub(crate) fn timed_out(&mut self) {
        self.threshold = (self.size / 2.0).max(2.0);
        self.size = 1.0;
        self.duplicates = 0;
        self.recover = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_by_one_packet_an_acknowledgement_in_slow_start() {
        let mut window = Window::new(false);
        assert!(window.open(9) && !window.open(10));
        for ack in 1..=10 {
            assert_eq!(window.acknowledged(ack, false, 10), AckAction::Continue);
        }
        assert!(window.open(29) && !window.open(30));
    }

    #[test]
    fn three_duplicates_halve_the_window_and_resend_the_hole() {
        let mut window = Window::new(false);
        let answers: Vec<AckAction> = (0..4).map(|_| window.acknowledged(0, false, 10)).collect();
        assert_eq!(
            answers,
            [
                AckAction::Continue,
                AckAction::Continue,
                AckAction::Resend(0),
                AckAction::Continue
            ]
        );
        assert_eq!(window.acknowledged(5, false, 12), AckAction::Resend(5));
        assert_eq!(window.acknowledged(10, false, 12), AckAction::Continue);
        assert!(window.open(14) && !window.open(15));
    }

    #[test]
    fn dctcp_cuts_by_half_when_all_is_marked_and_little_when_little_is() {
        let after = |every: u32| {
            let mut window = Window::new(true);
            window.threshold = window.size;
            let mut next = 10;
            for ack in 1..4000u32 {
                window.acknowledged(ack, ack % every == 0, next);
                while window.open(next) {
                    next += 1;
                }
            }
            window.size
        };
        assert!(after(1) < 4.0, "{}", after(1));
        assert!(after(100) > 10.0, "{}", after(100));
    }

    #[test]
    fn a_timeout_starts_over_with_one_packet() {
        let mut window = Window::new(false);
        window.timed_out();
        assert!(window.open(0) && !window.open(1));
    }
}
