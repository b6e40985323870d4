//! The line before a drive, and who is next in it.
//!
//! Two rules choose: first come, first served; and mClock's three tags. Every request carries a
//! reservation tag, a limit tag and a weight tag, each `max(previous + cost/share, now)`. Whoever's
//! reservation is due goes first; what is left goes by weight to those within their limit. A
//! request served by weight is taken off the reservation's account, or it would be paid twice.

use std::collections::VecDeque;

use super::Tenant;

/// How the next request is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// First come, first served.
    Fifo,
    /// Reservation, limit and weight.
    Tags,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// When it came.
    pub(super) came_s: f64,
    reservation: f64,
    limit: f64,
    weight: f64,
}

/// One tenant's requests and the tags it gave last.
#[derive(Debug)]
struct Waiting {
    requests: VecDeque<Request>,
    reservation: f64,
    limit: f64,
    weight: f64,
}

/// All that wait.
#[derive(Debug)]
pub(super) struct Line<'a> {
    tenants: &'a [Tenant],
    rule: Rule,
    waiting: Vec<Waiting>,
    /// The weight tag served last: where a tenant that was idle starts.
    virtual_time: f64,
}

impl<'a> Line<'a> {
    pub(super) fn new(tenants: &'a [Tenant], rule: Rule) -> Self {
        let nobody = || Waiting {
            requests: VecDeque::new(),
            reservation: f64::NEG_INFINITY,
            limit: f64::NEG_INFINITY,
            weight: f64::NEG_INFINITY,
        };
        Self {
            tenants,
            rule,
            waiting: tenants.iter().map(|_| nobody()).collect(),
            virtual_time: 0.0,
        }
    }

    /// How many requests of one tenant wait.
    pub(super) fn len(&self, tenant: usize) -> usize {
        self.waiting[tenant].requests.len()
    }

    /// When each request of one tenant that waits came.
    pub(super) fn came_s(&self, tenant: usize) -> impl Iterator<Item = f64> {
        self.waiting[tenant]
            .requests
            .iter()
            .map(|request| request.came_s)
    }

    /// Puts a request of `tenant` in line.
    pub(super) fn push(&mut self, tenant: usize, now_s: f64) {
        let asked = &self.tenants[tenant];
        let last = &mut self.waiting[tenant];
        let next = |previous: f64, per_s: f64, floor: f64| {
            if per_s > 0.0 {
                (previous + asked.cost / per_s).max(floor)
            } else {
                f64::INFINITY
            }
        };
        last.reservation = if asked.reservation > 0.0 {
            next(last.reservation, asked.reservation, now_s)
        } else {
            f64::INFINITY
        };
        last.limit = match asked.limit {
            Some(limit) => next(last.limit, limit, now_s),
            None => now_s,
        };
        last.weight = next(last.weight, asked.weight, self.virtual_time);
        last.requests.push_back(Request {
            came_s: now_s,
            reservation: last.reservation,
            limit: last.limit,
            weight: last.weight,
        });
    }

    /// Takes the next request to serve, with its tenant.
    pub(super) fn pop(&mut self, now_s: f64) -> Option<(usize, Request)> {
        match self.rule {
            Rule::Fifo => self.take(self.least(|request| Some(request.came_s))?),
            Rule::Tags => {
                let due = self.least(|r| (r.reservation <= now_s).then_some(r.reservation));
                if let Some(tenant) = due {
                    return self.take(tenant);
                }
                let tenant = self.least(|r| (r.limit <= now_s).then_some(r.weight))?;
                self.settle(tenant);
                self.take(tenant)
            }
        }
    }

    /// When somebody who waits may next be served, where nobody may now.
    pub(super) fn next_due_s(&self) -> Option<f64> {
        let heads = self
            .waiting
            .iter()
            .filter_map(|waiting| waiting.requests.front());
        heads
            .map(|head| head.limit.min(head.reservation))
            .reduce(f64::min)
    }

    /// The tenant whose first request has the least key.
    fn least(&self, key: impl Fn(&Request) -> Option<f64>) -> Option<usize> {
        let heads = self.waiting.iter().enumerate();
        heads
            .filter_map(|(i, waiting)| Some((i, key(waiting.requests.front()?)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(i, _)| i)
    }

    fn take(&mut self, tenant: usize) -> Option<(usize, Request)> {
        let request = self.waiting[tenant].requests.pop_front()?;
        Some((tenant, request))
    }

    /// Takes a request served by weight off the reservation's account.
    fn settle(&mut self, tenant: usize) {
        let asked = &self.tenants[tenant];
        let waiting = &mut self.waiting[tenant];
        if let Some(head) = waiting.requests.front() {
            self.virtual_time = self.virtual_time.max(head.weight);
        }
        if asked.reservation > 0.0 {
            let paid = asked.cost / asked.reservation;
            waiting.reservation -= paid;
            waiting
                .requests
                .iter_mut()
                .for_each(|request| request.reservation -= paid);
        }
    }
}
