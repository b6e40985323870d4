//! DCQCN as a fluid: where marking, queue and rate settle, and whether they stay there.
//!
//! Packets are averaged away: N equal flows share one bottleneck, and their rate, target, alpha and
//! the queue follow four delay-differential equations (Zhu et al., "ECN or Delay", CoNEXT 2016,
//! equation 11). Three uses: the [fixed point](Fluid::fixed_point) says how long the queue will be
//! for a choice of thresholds; the [phase margin](Fluid::phase_margin) whether it will stay there or
//! swing; [`Fluid::settle`] integrates the equations. That is microseconds of work where packets
//! take seconds, which is what makes tuning ([`tune`]) possible.
//!
//! The model has no flow control, no hyper increase and no start-up: it speaks of long flows.

mod linear;

pub use self::linear::Margins;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::dcqcn::{Dcqcn, Ecn, ParameterSet};
use straightway_scenario::{
    check::{Checked, Checker},
    provenance::{Basis, Formula, Source},
};

/// Steps of one integration at the most.
const STEPS_MAX: u64 = 20_000_000;

/// Long enough for the slowest published set to settle.
pub const SETTLE: Seconds = Seconds(0.2);

/// A queue stands still if it stays this near to its fixed point: no farther than it was moved. The
/// phase margin does not decide it: with 6 degrees a swing may still grow until it meets the empty
/// queue, where no margin holds.
const STILL_SHARE: f64 = 0.1;

/// N equal flows through one bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fluid {
    /// How many flows share the link.
    pub flows: u32,
    /// The link.
    pub rate: Rate,
    /// A packet.
    pub packet: Bytes,
    /// From a mark to the sender's reaction.
    pub delay: Seconds,
    /// Marking.
    pub ecn: Ecn,
    /// The senders.
    pub dcqcn: Dcqcn,
}

/// Where everything stands still.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FixedPoint {
    /// The share of packets marked that holds the flows at their fair rate.
    pub marked: f64,
    /// The queue at which that share is marked.
    pub queue: Bytes,
    /// A flow's rate.
    pub rate: Rate,
    /// How far its target lies above its rate.
    pub target_above: Rate,
    /// Its alpha.
    pub alpha: f64,
    /// More marks are needed than `pmax` gives: the queue swings about `kmax` instead.
    pub pinned: bool,
}

/// What an integration settled to, over its last fifth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settled {
    /// The mean queue.
    pub queue_mean: Bytes,
    /// The least.
    pub queue_min: Bytes,
    /// The most.
    pub queue_max: Bytes,
    /// The mean rate of a flow.
    pub rate_mean: Rate,
}

/// What was tried, and the best of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Every combination of thresholds.
    pub choices: Vec<Choice>,
    /// The place of the best: the shortest queue that is not pinned and comes to rest.
    pub best: Option<usize>,
    /// What it settled to.
    pub settled: Option<Settled>,
}

/// One choice of thresholds, and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The thresholds.
    pub ecn: Ecn,
    /// Where it settles.
    pub fixed: FixedPoint,
    /// How long the queue delays a packet there.
    pub queue_delay: Seconds,
    /// How far it is from instability; none where the queue is pinned at `kmax`.
    pub margins: Option<Margins>,
}

/// The flows' state and what they see of the queue, in packets and seconds.
#[derive(Clone, Copy, Debug)]
struct State {
    rate: f64,
    target: f64,
    alpha: f64,
    queue: f64,
}

/// What the senders hear, a delay late.
#[derive(Clone, Copy, Debug)]
struct Lagged {
    marked: f64,
    rate: f64,
}

/// How often things happen for a sender, at a share of marks and a rate.
struct Pace {
    /// The chance of a cut in an interval.
    cut: f64,
    /// Increases a packet, by byte counter and timer together.
    raise: f64,
    /// Of those, the ones that lift the target.
    lift: f64,
}

const PAPER: Source = Source::read("Zhu et al., CoNEXT 2016", "equation 11");

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
        source: Source::computed("equation 11", "all derivatives zero"),
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
        let given = Source::ASSUMED;
        basis.assume("feedback delay", self.delay.0 * 1e6, "µs", given);
        basis.assume("packet", self.packet.0 as f64, "B", given);
        basis
    }

    /// Where everything stands still.
    pub fn fixed_point(&self) -> FixedPoint {
        let fair = self.packets(self.rate) / f64::from(self.flows);
        // The left side grows with the marks and the right side falls: halve in the logarithm.
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

    /// How far a share of marks is from balancing the flows at `rate`: positive is too many.
    fn balance(&self, marked: f64, rate: f64) -> f64 {
        let pace = self.pace(marked, rate);
        let tau = self.cut_interval();
        let ai = self.packets(self.dcqcn.rate_ai);
        self.alpha_at(marked, rate) * pace.cut * pace.cut
            - tau * tau * ai * rate * pace.raise * pace.lift
    }

    fn alpha_at(&self, marked: f64, rate: f64) -> f64 {
        -f64::exp_m1(self.dcqcn.alpha_interval.0 * rate * (-marked).ln_1p())
    }

    /// A rate in packets per second.
    fn packets(&self, rate: Rate) -> f64 {
        rate.0 / self.packet.0 as f64
    }

    /// The rate is cut at most once in this time: τ.
    fn cut_interval(&self) -> f64 {
        let (cnp, cut) = (self.dcqcn.cnp_interval.0, self.dcqcn.decrease_interval.0);
        cnp.max(cut)
    }

    fn pace(&self, marked: f64, rate: f64) -> Pace {
        let spared = (-marked).ln_1p();
        let rounds = f64::from(self.dcqcn.fast_rounds);
        // Increases a packet by a counter that runs `span` packets, and those past fast recovery.
        let counter = |span: f64| {
            let raise = if marked > 0.0 {
                marked / f64::exp_m1(-span * spared)
            } else {
                1.0 / span
            };
            (raise, raise * (rounds * span * spared).exp())
        };
        let by_timer = counter((self.dcqcn.timer.0 * rate).max(1e-9));
        let by_bytes = self.dcqcn.byte_counter.map_or((0.0, 0.0), |bytes| {
            counter(bytes.0 as f64 / self.packet.0 as f64)
        });
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
            -state.rate * state.alpha * pace.cut / (2.0 * tau)
                + gap * lagged.rate * pace.raise / 2.0,
            -gap * pace.cut / tau + ai * lagged.rate * pace.lift,
            self.dcqcn.g / self.dcqcn.alpha_interval.0 * (alpha_to - state.alpha),
        ]
    }

    /// Integrates the equations for `span` from the fixed point moved by a tenth, and says what the
    /// last fifth of it looked like.
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

    /// What this choice of thresholds leads to.
    pub fn choice(&self) -> Choice {
        let fixed = self.fixed_point();
        Choice {
            ecn: self.ecn,
            fixed,
            queue_delay: Seconds(fixed.queue.0 as f64 / self.rate.0),
            margins: self.margins(),
        }
    }
}

impl Settled {
    /// Whether the queue came to rest at its fixed point.
    pub fn is_still(&self, fixed: &FixedPoint) -> bool {
        let queue = fixed.queue.0 as f64;
        let near = |bytes: Bytes| (bytes.0 as f64 - queue).abs() <= STILL_SHARE * queue;
        near(self.queue_min) && near(self.queue_max)
    }
}

/// The least gain margin of recommended thresholds: 6 dB, as is usual for a control loop.
pub const GAIN_MARGIN_MIN: f64 = 2.0;

/// How much longer than assumed the feedback may take before recommended thresholds lose their stability.
pub const DELAY_FACTOR: f64 = 2.0;

/// Tries every combination of thresholds around those given. The best is the shortest queue that is not pinned, has a
/// gain margin of [`GAIN_MARGIN_MIN`], stays stable with [`DELAY_FACTOR`] times the feedback delay, and comes to rest
/// when the equations are integrated. DCQCN has few degrees of phase margin whatever the thresholds; it is shown.
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
    // Without a margin it cannot come to rest; with one it may not, and integrating says so.
    let delay_min = fluid.delay.0 * (DELAY_FACTOR - 1.0);
    let has_margin = |c: &Choice| {
        let enough = |m: Margins| m.gain >= GAIN_MARGIN_MIN && m.delay.0 >= delay_min;
        !c.fixed.pinned && c.margins.is_some_and(enough)
    };
    let mut order: Vec<usize> = (0..choices.len())
        .filter(|i| has_margin(&choices[*i]))
        .collect();
    order.sort_by_key(|i| choices[*i].fixed.queue);
    let settles = |i: usize| {
        let Choice { ecn, fixed, .. } = choices[i];
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

impl Checked for Fluid {
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
        for (flows, marked, queue_kb) in
            [(2, 7.77e-4, 20.2), (4, 1.89e-3, 41.8), (10, 6.03e-3, 122.6)]
        {
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
    fn a_best_choice_comes_to_rest_with_its_margins_and_no_shorter_one_does() {
        // With half a notification interval, as packets have it, what is given swings.
        for delay_us in [4.0, 29.0] {
            let fluid = paper(10, delay_us);
            let tuned = tune(&fluid);
            let best = tuned.choices[tuned.best.expect("some choice comes to rest")];
            let still = |c: &Choice| {
                let settled = Fluid {
                    ecn: c.ecn,
                    ..fluid
                }
                .settle(SETTLE);
                !c.fixed.pinned && settled.is_still(&c.fixed)
            };
            let has_margin = |c: &Choice| {
                let late = Fluid {
                    ecn: c.ecn,
                    delay: Seconds(fluid.delay.0 * 2.0),
                    ..fluid
                };
                late.phase_margin() > Some(0.0) && c.margins.is_some_and(|m| m.gain >= 2.0)
            };
            assert!(still(&best) && has_margin(&best) && tuned.settled.is_some());
            let shorter = tuned
                .choices
                .iter()
                .filter(|c| c.fixed.queue < best.fixed.queue);
            assert!(!shorter.into_iter().any(|c| still(c) && has_margin(c)));
        }
    }

    #[test]
    fn a_margin_of_six_degrees_does_not_make_a_queue_stand_still() {
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
