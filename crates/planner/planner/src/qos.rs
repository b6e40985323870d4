//! Quality of service: the effect of reservation, limit and weight on the tenants of one store.
//!
//! The article mentions three pillars without naming them. The three here are those of mClock: a guaranteed rate, a
//! maximum rate, and a share of the remaining capacity. The same load is simulated twice from one seed, first come
//! first served and by tags. The difference shows the effect of the tags on each tenant's rate and latency, and whether
//! a promise such as "always below 1 ms" is kept.

mod request_queue;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use straightway_core::{
    Seconds,
    random::{Rng, Seed},
};

use self::request_queue::{RequestQueue, Rule};
use crate::question::Question;
use crate::queue;
use straightway_scenario::{
    check::{Checkable, Checker, Refusals},
    provenance::{Basis, Citation, Formula},
};

/// The input of the topic `qos`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QosQuestion {
    /// The store's capacity, in operations of cost one per second.
    pub capacity: f64,
    /// The squared coefficient of variation of service times: 0 constant, 1 exponential.
    pub variation: f64,
    /// The simulated time.
    pub duration: Seconds,
    /// The seed of the random numbers.
    pub seed: Seed,
    /// The tenants of the store.
    pub tenants: Vec<Tenant>,
}

/// A tenant of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Requests per second of an open load; absent for a closed load that keeps `depth` requests in flight.
    #[serde(default)]
    pub offered: Option<f64>,
    /// Requests in flight of a closed load.
    #[serde(default = "depth")]
    pub depth: u64,
    /// The cost of a request, in operations.
    #[serde(default = "one")]
    pub cost: f64,
    /// The guaranteed operations per second.
    #[serde(default)]
    pub reservation: f64,
    /// The maximum operations per second.
    #[serde(default)]
    pub limit: Option<f64>,
    /// Its weight in sharing the remaining capacity.
    #[serde(default = "one")]
    pub weight: f64,
    /// The latency promised to it.
    #[serde(default)]
    pub promise: Option<Seconds>,
}

/// The answer of the topic `qos`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QosAnswer {
    /// The result of each tenant, first come, first served.
    pub fifo: Vec<QosRow>,
    /// The result of each tenant, by reservation, limit and weight.
    pub tags: Vec<QosRow>,
    /// The share of the capacity that is reserved.
    pub reserved: f64,
    /// The mean wait at the offered load, by formula; `None` if the queue grows for ever.
    pub open_wait_s: Option<f64>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The result of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QosRow {
    /// Its name.
    pub name: String,
    /// Operations per second it received: its share of the store's time, so the sum never exceeds the capacity.
    pub operations_per_s: f64,
    /// Requests answered.
    pub served: u64,
    /// Requests still waiting at the end of the simulation.
    pub waiting: u64,
    /// The mean latency of the answered requests; `None` if none was answered.
    pub latency_s: Option<f64>,
    /// The 99th percentile of the latency. Unanswered requests count with the time they have waited. `None` if no
    /// request arrived.
    pub latency_s_p99: Option<f64>,
    /// Requests refused because the tenant's queue was full.
    pub refused: u64,
    /// Whether the promise held for 99 of 100 requests. Refused requests and requests that have waited longer count as
    /// broken. `false` if no request was answered, `None` if there is no promise.
    pub promise_kept: Option<bool>,
}

/// The longest queue of one tenant. Further requests are refused.
const QUEUE_MAX: usize = 10_000;

/// The most operations of one simulation.
const OPERATIONS_MAX: f64 = 50e6;

const MCLOCK: Formula = Formula {
    gives: "scheduling",
    text: "tags max(previous + cost/r, now) for reservation, limit and weight; reservations due first, then weight within the limit",
    source: Citation::quoted("mClock, OSDI 2010", "tag assignment and scheduling"),
};

const fn one() -> f64 {
    1.0
}

const fn depth() -> u64 {
    32
}

impl Default for QosQuestion {
    fn default() -> Self {
        let tenant = |name: &str| Tenant {
            name: name.to_owned(),
            offered: None,
            depth: depth(),
            cost: 1.0,
            reservation: 0.0,
            limit: None,
            weight: 1.0,
            promise: None,
        };
        Self {
            capacity: 100e3,
            variation: 1.0,
            duration: Seconds(2.0),
            seed: Seed::default(),
            tenants: vec![
                Tenant {
                    offered: Some(10e3),
                    reservation: 20e3,
                    promise: Some(Seconds(1e-3)),
                    ..tenant("inference")
                },
                Tenant {
                    offered: Some(30e3),
                    weight: 2.0,
                    ..tenant("ingest")
                },
                // 1 MiB writes that cost eight operations each, 512 in flight.
                Tenant {
                    depth: 512,
                    cost: 8.0,
                    limit: Some(80e3),
                    ..tenant("checkpoint")
                },
            ],
        }
    }
}

impl Checkable for QosQuestion {
    fn check(&self, c: &mut Checker) {
        c.range("capacity", self.capacity, 1.0..=1e9, "per s");
        c.share("variation", self.variation);
        c.seconds("duration", self.duration, Seconds(1e-6)..=Seconds(1e6));
        let asked = self.capacity * self.duration.0;
        if asked > OPERATIONS_MAX {
            let seconds = Seconds(OPERATIONS_MAX / self.capacity);
            c.refuse("duration", self.duration, format!("at most {seconds} at this capacity"));
        }
        c.each("tenants", &self.tenants, 1..=64);
        let reserved: f64 = self.tenants.iter().map(|tenant| tenant.reservation).sum();
        if reserved > self.capacity {
            c.refuse(
                "tenants",
                format!("{reserved} operations a second reserved"),
                format!("at most the capacity, {}", self.capacity),
            );
        }
    }
}

impl Checkable for Tenant {
    fn check(&self, c: &mut Checker) {
        if self.name.is_empty() || self.name.len() > 60 {
            c.refuse("name", format!("`{}`", self.name), "a name of 1 to 60 bytes");
        }
        if let Some(offered) = self.offered {
            c.range("offered", offered, 0.001..=1e8, "per s");
        }
        c.count("depth", self.depth, 1..=QUEUE_MAX as u64);
        c.range("cost", self.cost, 0.001..=1e6, "operations");
        c.range("reservation", self.reservation, 0.0..=1e9, "per s");
        if let Some(limit) = self.limit {
            c.range("limit", limit, 0.001..=1e9, "per s");
            if limit < self.reservation {
                c.refuse(
                    "limit",
                    limit,
                    format!("at least the reservation, {}", self.reservation),
                );
            }
        }
        c.range("weight", self.weight, 1e-6..=1e6, "");
        if let Some(promise) = self.promise {
            c.seconds("promise", promise, Seconds(1e-9)..=Seconds(1e6));
        }
    }
}

impl QosQuestion {
    /// Simulates both rules; refuses an open load of more than 200 times the capacity.
    fn compute(&self) -> Result<QosAnswer, Refusals> {
        // Requests per second and mean service time of each tenant with an open load.
        let kinds: Vec<(f64, f64)> = self
            .tenants
            .iter()
            .filter_map(|t| Some((t.offered?, t.cost / self.capacity)))
            .collect();
        let load: f64 = kinds.iter().map(|(offered, mean)| offered * mean).sum();
        let open = load * self.capacity;
        // A simulation at 200 times the capacity would consist mostly of refusals.
        if open > 200.0 * self.capacity {
            return Err(Refusals::one(
                "tenants",
                format!("{open} operations a second offered"),
                format!("at most 200 times the capacity, {}", 200.0 * self.capacity),
            ));
        }
        let mut rows: Vec<Vec<QosRow>> = [Rule::Fifo, Rule::Tags]
            .into_par_iter()
            .map(|rule| Simulation::new(self, rule).run())
            .collect();
        let tags = rows.pop().expect("two rules were played");
        let fifo = rows.pop().expect("two rules were played");
        let mut basis = Basis::of(&[MCLOCK, queue::MG1]);
        basis.parameter(
            "capacity",
            "capacity",
            self.capacity,
            "operations per s",
            Citation::ASSUMED,
        );
        basis
            .parameter(
                "variation",
                "squared variation of service",
                self.variation,
                "",
                Citation::ASSUMED,
            )
            .between(0.0, 4.0, Citation::ASSUMED);
        basis.parameter("seed", "seed", self.seed.0 as f64, "", Citation::ASSUMED);
        Ok(QosAnswer {
            fifo,
            tags,
            reserved: self.tenants.iter().map(|t| t.reservation).sum::<f64>() / self.capacity,
            open_wait_s: queue::mg1_wait_s(&kinds, self.variation),
            basis,
        })
    }
}

/// A simulation of the load under one rule.
struct Simulation<'a> {
    asked: &'a QosQuestion,
    queue: RequestQueue<'a>,
    /// The arrival time of each tenant's next request, and the tenant's random numbers.
    arrivals: Vec<(f64, Rng)>,
    service: Rng,
    tallies: Vec<Tally>,
}

/// The record of one tenant's requests.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// The latencies of the answered requests.
    latencies: Vec<f64>,
    /// The time each unanswered request has waited at the end.
    waited: Vec<f64>,
    refused: u64,
    /// The service time the tenant received.
    busy_s: f64,
}

impl<'a> Simulation<'a> {
    fn new(asked: &'a QosQuestion, rule: Rule) -> Self {
        let tenants = &asked.tenants;
        let mut queue = RequestQueue::new(tenants, rule);
        let mut arrivals = Vec::with_capacity(tenants.len());
        for (i, tenant) in tenants.iter().enumerate() {
            let mut rng = asked.seed.part(i as u64 + 1).rng();
            if let Some(offered) = tenant.offered {
                arrivals.push((rng.exponential(1.0 / offered), rng));
            } else {
                (0..tenant.depth).for_each(|_| queue.push(i, 0.0));
                arrivals.push((f64::INFINITY, rng));
            }
        }
        Self {
            asked,
            queue,
            arrivals,
            service: asked.seed.part(0).rng(),
            tallies: vec![Tally::default(); tenants.len()],
        }
    }

    fn run(mut self) -> Vec<QosRow> {
        let end_s = self.asked.duration.0;
        let mut now_s = 0.0;
        while now_s < end_s {
            self.admit(now_s);
            let (tenant, arrived_s) = match self.queue.pop(now_s) {
                Ok(request) => request,
                Err(due_s) => {
                    let next = self.arrivals.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
                    let due_s = due_s.unwrap_or(f64::INFINITY);
                    // Strictly later, so that rounding cannot stop the clock.
                    now_s = next.min(due_s).max(now_s + 1e-12 * end_s);
                    continue;
                }
            };
            let asked = &self.asked.tenants[tenant];
            let served_s = self.service_s(asked.cost);
            let tally = &mut self.tallies[tenant];
            // Service after the end of the simulation is not counted.
            tally.busy_s += served_s.min(end_s - now_s);
            now_s += served_s;
            if now_s > end_s {
                tally.waited.push(end_s - arrived_s);
                break;
            }
            tally.latencies.push(now_s - arrived_s);
            if asked.offered.is_none() {
                self.queue.push(tenant, now_s);
            }
        }
        self.admit(end_s);
        for (i, tally) in self.tallies.iter_mut().enumerate() {
            tally
                .waited
                .extend(self.queue.arrived_s(i).map(|arrived_s| end_s - arrived_s));
        }
        self.rows()
    }

    /// Queues all requests that have arrived by `now_s`.
    fn admit(&mut self, now_s: f64) {
        for (i, tenant) in self.asked.tenants.iter().enumerate() {
            let Some(offered) = tenant.offered else {
                continue;
            };
            while self.arrivals[i].0 <= now_s {
                let (at, rng) = &mut self.arrivals[i];
                let arrived_s = *at;
                *at += rng.exponential(1.0 / offered);
                if self.queue.len(i) < QUEUE_MAX {
                    self.queue.push(i, arrived_s);
                } else {
                    self.tallies[i].refused += 1;
                }
            }
        }
    }

    /// A random service time with the given mean and variation: part fixed, part exponential.
    fn service_s(&mut self, cost: f64) -> f64 {
        let mean = cost / self.asked.capacity;
        let random = self.asked.variation.sqrt();
        mean * (1.0 - random) + self.service.exponential(mean * random)
    }

    fn rows(self) -> Vec<QosRow> {
        let tenants = self.asked.tenants.iter().zip(self.tallies);
        tenants.map(|(tenant, tally)| tally.row(tenant, self.asked)).collect()
    }
}

impl Tally {
    fn row(self, tenant: &Tenant, asked: &QosQuestion) -> QosRow {
        let kept = tenant.promise.map(|promise| self.keeps(promise.0));
        let (served, waiting) = (self.latencies.len(), self.waited.len());
        let sum: f64 = self.latencies.iter().sum();
        let mut all = self.latencies;
        all.extend(self.waited);
        all.sort_by(f64::total_cmp);
        QosRow {
            name: tenant.name.clone(),
            operations_per_s: self.busy_s * asked.capacity / asked.duration.0,
            served: served as u64,
            waiting: waiting as u64,
            latency_s: (served > 0).then(|| sum / served as f64),
            latency_s_p99: all.get(all.len() * 99 / 100).copied(),
            refused: self.refused,
            promise_kept: kept,
        }
    }

    /// Whether 99 of 100 requests were answered within `promise_s`. A waiting request that may still be answered in
    /// time is not counted.
    fn keeps(&self, promise_s: f64) -> bool {
        let beyond = |seconds: &[f64]| seconds.iter().filter(|s| **s > promise_s).count();
        let given_up = beyond(&self.waited) as u64 + self.refused;
        let broken = beyond(&self.latencies) as u64 + given_up;
        let served = self.latencies.len() as u64;
        served > 0 && broken * 100 <= served + given_up
    }
}

impl Question for QosQuestion {
    const NAME: &'static str = "qos";
    type Answer = QosAnswer;

    fn answer(&self) -> Result<QosAnswer, Refusals> {
        self.compute()
    }

    fn verdict(answer: &QosAnswer) -> String {
        let kept = |rows: &[QosRow]| rows.iter().all(|row| row.promise_kept != Some(false));
        match (kept(&answer.fifo), kept(&answer.tags)) {
            (true, true) => "promises kept by FIFO and by tags",
            (false, true) => "promises kept by tags alone",
            (true, false) => "promises kept by FIFO alone",
            (false, false) => "promises broken",
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    fn backlogged(name: &str, reservation: f64, limit: Option<f64>, weight: f64) -> Tenant {
        Tenant {
            reservation,
            limit,
            weight,
            offered: None,
            ..QosQuestion::default().tenants.remove(0)
        }
        .named(name)
    }

    impl Tenant {
        fn named(mut self, name: &str) -> Self {
            name.clone_into(&mut self.name);
            self.promise = None;
            self
        }
    }

    fn shares(tenants: Vec<Tenant>) -> Vec<f64> {
        let asked = QosQuestion {
            capacity: 10e3,
            variation: 0.0,
            tenants,
            ..QosQuestion::default()
        };
        asked
            .compute()
            .unwrap()
            .tags
            .iter()
            .map(|row| row.operations_per_s)
            .collect()
    }

    #[test]
    fn spare_capacity_goes_by_weight() {
        let got = shares(vec![backlogged("a", 0.0, None, 1.0), backlogged("b", 0.0, None, 3.0)]);
        near(got[0], 2500.0, 0.02);
        near(got[1], 7500.0, 0.02);
    }

    #[test]
    fn a_reservation_is_met_whatever_the_weights() {
        let got = shares(vec![
            backlogged("a", 6000.0, None, 1.0),
            backlogged("b", 0.0, None, 100.0),
        ]);
        near(got[0], 6000.0, 0.02);
    }

    #[test]
    fn a_limit_is_never_exceeded_and_the_rest_is_used() {
        let got = shares(vec![
            backlogged("a", 0.0, Some(1000.0), 100.0),
            backlogged("b", 0.0, None, 1.0),
        ]);
        assert!(got[0] <= 1000.0 * 1.01, "{got:?}");
        near(got[0] + got[1], 10e3, 0.01);
    }

    #[test]
    fn limits_on_all_tenants_leave_the_store_idle() {
        let got = shares(vec![backlogged("a", 0.0, Some(1000.0), 1.0)]);
        near(got[0], 1000.0, 0.02);
    }

    #[test]
    fn first_come_first_served_waits_as_pollaczek_and_khinchine_say() {
        for (variation, offered) in [(0.0, 60e3), (1.0, 60e3), (1.0, 30e3)] {
            let alone = Tenant {
                offered: Some(offered),
                ..QosQuestion::default().tenants.remove(0)
            };
            let asked = QosQuestion {
                variation,
                tenants: vec![alone],
                duration: Seconds(10.0),
                ..QosQuestion::default()
            };
            let answer = asked.compute().unwrap();
            let waited = answer.fifo[0].latency_s.unwrap() - 1.0 / asked.capacity;
            near(waited, answer.open_wait_s.unwrap(), 0.05);
        }
    }

    #[test]
    fn the_formula_counts_requests_and_their_cost() {
        // 1,000 requests a second of 50 operations, 100 k operations a second: 0.5 ms each, half
        // the time; exponential, so 500 µs of wait.
        let alone = Tenant {
            offered: Some(1000.0),
            cost: 50.0,
            ..QosQuestion::default().tenants.remove(0)
        };
        let asked = |tenants| QosQuestion {
            tenants,
            duration: Seconds(100.0),
            ..QosQuestion::default()
        };
        let answer = asked(vec![alone.clone()]).compute().unwrap();
        near(answer.open_wait_s.unwrap(), 500e-6, 1e-9);
        near(answer.fifo[0].latency_s.unwrap(), 1e-3, 0.05);
        // Small requests added to the load wait for the large ones.
        let small = Tenant {
            offered: Some(20e3),
            ..QosQuestion::default().tenants.remove(0)
        };
        let answer = asked(vec![alone, small]).compute().unwrap();
        let waited = answer.fifo[1].latency_s.unwrap() - 10e-6;
        near(waited, answer.open_wait_s.unwrap(), 0.05);
    }

    #[test]
    fn a_starved_tenant_breaks_its_promise() {
        let tenant = |name: &str, offered, weight| {
            Tenant {
                offered,
                depth: 512,
                reservation: 0.0,
                weight,
                ..QosQuestion::default().tenants.remove(0)
            }
            .named(name)
        };
        let starved = Tenant {
            promise: Some(Seconds(1e-3)),
            ..tenant("starved", Some(100.0), 1e-6)
        };
        let asked = QosQuestion {
            capacity: 1000.0,
            tenants: vec![starved, tenant("hog", None, 1e6)],
            ..QosQuestion::default()
        };
        let row = asked.compute().unwrap().tags.remove(0);
        assert_eq!(row.promise_kept, Some(false));
        // 200 requests arrived in two seconds, and nearly all still wait.
        assert!(row.served < 5 && row.waiting > 150, "{row:?}");
        assert!(row.latency_s_p99.unwrap() > 1.0, "{row:?}");
    }

    #[test]
    fn a_short_simulation_credits_no_more_than_the_capacity() {
        for duration in [1e-3, 5e-3, 50e-3] {
            let mut asked = QosQuestion {
                capacity: 1000.0,
                duration: Seconds(duration),
                ..QosQuestion::default()
            };
            asked.tenants[0].reservation = 1.0;
            let answer = asked.compute().unwrap();
            for rows in [&answer.fifo, &answer.tags] {
                let all: f64 = rows.iter().map(|row| row.operations_per_s).sum();
                assert!(all <= 1000.0 * (1.0 + 1e-9), "{all}");
                for row in rows {
                    assert_eq!(row.served == 0, row.latency_s.is_none());
                    assert!(row.served > 0 || row.promise_kept != Some(true));
                }
            }
        }
    }

    #[test]
    fn the_promise_breaks_in_a_fifo_and_holds_by_reservation() {
        let answer = QosQuestion::default().compute().unwrap();
        assert_eq!(answer.fifo[0].promise_kept, Some(false));
        assert_eq!(answer.tags[0].promise_kept, Some(true));
    }

    #[test]
    fn the_same_seed_gives_the_same_answer() {
        assert_eq!(QosQuestion::default().compute(), QosQuestion::default().compute());
        let other = QosQuestion {
            seed: Seed(2),
            ..QosQuestion::default()
        };
        assert_ne!(
            other.compute().unwrap().tags,
            QosQuestion::default().compute().unwrap().tags
        );
    }
}
