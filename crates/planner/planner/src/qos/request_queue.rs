//! The queue of a store, and the rule that chooses the next request.
//!
//! There are two rules: first come, first served; and mClock ([`straightway_core::share`]). By mClock, tenants with a due
//! reservation are served first. The remaining capacity goes by weight to tenants within their limit. A request served
//! by weight does not count against the reservation.

use std::collections::VecDeque;

use straightway_core::{
    Rate, Share,
    share::{Account, Schedule, Turn},
};

use super::Tenant;

/// The rule that chooses the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// First come, first served.
    Fifo,
    /// Reservation, limit and weight.
    Tags,
}

/// One tenant's waiting requests: their arrival times.
#[derive(Debug)]
struct Waiting {
    account: Account,
    arrived_s: VecDeque<f64>,
}

/// The queue of all tenants.
#[derive(Debug)]
pub(super) struct RequestQueue<'a> {
    tenants: &'a [Tenant],
    rule: Rule,
    waiting: Schedule<Waiting>,
}

impl<'a> RequestQueue<'a> {
    pub(super) fn new(tenants: &'a [Tenant], rule: Rule) -> Self {
        let mut waiting = Schedule::default();
        for tenant in tenants {
            waiting.push(Waiting {
                account: Account::new(Share {
                    reservation: (tenant.reservation > 0.0).then_some(Rate(tenant.reservation)),
                    limit: tenant.limit.map(Rate),
                    weight: tenant.weight,
                }),
                arrived_s: VecDeque::new(),
            });
        }
        Self { tenants, rule, waiting }
    }

    /// The number of waiting requests of one tenant.
    pub(super) fn len(&self, tenant: usize) -> usize {
        self.arrived_s(tenant).len()
    }

    /// The arrival times of one tenant's waiting requests.
    pub(super) fn arrived_s(&self, tenant: usize) -> impl ExactSizeIterator<Item = f64> {
        let mut waiting = self.waiting.iter();
        let waiting = waiting.nth(tenant).expect("it is a tenant");
        waiting.arrived_s.iter().copied()
    }

    /// Adds a request of `tenant` to the queue.
    pub(super) fn push(&mut self, tenant: usize, now_s: f64) {
        let waiting = self.waiting.get_mut(tenant);
        waiting.arrived_s.push_back(now_s);
        if waiting.arrived_s.len() == 1 {
            waiting.account.arrive(now_s);
            self.waiting.resume(tenant);
        }
    }

    /// Removes the next request to serve. Returns its tenant and its arrival time. The error is the earliest time at
    /// which a waiting request may be served; `None` if there is none.
    pub(super) fn pop(&mut self, now_s: f64) -> Result<(usize, f64), Option<f64>> {
        let (tenant, turn) = match self.rule {
            Rule::Fifo => (self.first().ok_or(None)?, Turn::Weight),
            Rule::Tags => self.waiting.choose(now_s, |waiting| {
                let is_waiting = !waiting.arrived_s.is_empty();
                is_waiting.then(|| waiting.account.due())
            })?,
        };
        let Tenant { cost, weight, .. } = self.tenants[tenant];
        self.waiting.serve(tenant, turn, cost, weight);
        let waiting = self.waiting.get_mut(tenant);
        // A request that had to wait for the store is not charged for that time.
        waiting.account.serve(cost, turn, f64::NEG_INFINITY);
        Ok((tenant, waiting.arrived_s.pop_front().expect("it waits")))
    }

    /// The tenant of the request that arrived first.
    fn first(&self) -> Option<usize> {
        let fronts = self.waiting.iter().map(|waiting| waiting.arrived_s.front());
        let fronts = fronts.enumerate().filter_map(|(tenant, front)| Some((tenant, *front?)));
        let first = fronts.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(first.0)
    }
}
