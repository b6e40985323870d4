//! Queueing formulas: M/M/c and Pollaczek–Khinchine.
//!
//! Independent requests arrive at rate λ at `c` servers. Metadata servers under a storm are M/M/c; a drive behind a
//! scheduler is M/G/1. In both the wait grows without bound as the load nears one, whatever the scheduling.

use serde::Serialize;

use straightway_scenario::provenance::{Citation, Formula};

/// The M/M/c formula.
pub const MMC: Formula = Formula {
    gives: "wait, shared queue",
    text: "P(wait) = ErlangC(c, λ/μ); W_q = P(wait)/(cμ − λ); p-quantile = ln(P(wait)/(1−p))/(cμ − λ)",
    source: Citation::quoted("Erlang 1917", "M/M/c queue"),
};

/// The Pollaczek–Khinchine formula.
pub const MG1: Formula = Formula {
    gives: "wait behind one server",
    text: "W_q = Σλ·E[S²] / (2·(1−ρ)), ρ = Σλ·E[S], summed over all in the queue",
    source: Citation::quoted("Pollaczek 1930, Khinchine 1932", "M/G/1 mean wait"),
};

/// The steady state of a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// The load: arrivals divided by capacity. From one on, the queue grows for ever.
    pub load: f64,
    /// Whether the queue has a steady state.
    pub stable: bool,
    /// Mean wait before service; `None` if the queue grows.
    pub mean_s: Option<f64>,
    /// The 99th percentile of the wait.
    pub p99_s: Option<f64>,
    /// Mean time from arrival to the end of service.
    pub response_s: Option<f64>,
}

/// The wait at an M/M/c queue with `servers` servers, each serving `service_per_s` requests per second.
pub fn mmc(servers: u64, service_per_s: f64, arrivals_per_s: f64) -> Wait {
    let capacity = servers as f64 * service_per_s;
    let load = arrivals_per_s / capacity;
    if load >= 1.0 {
        return Wait {
            load,
            stable: false,
            mean_s: None,
            p99_s: None,
            response_s: None,
        };
    }
    let waits = erlang_c(servers, arrivals_per_s / service_per_s);
    let spare = capacity - arrivals_per_s;
    let mean_s = waits / spare;
    Wait {
        load,
        stable: true,
        mean_s: Some(mean_s),
        p99_s: Some(((waits / 0.01).ln() / spare).max(0.0)),
        response_s: Some(mean_s + 1.0 / service_per_s),
    }
}

/// The probability that an arrival finds all servers busy, for an offered load in servers.
pub fn erlang_c(servers: u64, offered: f64) -> f64 {
    // Erlang B by its recursion, which does not overflow, then B → C.
    let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (n as f64 + offered * b));
    let load = offered / servers as f64;
    blocked / (1.0 - load * (1.0 - blocked))
}

/// The mean wait at an M/G/1 queue that serves several kinds of requests first come, first served. `kinds` has the
/// arrivals per second and the mean service time of each kind; `variation` is their squared coefficient of variation.
/// `None` if the queue grows.
pub fn mg1_wait_s(kinds: &[(f64, f64)], variation: f64) -> Option<f64> {
    let load: f64 = kinds.iter().map(|(arrivals, mean)| arrivals * mean).sum();
    let squares = kinds.iter().map(|(arrivals, mean)| arrivals * mean * mean);
    let left: f64 = squares.sum::<f64>() * (1.0 + variation) / 2.0;
    (load < 1.0).then(|| left / (1.0 - load))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn one_server_waits_as_mm1_does() {
        // ρ = 0.8, μ = 1: W_q = ρ/(1−ρ) = 4.
        let wait = mmc(1, 1.0, 0.8);
        near(wait.mean_s.unwrap(), 4.0, 1e-12);
        near(mg1_wait_s(&[(0.8, 1.0)], 1.0).unwrap(), 4.0, 1e-12);
        // Constant service halves the wait.
        near(mg1_wait_s(&[(0.8, 1.0)], 0.0).unwrap(), 2.0, 1e-12);
        // Splitting the requests into two equal kinds changes nothing.
        near(mg1_wait_s(&[(0.4, 1.0), (0.4, 1.0)], 0.0).unwrap(), 2.0, 1e-12);
    }

    #[test]
    fn erlang_c_gives_the_textbook_value() {
        // Two servers at load 0.75 each: C(2, 1.5) = 0.642857.
        near(erlang_c(2, 1.5), 0.642_857, 1e-5);
    }

    #[test]
    fn an_overloaded_queue_has_no_mean_wait() {
        let wait = mmc(4, 10.0, 40.0);
        assert!(!wait.stable && wait.mean_s.is_none());
        assert_eq!(mg1_wait_s(&[(2.0, 1.0)], 1.0), None);
    }

    proptest! {
        #[test]
        fn one_shared_queue_never_waits_longer_than_split_queues(c in 2u64..64, load in 0.05f64..0.95) {
            let arrivals = c as f64 * load;
            let shared = mmc(c, 1.0, arrivals).mean_s.unwrap();
            let split = mmc(1, 1.0, load).mean_s.unwrap();
            prop_assert!(shared <= split);
        }
    }
}
