//! DCQCN as a fluid model: the fixed point of marking, queue and rate, and its stability.
//!
//! Individual packets are averaged out: N equal flows share one bottleneck, and their rate, target, alpha and the
//! queue follow four delay-differential equations (Zhu et al., "ECN or Delay", CoNEXT 2016, equation 11). The [fixed
//! point](Fluid::fixed_point) gives the queue length for a choice of thresholds, the [phase
//! margin](Fluid::phase_margin) its stability; [`Fluid::settle`] integrates the equations. This takes microseconds
//! where a packet simulation takes seconds, which makes tuning ([`tune`]) possible.
//!
//! The model has no flow control, no hyper increase and no start-up: it applies to long flows.

mod linear;

pub use self::linear::Margins;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::dcqcn::{Dcqcn, Ecn, ParameterSet};
use straightway_scenario::{
    check::{Checkable, Checker},
    provenance::{Basis, Citation, Formula},
};

/// The maximum number of steps of an integration.
const STEPS_MAX: u64 = 20_000_000;

/// Long enough for the slowest published set to settle.
pub const SETTLE: Seconds = Seconds(0.2);

/// A queue has settled if it stays within this share of its fixed point, which is the initial displacement. The phase
/// margin does not decide it: with 6 degrees an oscillation may still grow until the queue is empty, where no margin
/// holds.
const STILL_SHARE: f64 = 0.1;

/// N equal flows through one bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fluid {
    /// The number of flows that share the link.
    pub flows: u32,
    /// The link rate.
    pub rate: Rate,
    /// The packet size.
    pub packet: Bytes,
    /// The delay from a mark to the sender's reaction.
    pub delay: Seconds,
    /// The marking thresholds.
    pub ecn: Ecn,
    /// The constants of the senders.
    pub dcqcn: Dcqcn,
}

/// The fixed point of the equations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FixedPoint {
    /// The share of marked packets that keeps the flows at their fair rate.
    pub marked: f64,
    /// The queue at which that share is marked.
    pub queue: Bytes,
    /// A flow's rate.
    pub rate: Rate,
    /// The difference of its target and its rate.
    pub target_above: Rate,
    /// Its alpha.
    pub alpha: f64,
    /// Whether more marks are needed than `pmax` gives, so that the queue oscillates about `kmax` instead.
    pub pinned: bool,
}

/// The result of an integration, over its last fifth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settled {
    /// The mean queue.
    pub queue_mean: Bytes,
    /// The minimum queue.
    pub queue_min: Bytes,
    /// The maximum queue.
    pub queue_max: Bytes,
    /// The mean rate of a flow.
    pub rate_mean: Rate,
}

/// The result of tuning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Every combination of thresholds.
    pub choices: Vec<ThresholdChoice>,
    /// The index of the best: the shortest queue that is not pinned and settles.
    pub best: Option<usize>,
    /// The integration of the best choice.
    pub settled: Option<Settled>,
}

/// One choice of thresholds, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThresholdChoice {
    /// The thresholds.
    pub ecn: Ecn,
    /// The fixed point.
    pub fixed: FixedPoint,
    /// The queueing delay at the fixed point.
    pub queue_delay: Seconds,
    /// The stability margins; `None` if the queue is pinned at `kmax`.
    pub margins: Option<Margins>,
}

/// The state of the flows and the queue, in packets and seconds.
#[derive(Clone, Copy, Debug)]
struct State {
    rate: f64,
    target: f64,
    alpha: f64,
    queue: f64,
}

/// The feedback that the senders receive after the delay.
#[derive(Clone, Copy, Debug)]
struct Lagged {
    marked: f64,
    rate: f64,
}

/// The event frequencies of a sender, at a share of marks and a rate.
struct Pace {
    /// The probability of a cut in an interval.
    cut: f64,
    /// Increases per packet, by byte counter and timer together.
    raise: f64,
    /// Increases per packet that raise the target.
    lift: f64,
}

const PAPER: Citation = Citation::read("Zhu et al., CoNEXT 2016", "equation 11");

const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "rate",
        text: "dRc = −Rc·α·a/2τ + (Rt − Rc)·Rc·(b + d)/2",
        source: PAPER,
    },
    Formula {
        gives: "target",
        text: "dRt = −(Rt − Rc)·a/τ + Rai·Rc·(c + e)",
        source: PAPER,
    },
    Formula {
        gives: "alpha",
        text: "dα = g/τ′·[1 − (1 − p)^{τ′Rc} − α]",
        source: PAPER,
    },
    Formula {
        gives: "fixed point",
        text: "α·a² = τ²·Rai·Rc·(b + d)·(c + e) at Rc = C/N, queue = kmin + p/pmax·(kmax − kmin)",
        source: Citation::computed("equation 11", "all derivatives zero"),
    },
];

impl Fluid {
    /// A published parameter set on a link of `rate`.
    pub fn new(set: ParameterSet, flows: u32, rate: Rate, packet: Bytes, delay: Seconds) -> Self {
        Self {
            flows,
            rate,
            packet,
            delay,
            ecn: set.ecn(rate),
            dcqcn: set.dcqcn(rate),
        }
    }

    /// The formulas and the constants of an answer.
    pub fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        let given = Citation::ASSUMED;
        basis.assume("feedback delay", self.delay.0 * 1e6, "µs", given);
        basis.assume("packet", self.packet.0 as f64, "B", given);
        basis
    }

    /// Returns the fixed point of the equations.
    pub fn fixed_point(&self) -> FixedPoint {
        let fair = self.packets(self.rate) / f64::from(self.flows);
        // The left side grows with the marks and the right side falls: bisect on a logarithmic scale.
        let (mut low, mut high) = (1e-12_f64, 1.0 - 1e-9);
        for _ in 0..200 {
            let middle = (low * high).sqrt();
            if self.balance(middle, fair) > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        let marked = low;
        let pace = self.pace(marked, fair);
        let tau = self.cut_interval();
        let above = tau * self.packets(self.dcqcn.rate_ai) * fair * pace.lift / pace.cut;
        let pinned = marked > self.ecn.pmax;
        let (kmin, kmax) = (self.ecn.kmin.0 as f64, self.ecn.kmax.0 as f64);
        let queue = kmin + (marked / self.ecn.pmax).min(1.0) * (kmax - kmin);
        FixedPoint {
            marked,
            queue: bytes(queue),
            rate: Rate(fair * self.packet.0 as f64),
            target_above: Rate(above * self.packet.0 as f64),
            alpha: self.alpha_at(marked, fair),
            pinned,
        }
    }

    /// The imbalance of a share of marks for flows at `rate`: positive if there are too many marks.
    fn balance(&self, marked: f64, rate: f64) -> f64 {
        let pace = self.pace(marked, rate);
        let tau = self.cut_interval();
        let ai = self.packets(self.dcqcn.rate_ai);
        self.alpha_at(marked, rate) * pace.cut * pace.cut - tau * tau * ai * rate * pace.raise * pace.lift
    }

    fn alpha_at(&self, marked: f64, rate: f64) -> f64 {
        -f64::exp_m1(self.dcqcn.alpha_interval.0 * rate * (-marked).ln_1p())
    }

    /// A rate in packets per second.
    fn packets(&self, rate: Rate) -> f64 {
        rate.0 / self.packet.0 as f64
    }

    /// The minimum time between two rate cuts: τ.
    fn cut_interval(&self) -> f64 {
        let (cnp, cut) = (self.dcqcn.cnp_interval.0, self.dcqcn.decrease_interval.0);
        cnp.max(cut)
    }

    fn pace(&self, marked: f64, rate: f64) -> Pace {
        let spared = (-marked).ln_1p();
        let rounds = f64::from(self.dcqcn.fast_rounds);
        // Increases per packet by a counter of `span` packets, and those past fast recovery.
        let counter = |span: f64| {
            let raise = if marked > 0.0 {
                marked / f64::exp_m1(-span * spared)
            } else {
                1.0 / span
            };
            (raise, raise * (rounds * span * spared).exp())
        };
        let by_timer = counter((self.dcqcn.timer.0 * rate).max(1e-9));
        let by_bytes = self
            .dcqcn
            .byte_counter
            .map_or((0.0, 0.0), |bytes| counter(bytes.0 as f64 / self.packet.0 as f64));
        Pace {
            cut: -f64::exp_m1(self.cut_interval() * rate * spared),
            raise: by_bytes.0 + by_timer.0,
            lift: by_bytes.1 + by_timer.1,
        }
    }

    /// The derivatives of rate, target and alpha.
    fn derivatives(&self, state: &State, lagged: Lagged) -> [f64; 3] {
        let pace = self.pace(lagged.marked, lagged.rate);
        let tau = self.cut_interval();
        let gap = state.target - state.rate;
        let ai = self.packets(self.dcqcn.rate_ai);
        let alpha_to = self.alpha_at(lagged.marked, lagged.rate);
        [
            -state.rate * state.alpha * pace.cut / (2.0 * tau) + gap * lagged.rate * pace.raise / 2.0,
            -gap * pace.cut / tau + ai * lagged.rate * pace.lift,
            self.dcqcn.g / self.dcqcn.alpha_interval.0 * (alpha_to - state.alpha),
        ]
    }

    /// Integrates the equations for `span` from the fixed point displaced by a tenth, and returns the result over the
    /// last fifth.
    pub fn settle(&self, span: Seconds) -> Settled {
        let fixed = self.fixed_point();
        let capacity = self.packets(self.rate);
        let step = (self.cut_interval() / 50.0).min(1e-6);
        let steps = crate::whole(span.0 / step).clamp(1, STEPS_MAX);
        let lag = usize::try_from(crate::whole(self.delay.0 / step)).unwrap_or(0);
        let fair = self.packets(fixed.rate);
        let mut state = State {
            rate: fair * 0.9,
            target: fair * 0.9 + self.packets(fixed.target_above),
            alpha: fixed.alpha,
            queue: fixed.queue.0 as f64 / self.packet.0 as f64,
        };
        let start = self.seen(&state);
        let mut past = std::collections::VecDeque::from(vec![start; lag + 1]);
        let (mut sum, mut rate_sum, mut count) = (0.0, 0.0, 0u64);
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for i in 0..steps {
            let lagged = past.pop_front().unwrap_or(start);
            let [rate, target, alpha] = self.derivatives(&state, lagged);
            state.rate = (state.rate + rate * step).clamp(1.0, capacity);
            state.target = (state.target + target * step).clamp(state.rate, capacity);
            state.alpha = (state.alpha + alpha * step).clamp(0.0, 1.0);
            let flowing = f64::from(self.flows) * state.rate;
            state.queue = (state.queue + (flowing - capacity) * step).max(0.0);
            past.push_back(self.seen(&state));
            if i >= steps - steps / 5 {
                sum += state.queue;
                rate_sum += state.rate;
                count += 1;
                least = least.min(state.queue);
                most = most.max(state.queue);
            }
        }
        let mean = |sum: f64| sum / count.max(1) as f64 * self.packet.0 as f64;
        Settled {
            queue_mean: bytes(mean(sum)),
            queue_min: bytes(least * self.packet.0 as f64),
            queue_max: bytes(most * self.packet.0 as f64),
            rate_mean: Rate(mean(rate_sum)),
        }
    }

    fn seen(&self, state: &State) -> Lagged {
        // Above kmax everything is marked; the equations need a share below one.
        let share = self.ecn.share(state.queue * self.packet.0 as f64);
        Lagged {
            marked: share.min(1.0 - 1e-9),
            rate: state.rate,
        }
    }

    /// Returns the result of this choice of thresholds.
    pub fn choice(&self) -> ThresholdChoice {
        let fixed = self.fixed_point();
        ThresholdChoice {
            ecn: self.ecn,
            fixed,
            queue_delay: Seconds(fixed.queue.0 as f64 / self.rate.0),
            margins: self.margins(),
        }
    }
}

impl Settled {
    /// Whether the queue settled at its fixed point.
    pub fn is_still(&self, fixed: &FixedPoint) -> bool {
        let queue = fixed.queue.0 as f64;
        let near = |bytes: Bytes| (bytes.0 as f64 - queue).abs() <= STILL_SHARE * queue;
        near(self.queue_min) && near(self.queue_max)
    }
}

/// The minimum gain margin of recommended thresholds: 6 dB, as is usual for a control loop.
pub const GAIN_MARGIN_MIN: f64 = 2.0;

/// The factor by which the feedback may be slower than assumed before recommended thresholds become unstable.
pub const DELAY_FACTOR: f64 = 2.0;

/// Tries every combination of thresholds around those given. The best is the shortest queue that is not pinned, has a
/// gain margin of [`GAIN_MARGIN_MIN`], stays stable with [`DELAY_FACTOR`] times the feedback delay, and settles when
/// the equations are integrated. The phase margin of DCQCN is only a few degrees for all thresholds; it is reported
/// but not used.
pub fn tune(fluid: &Fluid) -> Tuned {
    let scaled = |size: Bytes, by: f64| bytes((size.0 as f64 * by).max(1.0));
    let mut choices = Vec::new();
    for kmin in [1.0, 4.0] {
        for kmax in [0.5, 1.0, 2.0, 4.0, 16.0] {
            for pmax in [0.1, 0.5, 1.0, 5.0, 20.0] {
                let ecn = Ecn {
                    kmin: scaled(fluid.ecn.kmin, kmin),
                    kmax: scaled(fluid.ecn.kmax, kmax),
                    pmax: (fluid.ecn.pmax * pmax).min(1.0),
                };
                if ecn.kmax > ecn.kmin {
                    choices.push(Fluid { ecn, ..*fluid }.choice());
                }
            }
        }
    }
    choices.dedup_by(|a, b| a.ecn == b.ecn);
    // Without a margin the queue cannot settle; with one it may not, so it is integrated.
    let delay_min = fluid.delay.0 * (DELAY_FACTOR - 1.0);
    let has_margin = |c: &ThresholdChoice| {
        let enough = |m: Margins| m.gain >= GAIN_MARGIN_MIN && m.delay.0 >= delay_min;
        !c.fixed.pinned && c.margins.is_some_and(enough)
    };
    let mut order: Vec<usize> = (0..choices.len()).filter(|i| has_margin(&choices[*i])).collect();
    order.sort_by_key(|i| choices[*i].fixed.queue);
    let settles = |i: usize| {
        let ThresholdChoice { ecn, fixed, .. } = choices[i];
        let settled = Fluid { ecn, ..*fluid }.settle(SETTLE);
        settled.is_still(&fixed).then_some((i, settled))
    };
    let found = order.into_iter().find_map(settles);
    Tuned {
        best: found.map(|(i, _)| i),
        settled: found.map(|(_, settled)| settled),
        choices,
    }
}

fn bytes(value: f64) -> Bytes {
    Bytes(crate::whole((value - 0.5).max(0.0)))
}

impl Checkable for Fluid {
    fn check(&self, c: &mut Checker) {
        c.count("flows", u64::from(self.flows), 1..=100_000);
        c.rate("rate", self.rate, Rate::gbit(0.01)..=Rate::gbit(10_000.0));
        c.bytes("packet", self.packet, Bytes(64)..=Bytes(65_535));
        c.seconds("delay", self.delay, Seconds(0.0)..=Seconds(0.01));
        c.nested("ecn", &self.ecn);
        c.nested("dcqcn", &self.dcqcn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn paper(flows: u32, delay_us: f64) -> Fluid {
        Fluid::new(
            ParameterSet::Paper,
            flows,
            Rate::gbit(40.0),
            Bytes(1000),
            Seconds(delay_us * 1e-6),
        )
    }

    fn near(ours: f64, published: f64, tolerance: f64) {
        let off = (ours / published - 1.0).abs();
        assert!(off < tolerance, "{ours} against {published}");
    }

    #[test]
    fn the_fixed_points_of_40g_are_as_computed_from_equation_11() {
        for (flows, marked, queue_kb) in [(2, 7.77e-4, 20.2), (4, 1.89e-3, 41.8), (10, 6.03e-3, 122.6)] {
            let fixed = paper(flows, 4.0).fixed_point();
            near(fixed.marked, marked, 0.02);
            near(fixed.queue.0 as f64 / 1e3, queue_kb, 0.02);
            assert!(!fixed.pinned);
        }
    }

    #[test]
    fn sixteen_flows_need_more_marks_than_pmax_and_pin_the_queue_at_kmax() {
        for flows in [16, 64] {
            let fixed = paper(flows, 4.0).fixed_point();
            assert!(fixed.pinned);
            assert_eq!(fixed.queue, Bytes(200_000));
        }
    }

    #[test]
    fn the_integrated_equations_settle_within_two_per_cent_of_the_fixed_point() {
        for flows in [2, 4, 10] {
            let fluid = paper(flows, 4.0);
            let (fixed, settled) = (fluid.fixed_point(), fluid.settle(Seconds(0.3)));
            near(settled.queue_mean.0 as f64, fixed.queue.0 as f64, 0.02);
            near(settled.rate_mean.0, fixed.rate.0, 0.02);
        }
    }

    #[test]
    fn the_best_choice_settles_with_its_margins_and_no_shorter_queue_does() {
        // With a delay of half a notification interval, as with packets, the given thresholds oscillate.
        for delay_us in [4.0, 29.0] {
            let fluid = paper(10, delay_us);
            let tuned = tune(&fluid);
            let best = tuned.choices[tuned.best.expect("some choice comes to rest")];
            let still = |c: &ThresholdChoice| {
                let settled = Fluid { ecn: c.ecn, ..fluid }.settle(SETTLE);
                !c.fixed.pinned && settled.is_still(&c.fixed)
            };
            let has_margin = |c: &ThresholdChoice| {
                let late = Fluid {
                    ecn: c.ecn,
                    delay: Seconds(fluid.delay.0 * 2.0),
                    ..fluid
                };
                late.phase_margin() > Some(0.0) && c.margins.is_some_and(|m| m.gain >= 2.0)
            };
            assert!(still(&best) && has_margin(&best) && tuned.settled.is_some());
            let shorter = tuned.choices.iter().filter(|c| c.fixed.queue < best.fixed.queue);
            assert!(!shorter.into_iter().any(|c| still(c) && has_margin(c)));
        }
    }

    #[test]
    fn a_margin_of_six_degrees_does_not_make_a_queue_settle() {
        let fluid = paper(10, 29.0);
        let ecn = Ecn {
            kmax: Bytes::kib(391),
            ..fluid.ecn
        };
        let fluid = Fluid { ecn, ..fluid };
        assert!(fluid.phase_margin() > Some(5.0));
        assert!(!fluid.settle(SETTLE).is_still(&fluid.fixed_point()));
    }
}
