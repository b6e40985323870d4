//! The queue of a store, and the rule that chooses the next request.
//!
//! There are two rules: first come, first served; and mClock's three tags ([`straightway_core::share`]), which every
//! request gets on arrival. Tenants with a due reservation are served first. The remaining capacity goes by weight to
//! tenants within their limit. A request served by weight is deducted from the reservation, so that it does not count
//! twice.

use std::collections::VecDeque;

use straightway_core::share::{self, Tags, Turn, after};

use super::Tenant;

/// The rule that chooses the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// First come, first served.
    Fifo,
    /// Reservation, limit and weight.
    Tags,
}

/// A waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The arrival time.
    pub(super) arrived_s: f64,
    tags: Tags,
}

/// One tenant's waiting requests, and the tags of its newest request.
#[derive(Debug)]
struct Waiting {
    requests: VecDeque<Request>,
    tags: Tags,
}

/// The queue of all tenants.
#[derive(Debug)]
pub(super) struct RequestQueue<'a> {
    tenants: &'a [Tenant],
    rule: Rule,
    waiting: Vec<Waiting>,
    /// The largest weight tag served by weight so far. A tenant that was idle starts from here.
    virtual_time: f64,
}

impl<'a> RequestQueue<'a> {
    pub(super) fn new(tenants: &'a [Tenant], rule: Rule) -> Self {
        let empty = || Waiting {
            requests: VecDeque::new(),
            tags: Tags {
                reservation_s: f64::NEG_INFINITY,
                limit_s: f64::NEG_INFINITY,
                weight_s: f64::NEG_INFINITY,
            },
        };
        Self {
            tenants,
            rule,
            waiting: tenants.iter().map(|_| empty()).collect(),
            virtual_time: 0.0,
        }
    }

    /// The number of waiting requests of one tenant.
    pub(super) fn len(&self, tenant: usize) -> usize {
        self.waiting[tenant].requests.len()
    }

    /// The arrival times of one tenant's waiting requests.
    pub(super) fn arrived_s(&self, tenant: usize) -> impl Iterator<Item = f64> {
        self.waiting[tenant].requests.iter().map(|request| request.arrived_s)
    }

    /// Adds a request of `tenant` to the queue.
    pub(super) fn push(&mut self, tenant: usize, now_s: f64) {
        let asked = &self.tenants[tenant];
        let last = &mut self.waiting[tenant];
        let Tags {
            reservation_s,
            limit_s,
            weight_s,
        } = last.tags;
        let next = |previous, per_s, floor_s| after(previous, asked.cost, per_s, floor_s);
        last.tags = Tags {
            reservation_s: next(reservation_s, asked.reservation, now_s),
            limit_s: asked.limit.map_or(now_s, |limit| next(limit_s, limit, now_s)),
            weight_s: next(weight_s, asked.weight, self.virtual_time),
        };
        last.requests.push_back(Request {
            arrived_s: now_s,
            tags: last.tags,
        });
    }

    /// Removes the next request to serve, and returns it with its tenant.
    pub(super) fn pop(&mut self, now_s: f64) -> Option<(usize, Request)> {
        match self.rule {
            Rule::Fifo => {
                let first = self.heads().min_by(|a, b| a.1.arrived_s.total_cmp(&b.1.arrived_s))?;
                self.take(first.0)
            }
            Rule::Tags => {
                let tags = self.heads().map(|(tenant, head)| (tenant, head.tags));
                let (tenant, turn) = share::choose(tags, now_s)?;
                if turn == Turn::Weight {
                    self.deduct_reservation(tenant);
                }
                self.take(tenant)
            }
        }
    }

    /// The earliest time at which a waiting request may be served, if none may be served now.
    pub(super) fn next_due_s(&self) -> Option<f64> {
        share::next_due_s(self.heads().map(|(_, head)| head.tags))
    }

    /// The first request of every tenant that has one.
    fn heads(&self) -> impl Iterator<Item = (usize, &Request)> + Clone {
        let fronts = self.waiting.iter().map(|waiting| waiting.requests.front());
        fronts.enumerate().filter_map(|(tenant, head)| Some((tenant, head?)))
    }

    fn take(&mut self, tenant: usize) -> Option<(usize, Request)> {
        let request = self.waiting[tenant].requests.pop_front()?;
        Some((tenant, request))
    }

    /// Deducts a request served by weight from the tenant's reservation.
    fn deduct_reservation(&mut self, tenant: usize) {
        let asked = &self.tenants[tenant];
        let waiting = &mut self.waiting[tenant];
        if let Some(head) = waiting.requests.front() {
            self.virtual_time = self.virtual_time.max(head.tags.weight_s);
        }
        if asked.reservation > 0.0 {
            let paid = asked.cost / asked.reservation;
            waiting.tags.reservation_s -= paid;
            waiting
                .requests
                .iter_mut()
                .for_each(|request| request.tags.reservation_s -= paid);
        }
    }
}
