//! Quality of service: one store, several tenants, and what reservation, limit and weight do.
//!
//! The article speaks of three pillars and names none; these are the three that schedulers have
//! (mClock): a rate that is always given, a rate never exceeded, and a share of what is left. The
//! same load is played twice from one seed, first come first served and by tags, so that what the
//! tags buy is seen in each tenant's rate and latency. A promise such as "always below 1 ms" is
//! thereby a question with an answer.

mod line;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use straightway_core::Seconds;

use self::line::{Line, Rule};
use crate::question::Question;
use crate::queue;
use straightway_scenario::{
    check::{Checked, Checker, Refusals},
    provenance::{Basis, Formula, Source},
    seed::{Dice, Seed},
};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Qos {
    /// Operations of cost one that the store does in a second.
    pub capacity: f64,
    /// How service times vary: 0 always the same, 1 exponential.
    pub variation: f64,
    /// How long it is played.
    pub duration: Seconds,
    /// Where the randomness starts.
    pub seed: Seed,
    /// Who shares the store.
    pub tenants: Vec<Tenant>,
}

/// One who shares the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Requests a second it sends, whatever happens; absent for one that always has `depth` in flight.
    #[serde(default)]
    pub offered: Option<f64>,
    /// Requests in flight of one that waits for answers.
    #[serde(default = "depth")]
    pub depth: u64,
    /// The cost of a request, in operations.
    #[serde(default = "one")]
    pub cost: f64,
    /// Operations a second it always gets.
    #[serde(default)]
    pub reservation: f64,
    /// Operations a second it never exceeds.
    #[serde(default)]
    pub limit: Option<f64>,
    /// Its share of what is left.
    #[serde(default = "one")]
    pub weight: f64,
    /// The latency promised to it.
    #[serde(default)]
    pub promise: Option<Seconds>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// First come, first served.
    pub fifo: Vec<Row>,
    /// By reservation, limit and weight.
    pub tags: Vec<Row>,
    /// Share of the store that is reserved.
    pub reserved: f64,
    /// Mean wait of an open line at the offered load, by formula; none where it grows for ever.
    pub open_wait_s: Option<f64>,
    /// What all this rests on.
    pub basis: Basis,
}

/// One tenant's share of the store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Operations a second it got: its part of the store's time, and so in all never more than the
    /// store does.
    pub operations_per_s: f64,
    /// Requests answered.
    pub served: u64,
    /// Requests not answered when the play ended.
    pub waiting: u64,
    /// Mean latency of the requests answered; none where none was.
    pub latency_s: Option<f64>,
    /// The latency one request in a hundred exceeded, those not answered counted with the time they
    /// have waited; none where none came.
    pub latency_s_p99: Option<f64>,
    /// Requests turned away because its line was full.
    pub refused: u64,
    /// Whether the promise held for 99 of 100 requests, counting as broken what was turned away or
    /// still waits beyond it; false where none was answered, none where there is no promise.
    pub promise_kept: Option<bool>,
}

/// The longest line of one tenant; what comes then is refused.
const LINE_MAX: usize = 10_000;

/// The most operations one question plays.
const OPERATIONS_MAX: f64 = 50e6;

const MCLOCK: Formula = Formula {
    gives: "who is next",
    text: "tags max(previous + cost/r, now) for reservation, limit and weight; reservations due first, then weight within the limit",
    source: Source::quoted("mClock, OSDI 2010", "tag assignment and scheduling"),
};

const fn one() -> f64 {
    1.0
}

const fn depth() -> u64 {
    32
}

impl Default for Qos {
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

impl Checked for Qos {
    fn check(&self, c: &mut Checker) {
        c.range("capacity", self.capacity, 1.0..=1e9, "per s");
        c.share("variation", self.variation);
        c.seconds("duration", self.duration, Seconds(1e-6)..=Seconds(1e6));
        let asked = self.capacity * self.duration.0;
        if asked > OPERATIONS_MAX {
            let seconds = Seconds(OPERATIONS_MAX / self.capacity);
            c.refuse(
                "duration",
                self.duration,
                format!("at most {seconds} at this capacity"),
            );
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

impl Checked for Tenant {
    fn check(&self, c: &mut Checker) {
        if self.name.is_empty() || self.name.len() > 60 {
            c.refuse(
                "name",
                format!("`{}`", self.name),
                "a name of 1 to 60 bytes",
            );
        }
        if let Some(offered) = self.offered {
            c.range("offered", offered, 0.001..=1e8, "per s");
        }
        c.count("depth", self.depth, 1..=LINE_MAX as u64);
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

impl Qos {
    /// Plays both rules; refuses open load that no store of this size could ever clear.
    fn compute(&self) -> Result<Answer, Refusals> {
        // Requests a second and the service of one, for each who sends whatever happens.
        let kinds: Vec<(f64, f64)> = self
            .tenants
            .iter()
            .filter_map(|t| Some((t.offered?, t.cost / self.capacity)))
            .collect();
        let load: f64 = kinds.iter().map(|(offered, mean)| offered * mean).sum();
        let open = load * self.capacity;
        // Two hundred times the capacity would play mostly refusals.
        if open > 200.0 * self.capacity {
            return Err(Refusals::one(
                "tenants",
                format!("{open} operations a second offered"),
                format!("at most 200 times the capacity, {}", 200.0 * self.capacity),
            ));
        }
        let mut rows: Vec<Vec<Row>> = [Rule::Fifo, Rule::Tags]
            .into_par_iter()
            .map(|rule| Play::new(self, rule).run())
            .collect();
        let tags = rows.pop().expect("two rules were played");
        let fifo = rows.pop().expect("two rules were played");
        let mut basis = Basis::of(&[MCLOCK, queue::MG1]);
        basis.parameter(
            "capacity",
            "capacity",
            self.capacity,
            "operations per s",
            Source::ASSUMED,
        );
        basis
            .parameter(
                "variation",
                "squared variation of service",
                self.variation,
                "",
                Source::ASSUMED,
            )
            .between(0.0, 4.0, Source::ASSUMED);
        basis.parameter("seed", "seed", self.seed.0 as f64, "", Source::ASSUMED);
        Ok(Answer {
            fifo,
            tags,
            reserved: self.tenants.iter().map(|t| t.reservation).sum::<f64>() / self.capacity,
            open_wait_s: queue::mg1_wait_s(&kinds, self.variation),
            basis,
        })
    }
}

/// One play of the load under one rule.
struct Play<'a> {
    asked: &'a Qos,
    line: Line<'a>,
    /// When each tenant's next request comes, each from dice of its own.
    arrivals: Vec<(f64, Dice)>,
    service: Dice,
    tallies: Vec<Tally>,
}

/// What came of one tenant's requests.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// The latency of each that was answered.
    latencies: Vec<f64>,
    /// How long each that was not has waited at the end.
    waited: Vec<f64>,
    refused: u64,
    /// The store's time it got.
    busy_s: f64,
}

impl<'a> Play<'a> {
    fn new(asked: &'a Qos, rule: Rule) -> Self {
        let tenants = &asked.tenants;
        let mut line = Line::new(tenants, rule);
        let mut arrivals = Vec::with_capacity(tenants.len());
        for (i, tenant) in tenants.iter().enumerate() {
            let mut dice = asked.seed.part(i as u64 + 1).dice();
            if let Some(offered) = tenant.offered {
                arrivals.push((dice.exponential(1.0 / offered), dice));
            } else {
                (0..tenant.depth).for_each(|_| line.push(i, 0.0));
                arrivals.push((f64::INFINITY, dice));
            }
        }
        Self {
            asked,
            line,
            arrivals,
            service: asked.seed.part(0).dice(),
            tallies: vec![Tally::default(); tenants.len()],
        }
    }

    fn run(mut self) -> Vec<Row> {
        let end_s = self.asked.duration.0;
        let mut now_s = 0.0;
        while now_s < end_s {
            self.admit(now_s);
            let Some((tenant, request)) = self.line.pop(now_s) else {
                let next = self
                    .arrivals
                    .iter()
                    .map(|(at, _)| *at)
                    .fold(f64::INFINITY, f64::min);
                let due = self.line.next_due_s().unwrap_or(f64::INFINITY);
                // Strictly later, so that rounding can never hold the clock.
                now_s = next.min(due).max(now_s + 1e-12 * end_s);
                continue;
            };
            let asked = &self.asked.tenants[tenant];
            let served_s = self.service_s(asked.cost);
            let tally = &mut self.tallies[tenant];
            // What the store does after the end is nobody's.
            tally.busy_s += served_s.min(end_s - now_s);
            now_s += served_s;
            if now_s > end_s {
                tally.waited.push(end_s - request.came_s);
                break;
            }
            tally.latencies.push(now_s - request.came_s);
            if asked.offered.is_none() {
                self.line.push(tenant, now_s);
            }
        }
        self.admit(end_s);
        for (i, tally) in self.tallies.iter_mut().enumerate() {
            tally
                .waited
                .extend(self.line.came_s(i).map(|came_s| end_s - came_s));
        }
        self.rows()
    }

    /// Lets in all who have come by now.
    fn admit(&mut self, now_s: f64) {
        for (i, tenant) in self.asked.tenants.iter().enumerate() {
            let Some(offered) = tenant.offered else {
                continue;
            };
            while self.arrivals[i].0 <= now_s {
                let (at, dice) = &mut self.arrivals[i];
                let came_s = *at;
                *at += dice.exponential(1.0 / offered);
                if self.line.len(i) < LINE_MAX {
                    self.line.push(i, came_s);
                } else {
                    self.tallies[i].refused += 1;
                }
            }
        }
    }

    /// A service time with the mean and variation asked: part fixed, part exponential.
    fn service_s(&mut self, cost: f64) -> f64 {
        let mean = cost / self.asked.capacity;
        let random = self.asked.variation.sqrt();
        mean * (1.0 - random) + self.service.exponential(mean * random)
    }

    fn rows(self) -> Vec<Row> {
        let tenants = self.asked.tenants.iter().zip(self.tallies);
        tenants
            .map(|(tenant, tally)| tally.row(tenant, self.asked))
            .collect()
    }
}

impl Tally {
    fn row(self, tenant: &Tenant, asked: &Qos) -> Row {
        let kept = tenant.promise.map(|promise| self.keeps(promise.0));
        let (served, waiting) = (self.latencies.len(), self.waited.len());
        let sum: f64 = self.latencies.iter().sum();
        let mut all = self.latencies;
        all.extend(self.waited);
        all.sort_by(f64::total_cmp);
        Row {
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

    /// Whether 99 of 100 requests were answered within `promise_s`. One that waits and may still be
    /// answered in time speaks neither for nor against.
    fn keeps(&self, promise_s: f64) -> bool {
        let beyond = |seconds: &[f64]| seconds.iter().filter(|s| **s > promise_s).count();
        let given_up = beyond(&self.waited) as u64 + self.refused;
        let broken = beyond(&self.latencies) as u64 + given_up;
        let served = self.latencies.len() as u64;
        served > 0 && broken * 100 <= served + given_up
    }
}

impl Question for Qos {
    const NAME: &'static str = "qos";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
        self.compute()
    }

    fn verdict(answer: &Answer) -> String {
        let kept = |rows: &[Row]| rows.iter().all(|row| row.promise_kept != Some(false));
        match (kept(&answer.fifo), kept(&answer.tags)) {
            (true, true) => "promises kept in line and by tags",
            (false, true) => "promises kept by tags alone",
            (true, false) => "promises kept in line alone",
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
            ..Qos::default().tenants.remove(0)
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
        let asked = Qos {
            capacity: 10e3,
            variation: 0.0,
            tenants,
            ..Qos::default()
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
        let got = shares(vec![
            backlogged("a", 0.0, None, 1.0),
            backlogged("b", 0.0, None, 3.0),
        ]);
        near(got[0], 2500.0, 0.02);
        near(got[1], 7500.0, 0.02);
    }

    #[test]
    fn a_reservation_is_given_whatever_the_weights() {
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
    fn everyone_limited_leaves_the_store_idle() {
        let got = shares(vec![backlogged("a", 0.0, Some(1000.0), 1.0)]);
        near(got[0], 1000.0, 0.02);
    }

    #[test]
    fn first_come_first_served_waits_as_pollaczek_and_khinchine_say() {
        for (variation, offered) in [(0.0, 60e3), (1.0, 60e3), (1.0, 30e3)] {
            let alone = Tenant {
                offered: Some(offered),
                ..Qos::default().tenants.remove(0)
            };
            let asked = Qos {
                variation,
                tenants: vec![alone],
                duration: Seconds(10.0),
                ..Qos::default()
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
            ..Qos::default().tenants.remove(0)
        };
        let asked = |tenants| Qos {
            tenants,
            duration: Seconds(100.0),
            ..Qos::default()
        };
        let answer = asked(vec![alone.clone()]).compute().unwrap();
        near(answer.open_wait_s.unwrap(), 500e-6, 1e-9);
        near(answer.fifo[0].latency_s.unwrap(), 1e-3, 0.05);
        // With small requests beside them all wait for the large ones.
        let small = Tenant {
            offered: Some(20e3),
            ..Qos::default().tenants.remove(0)
        };
        let answer = asked(vec![alone, small]).compute().unwrap();
        let waited = answer.fifo[1].latency_s.unwrap() - 10e-6;
        near(waited, answer.open_wait_s.unwrap(), 0.05);
    }

    #[test]
    fn a_starved_tenant_was_promised_in_vain() {
        let tenant = |name: &str, offered, weight| {
            Tenant {
                offered,
                depth: 512,
                reservation: 0.0,
                weight,
                ..Qos::default().tenants.remove(0)
            }
            .named(name)
        };
        let starved = Tenant {
            promise: Some(Seconds(1e-3)),
            ..tenant("starved", Some(100.0), 1e-6)
        };
        let asked = Qos {
            capacity: 1000.0,
            tenants: vec![starved, tenant("hog", None, 1e6)],
            ..Qos::default()
        };
        let row = asked.compute().unwrap().tags.remove(0);
        assert_eq!(row.promise_kept, Some(false));
        // 200 came in two seconds, and as good as all still wait.
        assert!(row.served < 5 && row.waiting > 150, "{row:?}");
        assert!(row.latency_s_p99.unwrap() > 1.0, "{row:?}");
    }

    #[test]
    fn a_short_play_credits_no_more_than_the_store_does() {
        for duration in [1e-3, 5e-3, 50e-3] {
            let mut asked = Qos {
                capacity: 1000.0,
                duration: Seconds(duration),
                ..Qos::default()
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
    fn the_promise_breaks_in_a_plain_line_and_holds_by_reservation() {
        let answer = Qos::default().compute().unwrap();
        assert_eq!(answer.fifo[0].promise_kept, Some(false));
        assert_eq!(answer.tags[0].promise_kept, Some(true));
    }

    #[test]
    fn the_same_seed_gives_the_same_answer() {
        assert_eq!(Qos::default().compute(), Qos::default().compute());
        let other = Qos {
            seed: Seed(2),
            ..Qos::default()
        };
        assert_ne!(
            other.compute().unwrap().tags,
            Qos::default().compute().unwrap().tags
        );
    }
}
