//! The stability of the fixed point: the linearised loop from queue to marks to rates and back.
//!
//! Around the fixed point the equations are linear in small disturbances. The response to a sinusoid is a complex
//! number for each frequency. The *phase margin* is 180 degrees plus the phase at the frequency where the loop's gain
//! falls below one. Below zero a disturbance grows.

use std::ops::{Add, Mul, Neg, Sub};

use serde::Serialize;
use straightway_core::Seconds;

use super::{Fluid, Lagged, State};

/// The number of frequencies and their range in radians per second, spaced evenly on a logarithmic scale.
const FREQUENCIES: u32 = 3000;
const FREQUENCY_MIN: f64 = 1.0;
const FREQUENCY_MAX: f64 = 1e7;

/// A complex number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Complex {
    re: f64,
    im: f64,
}

/// The linearised senders: the effect of a disturbance of each state, of the lagged rate and of the lagged marks on
/// each state.
struct Linear {
    states: [[f64; 3]; 3],
    lagged_rate: [f64; 3],
    lagged_marks: [f64; 3],
}

/// The stability margins of a fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Margins {
    /// The phase margin: the additional lag that the loop tolerates at unit gain. Below zero it is unstable.
    pub phase_deg: f64,
    /// The gain margin: the factor by which the loop's gain may grow. Below one it is unstable.
    pub gain: f64,
    /// The delay margin: the additional feedback delay that the loop tolerates.
    pub delay: Seconds,
}

impl Fluid {
    /// The phase margin of the fixed point in degrees; `None` if the queue is pinned at `kmax`.
    pub fn phase_margin(&self) -> Option<f64> {
        self.margins().map(|margins| margins.phase_deg)
    }

    /// The stability margins of the fixed point; `None` if the queue is pinned at `kmax`, where marking is a step and
    /// not linear.
    pub fn margins(&self) -> Option<Margins> {
        if self.fixed_point().pinned {
            return None;
        }
        let linear = self.linearised();
        let ratio = (FREQUENCY_MAX / FREQUENCY_MIN).ln() / f64::from(FREQUENCIES);
        let mut before: Option<(f64, f64)> = None;
        let mut margins = Margins {
            phase_deg: f64::INFINITY,
            gain: f64::INFINITY,
            delay: Seconds(f64::INFINITY),
        };
        for i in 0..=FREQUENCIES {
            let frequency = FREQUENCY_MIN * (ratio * f64::from(i)).exp();
            let gain = self.loop_gain(&linear, frequency);
            let size = gain.size();
            let mut phase = gain.im.atan2(gain.re).to_degrees();
            if let Some((size_before, phase_before)) = before {
                // Unwraps the phase where the arc tangent jumps.
                phase -= ((phase - phase_before) / 360.0).round() * 360.0;
                if size_before >= 1.0 && size < 1.0 {
                    let here = 180.0 + phase;
                    margins.phase_deg = margins.phase_deg.min(here);
                    let delay = here.to_radians() / frequency;
                    margins.delay = Seconds(margins.delay.0.min(delay));
                }
                if phase_before > -180.0 && phase <= -180.0 {
                    margins.gain = margins.gain.min(1.0 / size);
                }
            } else if phase > 0.0 {
                // At the lowest frequency the loop lags; it cannot lead.
                phase -= 360.0;
            }
            before = Some((size, phase));
        }
        margins.phase_deg.is_finite().then_some(margins)
    }

    /// The loop gain: the response to a disturbance of the queue at `frequency`.
    fn loop_gain(&self, linear: &Linear, frequency: f64) -> Complex {
        let s = Complex::new(0.0, frequency);
        let angle = -frequency * self.delay.0;
        let lag = Complex::new(angle.cos(), angle.sin());
        // (sI − A − A_lag·e^{−sτ})·x = B·e^{−sτ}, solved for the first state by Cramer's rule.
        let mut matrix = [[Complex::new(0.0, 0.0); 3]; 3];
        for (i, row) in matrix.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = Complex::new(-linear.states[i][j], 0.0);
                if i == j {
                    *cell = *cell + s;
                }
            }
            row[0] = row[0] - lag * Complex::new(linear.lagged_rate[i], 0.0);
        }
        let mut replaced = matrix;
        for (row, marks) in replaced.iter_mut().zip(linear.lagged_marks) {
            row[0] = lag * Complex::new(marks, 0.0);
        }
        let response = determinant(&replaced).over(determinant(&matrix));
        let span = (self.ecn.kmax.0 - self.ecn.kmin.0) as f64 / self.packet.0 as f64;
        let marks_per_packet = self.ecn.pmax / span;
        let flows = Complex::new(f64::from(self.flows) * marks_per_packet, 0.0);
        -(response * flows).over(s)
    }

    /// The Jacobian of the derivatives at the fixed point, by central differences.
    fn linearised(&self) -> Linear {
        let fixed = self.fixed_point();
        let fair = self.packets(fixed.rate);
        let state = State {
            rate: fair,
            target: fair + self.packets(fixed.target_above),
            alpha: fixed.alpha,
            queue: 0.0,
        };
        let lagged = Lagged {
            marked: fixed.marked,
            rate: fair,
        };
        let slope = |by: f64, moved: &dyn Fn(f64) -> [f64; 3]| {
            let (up, down) = (moved(by), moved(-by));
            [0, 1, 2].map(|i| (up[i] - down[i]) / (2.0 * by))
        };
        let small = fair * 1e-4;
        let by_rate = slope(small, &|d| {
            let rate = state.rate + d;
            self.derivatives(&State { rate, ..state }, lagged)
        });
        let by_target = slope(small, &|d| {
            let target = state.target + d;
            self.derivatives(&State { target, ..state }, lagged)
        });
        let by_alpha = slope(1e-5, &|d| {
            let alpha = state.alpha + d;
            self.derivatives(&State { alpha, ..state }, lagged)
        });
        Linear {
            states: [0, 1, 2].map(|i| [by_rate[i], by_target[i], by_alpha[i]]),
            lagged_rate: slope(small, &|d| {
                let rate = lagged.rate + d;
                self.derivatives(&state, Lagged { rate, ..lagged })
            }),
            lagged_marks: slope(fixed.marked * 1e-4, &|d| {
                let marked = lagged.marked + d;
                self.derivatives(&state, Lagged { marked, ..lagged })
            }),
        }
    }
}

fn determinant(m: &[[Complex; 3]; 3]) -> Complex {
    let minor = |a: usize, b: usize| m[1][a] * m[2][b] - m[1][b] * m[2][a];
    m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
}

impl Complex {
    fn new(re: f64, im: f64) -> Self {
        Self { re, im }
    }

    fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    fn over(self, other: Self) -> Self {
        let norm = other.re * other.re + other.im * other.im;
        let turned = self * Self::new(other.re, -other.im);
        Self::new(turned.re / norm, turned.im / norm)
    }
}

impl Add for Complex {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.re + other.re, self.im + other.im)
    }
}

impl Sub for Complex {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.re - other.re, self.im - other.im)
    }
}

impl Mul for Complex {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self::new(
            self.re * other.re - self.im * other.im,
            self.re * other.im + self.im * other.re,
        )
    }
}

impl Neg for Complex {
    type Output = Self;
    fn neg(self) -> Self {
        Self::new(-self.re, -self.im)
    }
}

#[cfg(test)]
mod tests {
    use straightway_core::Bytes;

    use super::{super::tests::paper, *};
    use crate::dcqcn::Ecn;

    #[test]
    fn determinants_and_quotients_are_correct() {
        let c = Complex::new;
        let m = [
            [c(2.0, 1.0), c(0.0, 0.0), c(1.0, 0.0)],
            [c(0.0, 3.0), c(1.0, -1.0), c(0.0, 0.0)],
            [c(0.0, 0.0), c(4.0, 0.0), c(0.0, 2.0)],
        ];
        // (2+i)·(1−i)·2i + 1·(3i·4 − 0)
        let expected = c(2.0, 1.0) * c(1.0, -1.0) * c(0.0, 2.0) + c(0.0, 12.0);
        assert_eq!(determinant(&m), expected);
        assert_eq!(expected.over(expected), c(1.0, 0.0));
    }

    #[test]
    fn a_loop_loses_its_stability_where_its_margins_end() {
        for flows in [2, 10] {
            let fluid = paper(flows, 29.0);
            let margins = fluid.margins().expect("not pinned");
            let late = |share: f64| Fluid {
                delay: Seconds(fluid.delay.0 + share * margins.delay.0),
                ..fluid
            };
            assert!(late(0.95).phase_margin() > Some(0.0), "{flows}: {margins:?}");
            assert!(late(1.05).phase_margin() < Some(0.0), "{flows}: {margins:?}");
            // The slope of the marking is the loop's gain: the fixed point stays, the slope grows.
            let steep = |share: f64| {
                let fixed = fluid.fixed_point();
                let slope = share * margins.gain * fluid.ecn.pmax / (fluid.ecn.kmax.0 - fluid.ecn.kmin.0) as f64;
                let pmax = (fixed.marked * 2.0).min(1.0);
                let span = super::super::bytes(pmax / slope);
                let ecn = Ecn {
                    kmin: Bytes(1000),
                    kmax: Bytes(1000 + span.0),
                    pmax,
                };
                Fluid { ecn, ..fluid }.phase_margin()
            };
            assert!(steep(0.9) > Some(0.0), "{flows}: {margins:?}");
            assert!(steep(1.1) < Some(0.0), "{flows}: {margins:?}");
        }
    }

    #[test]
    fn a_longer_delay_costs_phase_margin() {
        for flows in [2, 4, 10] {
            let [short, long] = [4.0, 85.0].map(|us| paper(flows, us).phase_margin());
            assert!(long < short, "{flows}: {short:?} {long:?}");
        }
    }

    #[test]
    fn the_sign_of_the_margin_predicts_oscillation() {
        for (flows, delay_us) in [(2, 4.0), (4, 4.0), (10, 4.0), (10, 85.0), (4, 500.0)] {
            let fluid = paper(flows, delay_us);
            let margin = fluid.phase_margin().expect("not pinned");
            let settled = fluid.settle(Seconds(0.4));
            let queue = fluid.fixed_point().queue.0 as f64;
            let swing = (settled.queue_max.0 - settled.queue_min.0) as f64 / queue;
            assert_eq!(
                margin > 0.0,
                swing < 0.1,
                "{flows} flows, {delay_us} µs: {margin}°, {swing}"
            );
        }
    }
}
