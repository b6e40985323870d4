//! The line before a drive, and who is next in it.
//!
//! Two rules choose: first come, first served; and mClock's three tags ([`straightway_core::share`]), which every request
//! gets when it comes. Whoever's reservation is due goes first; what is left goes by weight to those within their limit. A
//! request served by weight is taken off the reservation's account, or it would be paid twice.

use std::collections::VecDeque;

use straightway_core::share::{self, Tags, Turn, after};

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
    tags: Tags,
}

/// One tenant's requests and the tags it gave last.
#[derive(Debug)]
struct Waiting {
    requests: VecDeque<Request>,
    tags: Tags,
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
            tags: Tags {
                reservation_s: f64::NEG_INFINITY,
                limit_s: f64::NEG_INFINITY,
                weight_s: f64::NEG_INFINITY,
            },
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
        let Tags {
            reservation_s,
            limit_s,
            weight_s,
        } = last.tags;
        let next = |previous, per_s, floor_s| after(previous, asked.cost, per_s, floor_s);
        last.tags = Tags {
            reservation_s: next(reservation_s, asked.reservation, now_s),
            limit_s: asked
                .limit
                .map_or(now_s, |limit| next(limit_s, limit, now_s)),
            weight_s: next(weight_s, asked.weight, self.virtual_time),
        };
        last.requests.push_back(Request {
            came_s: now_s,
            tags: last.tags,
        });
    }

    /// Takes the next request to serve, with its tenant.
    pub(super) fn pop(&mut self, now_s: f64) -> Option<(usize, Request)> {
        match self.rule {
            Rule::Fifo => {
                let first = self
                    .heads()
                    .min_by(|a, b| a.1.came_s.total_cmp(&b.1.came_s))?;
                self.take(first.0)
            }
            Rule::Tags => {
                let tags = self.heads().map(|(tenant, head)| (tenant, head.tags));
                let (tenant, turn) = share::choose(tags, now_s)?;
                if turn == Turn::Weight {
                    self.settle(tenant);
                }
                self.take(tenant)
            }
        }
    }

    /// When somebody who waits may next be served, where nobody may now.
    pub(super) fn next_due_s(&self) -> Option<f64> {
        share::next_due_s(self.heads().map(|(_, head)| head.tags))
    }

    /// The first request of every tenant that has one.
    fn heads(&self) -> impl Iterator<Item = (usize, &Request)> + Clone {
        let fronts = self.waiting.iter().map(|waiting| waiting.requests.front());
        fronts
            .enumerate()
            .filter_map(|(tenant, head)| Some((tenant, head?)))
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
