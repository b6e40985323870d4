//! DCQCN, the rate control of RoCE: its published parameter sets and a sender's state.
//!
//! A switch marks packets when its queue grows ([`Ecn`]); the receiver answers marks with congestion notifications
//! (CNP), at most one per interval; the sender cuts its rate on each CNP and recovers in steps given by a timer and a
//! byte counter. [`Dcqcn`] holds the constants, [`Reaction`] one sender's state. Timers are not events: the state is
//! updated when it is used, since most senders are used far more often than their timers expire.
//!
//! Rates are bytes per second, times picoseconds.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::check::{Checkable, Checker};

/// Picoseconds in a second.
pub(crate) const PS_PER_S: f64 = 1e12;

/// A published set of constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParameterSet {
    /// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
    #[default]
    Paper,
    /// The defaults of NVIDIA `ConnectX` adapters.
    Connectx,
    /// The ns-3 simulation of HPCC (SIGCOMM 2019), mode `dcqcn`.
    Hpcc,
    /// `SimAI`'s 400 Gb/s setting.
    Simai,
}

/// Marking by the length of an egress queue: nothing below `kmin`, a share rising to `pmax` at
/// `kmax`, everything above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// The queue at which marking starts.
    pub kmin: Bytes,
    /// The queue above which every packet is marked.
    pub kmax: Bytes,
    /// The share marked just below `kmax`.
    pub pmax: f64,
}

/// The constants of a sender and of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dcqcn {
    /// The receiver sends at most one CNP per flow in this time.
    pub cnp_interval: Seconds,
    /// Without a CNP for this long, alpha decays by one step.
    pub alpha_interval: Seconds,
    /// The rate is cut at most once in this time.
    pub decrease_interval: Seconds,
    /// The rate increase timer.
    pub timer: Seconds,
    /// The rate increase byte counter; `None` if only the timer counts.
    pub byte_counter: Option<Bytes>,
    /// Rounds of fast recovery before the target rate itself rises.
    pub fast_rounds: u32,
    /// The gain of alpha.
    pub g: f64,
    /// Alpha of a flow that has never been cut.
    pub alpha_start: f64,
    /// The additive step.
    pub rate_ai: Rate,
    /// The hyper step, taken once timer and byte counter have both passed `fast_rounds`.
    pub rate_hai: Rate,
    /// The minimum rate.
    pub rate_min: Rate,
    /// Whether every cut also lowers the target. Adapters lower it only if the timer has expired since the last cut,
    /// so that the rate recovers quickly from a burst of cuts.
    pub clamp_target: bool,
}

impl ParameterSet {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Paper, Self::Connectx, Self::Hpcc, Self::Simai];

    /// The sender's constants on a link of `line` rate.
    pub fn dcqcn(self, line: Rate) -> Dcqcn {
        let us = |n: f64| Seconds(n * 1e-6);
        let mbit = |n: f64| Rate::gbit(n / 1e3);
        let paper = Dcqcn {
            cnp_interval: us(50.0),
            alpha_interval: us(55.0),
            decrease_interval: us(50.0),
            timer: us(55.0),
            byte_counter: Some(Bytes(10_000_000)),
            fast_rounds: 5,
            g: 1.0 / 256.0,
            alpha_start: 1.0,
            rate_ai: mbit(40.0),
            // The paper sets no hyper step; its authors' fluid model omits the stage.
            rate_hai: mbit(40.0),
            rate_min: mbit(40.0),
            clamp_target: true,
        };
        // Per 25 Gb/s of line rate, as HPCC's run.py scales them.
        let per_25g = line.as_gbit() / 25.0;
        match self {
            Self::Paper => paper,
            // NVIDIA, "DCQCN CC Parameters": dce_tcp_g, initial_alpha_value, dce_tcp_rtt,
            // rate_reduce_monitor_period, rpg_time_reset, rpg_byte_reset, rpg_ai_rate, rpg_hai_rate,
            // rpg_min_rate, rpg_threshold, min_time_between_cnps.
            Self::Connectx => Dcqcn {
                cnp_interval: us(4.0),
                alpha_interval: us(1.0),
                decrease_interval: us(4.0),
                timer: us(300.0),
                byte_counter: Some(Bytes(32_767)),
                fast_rounds: 1,
                g: 5.0 / 1024.0,
                alpha_start: 1023.0 / 1024.0,
                rate_ai: mbit(5.0),
                rate_hai: mbit(50.0),
                rate_min: mbit(1.0),
                clamp_target: false,
            },
            // There, marks return with every acknowledgement: no interval, so its finest clock.
            Self::Hpcc => Dcqcn {
                cnp_interval: us(1.0),
                alpha_interval: us(1.0),
                decrease_interval: us(4.0),
                timer: us(300.0),
                byte_counter: None,
                fast_rounds: 1,
                rate_ai: mbit(5.0 * per_25g),
                rate_hai: mbit(50.0 * per_25g),
                rate_min: mbit(1000.0),
                clamp_target: false,
                ..paper
            },
            Self::Simai => Dcqcn {
                timer: us(900.0),
                ..Self::Hpcc.dcqcn(line)
            },
        }
    }

    /// The switch's marking on a link of `line` rate.
    pub fn ecn(self, line: Rate) -> Ecn {
        let kilobytes = |n: f64| rounded_bytes(n * 1e3);
        let gbit = line.as_gbit();
        match self {
            // Tuned for 40 Gb/s; on other links a queue with the same delay.
            Self::Paper => Ecn {
                kmin: kilobytes(5.0 * gbit / 40.0),
                kmax: kilobytes(200.0 * gbit / 40.0),
                pmax: 0.01,
            },
            // The adapter defines no switch thresholds: those of HPCC are used.
            Self::Connectx | Self::Hpcc => Ecn {
                kmin: kilobytes(100.0 * gbit / 25.0),
                kmax: kilobytes(400.0 * gbit / 25.0),
                pmax: 0.2,
            },
            Self::Simai => Ecn {
                kmin: kilobytes(800.0 * gbit / 400.0),
                kmax: kilobytes(3200.0 * gbit / 400.0),
                pmax: 0.2,
            },
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a threshold is positive and far below 2^63"
)]
fn rounded_bytes(bytes: f64) -> Bytes {
    Bytes(bytes.round() as u64)
}

impl Ecn {
    /// The share of packets marked at a queue of `queue_bytes`.
    #[inline]
    pub fn share(&self, queue_bytes: f64) -> f64 {
        let (kmin, kmax) = (self.kmin.0 as f64, self.kmax.0 as f64);
        if queue_bytes <= kmin {
            0.0
        } else if queue_bytes > kmax {
            1.0
        } else {
            self.pmax * (queue_bytes - kmin) / (kmax - kmin)
        }
    }
}

impl Checkable for Ecn {
    fn check(&self, c: &mut Checker) {
        c.bytes("kmin", self.kmin, Bytes(0)..=Bytes::gib(1));
        c.bytes("kmax", self.kmax, Bytes(1)..=Bytes::gib(1));
        if self.kmax <= self.kmin {
            c.refuse("kmax", self.kmax, format!("more than kmin, {}", self.kmin));
        }
        c.range("pmax", self.pmax, 1e-6..=1.0, "");
    }
}

impl Checkable for Dcqcn {
    fn check(&self, c: &mut Checker) {
        let span = Seconds(1e-7)..=Seconds(1.0);
        c.seconds("cnp_interval", self.cnp_interval, span.clone());
        c.seconds("alpha_interval", self.alpha_interval, span.clone());
        c.seconds("decrease_interval", self.decrease_interval, span.clone());
        c.seconds("timer", self.timer, span);
        if let Some(bytes) = self.byte_counter {
            c.bytes("byte_counter", bytes, Bytes(64)..=Bytes::gib(64));
        }
        c.count("fast_rounds", u64::from(self.fast_rounds), 1..=100);
        c.range("g", self.g, 1e-6..=1.0, "");
        c.share("alpha_start", self.alpha_start);
        let rate = Rate::gbit(1e-6)..=Rate::gbit(10_000.0);
        c.rate("rate_ai", self.rate_ai, rate.clone());
        c.rate("rate_hai", self.rate_hai, rate.clone());
        c.rate("rate_min", self.rate_min, rate);
    }
}

/// One sender's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaction {
    /// The rate it sends at, bytes per second.
    pub(crate) rate: f64,
    target: f64,
    alpha: f64,
    /// The times of the next alpha decay, of the timer's expiry, and of the next allowed cut.
    alpha_due_ps: u64,
    timer_due_ps: u64,
    cut_free_ps: u64,
    bytes_to_count: u64,
    timer_rounds: u32,
    byte_rounds: u32,
    /// Whether the rate was ever cut: before that there is nothing to recover from.
    cut: bool,
}

/// [`Dcqcn`] in the simulator's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) cnp_interval_ps: u64,
    alpha_interval_ps: u64,
    decrease_interval_ps: u64,
    timer_ps: u64,
    byte_counter: u64,
    fast_rounds: u32,
    g: f64,
    alpha_start: f64,
    rate_ai: f64,
    rate_hai: f64,
    rate_min: f64,
    clamp_target: bool,
}

impl From<&Dcqcn> for Constants {
    fn from(d: &Dcqcn) -> Self {
        Self {
            cnp_interval_ps: picoseconds(d.cnp_interval),
            alpha_interval_ps: picoseconds(d.alpha_interval).max(1),
            decrease_interval_ps: picoseconds(d.decrease_interval),
            timer_ps: picoseconds(d.timer).max(1),
            byte_counter: d.byte_counter.map_or(u64::MAX, |b| b.0.max(1)),
            fast_rounds: d.fast_rounds,
            g: d.g,
            alpha_start: d.alpha_start,
            rate_ai: d.rate_ai.0,
            rate_hai: d.rate_hai.0,
            rate_min: d.rate_min.0,
            clamp_target: d.clamp_target,
        }
    }
}

/// A checked time in whole picoseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "inputs are checked to lie within days, and a float too large saturates"
)]
pub(crate) fn picoseconds(time: Seconds) -> u64 {
    (time.0 * PS_PER_S).round() as u64
}

impl Reaction {
    /// A new flow, which starts at line rate.
    pub(crate) fn new(line: f64, constants: &Constants) -> Self {
        Self {
            rate: line,
            target: line,
            alpha: constants.alpha_start,
            alpha_due_ps: u64::MAX,
            timer_due_ps: u64::MAX,
            cut_free_ps: 0,
            bytes_to_count: u64::MAX,
            timer_rounds: 0,
            byte_rounds: 0,
            cut: false,
        }
    }

    /// The time of the next rate change by timer.
    #[inline]
    pub(crate) fn next_change_ps(&self) -> u64 {
        self.timer_due_ps
    }

    /// Advances the state to `now`.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, line: f64, k: &Constants) {
        if now < self.timer_due_ps && now < self.alpha_due_ps {
            return;
        }
        self.run_timers(now, line, k);
    }

    fn run_timers(&mut self, now: u64, line: f64, k: &Constants) {
        while self.alpha_due_ps <= now {
            self.alpha *= 1.0 - k.g;
            self.alpha_due_ps += k.alpha_interval_ps;
            // A decayed alpha has no effect any more, however long the flow has been idle.
            if self.alpha < 1e-9 {
                self.alpha = 0.0;
                self.alpha_due_ps = u64::MAX;
            }
        }
        while self.timer_due_ps <= now {
            self.timer_rounds += 1;
            self.timer_due_ps += k.timer_ps;
            self.raise(line, k);
        }
    }

    /// Counts bytes sent.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: u64, line: f64, k: &Constants) {
        if bytes < self.bytes_to_count {
            self.bytes_to_count -= bytes;
            return;
        }
        self.bytes_to_count = k.byte_counter;
        self.byte_rounds += 1;
        self.raise(line, k);
    }

    /// Handles a congestion notification: cuts the rate and restarts the recovery.
    pub(crate) fn notified(&mut self, now: u64, line: f64, k: &Constants) {
        self.advance(now, line, k);
        if now >= self.cut_free_ps {
            if k.clamp_target || self.timer_rounds > 0 || !self.cut {
                self.target = self.rate;
            }
            self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(k.rate_min.min(line));
            self.cut_free_ps = now + k.decrease_interval_ps;
            self.timer_due_ps = now + k.timer_ps;
            self.bytes_to_count = k.byte_counter;
            self.timer_rounds = 0;
            self.byte_rounds = 0;
            self.cut = true;
        }
        self.alpha = (1.0 - k.g) * self.alpha + k.g;
        self.alpha_due_ps = now + k.alpha_interval_ps;
    }

    /// One step of recovery: fast, additive or hyper.
    fn raise(&mut self, line: f64, k: &Constants) {
        debug_assert!(self.cut, "only a cut flow has anything to recover");
        // If only the timer counts, it is used for both, one round later.
        let byte_rounds = if k.byte_counter == u64::MAX {
            self.timer_rounds.saturating_sub(1)
        } else {
            self.byte_rounds
        };
        let low = self.timer_rounds.min(byte_rounds);
        let high = self.timer_rounds.max(byte_rounds);
        if low > k.fast_rounds {
            self.target += k.rate_hai;
        } else if high > k.fast_rounds {
            self.target += k.rate_ai;
        }
        self.target = self.target.min(line);
        self.rate = f64::midpoint(self.rate, self.target);
        // At line rate to a millionth there is nothing left to recover.
        if self.rate > line * (1.0 - 1e-6) {
            self.rate = line;
            self.timer_due_ps = u64::MAX;
            self.bytes_to_count = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 5e9;
    const US: u64 = 1_000_000;

    fn paper() -> Constants {
        Constants::from(&ParameterSet::Paper.dcqcn(Rate(LINE)))
    }

    #[test]
    fn the_first_notification_halves_the_rate() {
        let k = paper();
        let mut flow = Reaction::new(LINE, &k);
        flow.notified(0, LINE, &k);
        assert_eq!(flow.rate.to_bits(), (LINE / 2.0).to_bits());
    }

    #[test]
    fn five_rounds_of_fast_recovery_close_all_but_a_thirty_second_of_the_gap() {
        let k = paper();
        let mut flow = Reaction::new(LINE, &k);
        flow.notified(0, LINE, &k);
        flow.advance(5 * 55 * US, LINE, &k);
        let gap = (LINE - flow.rate) / (LINE / 2.0);
        assert!((gap - 1.0 / 32.0).abs() < 1e-12, "{gap}");
    }

    #[test]
    fn the_state_does_not_depend_on_how_often_it_is_advanced() {
        let k = paper();
        let mut rare = Reaction::new(LINE, &k);
        rare.notified(0, LINE, &k);
        rare.notified(100 * US, LINE, &k);
        let mut often = rare;
        for t in 0..4000 {
            often.advance((100 + t) * US, LINE, &k);
        }
        rare.advance(4099 * US, LINE, &k);
        assert_eq!(rare.rate.to_bits(), often.rate.to_bits());
        assert_eq!(rare.alpha.to_bits(), often.alpha.to_bits());
    }

    #[test]
    fn alpha_falls_while_no_notification_comes_and_cuts_get_gentler() {
        let k = paper();
        let mut flow = Reaction::new(LINE, &k);
        flow.notified(0, LINE, &k);
        flow.advance(100_000 * US, LINE, &k);
        let before = flow.rate;
        flow.notified(100_001 * US, LINE, &k);
        assert!(flow.rate > before * 0.99, "{} of {before}", flow.rate);
    }

    #[test]
    fn no_cut_goes_below_the_minimum_rate() {
        let k = paper();
        let mut flow = Reaction::new(LINE, &k);
        for i in 0..1000 {
            flow.notified(i * 50 * US, LINE, &k);
        }
        assert!(flow.rate >= 5e6, "{}", flow.rate);
    }

    #[test]
    fn adapters_forget_a_burst_of_cuts_and_the_paper_does_not() {
        let rate_after = |set: ParameterSet| {
            let k = Constants::from(&set.dcqcn(Rate(LINE)));
            let mut flow = Reaction::new(LINE, &k);
            for i in 0..5 {
                flow.notified(i * 50 * US, LINE, &k);
            }
            flow.advance(200 * US + 301 * US, LINE, &k);
            flow.rate / LINE
        };
        assert!(rate_after(ParameterSet::Hpcc) > 0.5);
        assert!(rate_after(ParameterSet::Paper) < 0.2);
    }

    #[test]
    fn marking_rises_from_kmin_to_pmax_and_is_certain_above_kmax() {
        let ecn = ParameterSet::Paper.ecn(Rate::gbit(40.0));
        assert_eq!((ecn.kmin, ecn.kmax), (Bytes(5_000), Bytes(200_000)));
        let shares = [0.0, 5e3, 102.5e3, 200e3, 200_001.0].map(|q| ecn.share(q));
        for (share, expected) in shares.into_iter().zip([0.0, 0.0, 0.005, 0.01, 1.0]) {
            assert!((share - expected).abs() < 1e-12, "{shares:?}");
        }
    }

    #[test]
    fn simai_at_400g_has_its_published_thresholds() {
        let ecn = ParameterSet::Simai.ecn(Rate::gbit(400.0));
        assert_eq!((ecn.kmin, ecn.kmax), (Bytes(800_000), Bytes(3_200_000)));
        let hpcc = ParameterSet::Hpcc.dcqcn(Rate::gbit(100.0));
        assert!((hpcc.rate_ai.as_gbit() - 0.02).abs() < 1e-12);
    }
}
