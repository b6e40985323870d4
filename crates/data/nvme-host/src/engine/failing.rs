//! Failure handling: retries, failover to another path, and errors.

use std::{
    io,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind};
use straightway_nvme::Status;

use super::{NvmeEngine, UNWANTED_MAX};
use crate::{
    quarantine::QUARANTINE,
    session::failure::{kind_of, remedy},
};

impl NvmeEngine {
    /// Handles a request whose commands have all completed: it is finished, retried or failed.
    pub(super) fn settle(&mut self, index: u32, number: u32, now: Instant) {
        let request = &mut self.requests[index];
        let Some(status) = request.refused else {
            let bytes = request.result_bytes;
            if request.is_write() {
                request.namespace.opened.history.end_write();
            }
            return self.finish(index, Ok(bytes));
        };
        let queue = &mut self.queues[number];
        queue.backlog.retain(|bound| *bound != index);
        let controller = &queue.controller;
        if status.is_ana() {
            controller.association.request_ana_refresh();
            self.reaches.clear();
        }
        request.failures += 1;
        let settings = &controller.settings;
        if !status.is_retryable() || request.failures > settings.retries_max {
            return self.refused(index, status);
        }
        let wait = match status.delay() {
            0 => settings.delay(request.failures).min(Duration::from_secs(1)),
            index => Duration::from_millis(100) * u32::from(controller.limits.retry_delays[index - 1]),
        };
        request.tries.retries += 1;
        request.queue = None;
        request.not_before = now + wait.min(settings.command_max);
        self.waiting.push_back(index);
    }

    fn refused(&mut self, index: u32, status: Status) {
        let request = &self.requests[index];
        let operation = if request.is_write() { "write to" } else { "read" };
        let (name, offset) = (request.namespace.name(), request.offset);
        let why = format!("at byte {offset}: {status}");
        let error = Error::new(kind_of(status), operation, name, why).with_hint(remedy(status));
        self.finish(index, Err(io::Error::other(error)));
    }

    /// Ends a connection and its controller. After its operations are cancelled, its requests are moved.
    pub(super) fn give_up(&mut self, number: u32, why: &str, now: Instant) {
        let queue = &mut self.queues[number];
        queue.controller.end(why);
        if queue.ending.is_none() {
            queue.ending = Some(why.to_owned());
            for operation in [queue.receiving, queue.sending].into_iter().flatten() {
                self.ring.cancel(operation);
            }
        }
        self.close_if_quiet(number, now);
    }

    /// Closes an ended connection once the kernel holds none of its buffers.
    pub(super) fn close_if_quiet(&mut self, number: u32, now: Instant) {
        let queue = &self.queues[number];
        if queue.ending.is_none() || !queue.is_quiet() {
            return;
        }
        let mut queue = self.queues.remove(number);
        let why = queue.ending.take().expect("it was just looked at");
        let settings = std::sync::Arc::clone(&queue.controller.settings);
        let held_until = now + queue.controller.quarantine_time();
        // Closing discards the data in the socket buffer before anything is sent elsewhere.
        drop(queue);
        for index in 0..u32::try_from(self.requests.capacity()).expect("queues are short") {
            let bound = self.requests.get(index).filter(|r| r.queue == Some(number));
            let Some(open) = bound.map(|request| request.open) else {
                continue;
            };
            let request = &mut self.requests[index];
            if request.is_write() && request.issued > 0 {
                let bytes = request.offset..request.offset + request.bytes as u64;
                let (nqn, nsid) = (&request.namespace.opened.subsystem().nqn, request.namespace.nsid());
                QUARANTINE.add(nqn, nsid, bytes, held_until);
                request.is_repeat = true;
            }
            request.queue = None;
            request.open = 0;
            request.failures += u32::from(open > 0);
            request.tries.retries += u32::from(open > 0);
            if request.failures > settings.retries_max {
                let (name, tries) = (request.namespace.name(), request.failures);
                let why = format!("the connection was lost {tries} times: {why}");
                let error = Error::new(ErrorKind::Transient, "transfer", name, why)
                    .with_hint("check the network and the target");
                self.finish(index, Err(io::Error::other(error)));
            } else {
                self.waiting.push_back(index);
            }
        }
    }

    /// Ends the queues whose controllers have ended.
    pub(super) fn drop_ended(&mut self, now: Instant) {
        for number in self.queue_numbers() {
            let Some(queue) = self.queues.get(number) else {
                continue;
            };
            if queue.ending.is_none()
                && let Some(why) = queue.controller.ended()
            {
                let why = why.to_owned();
                self.give_up(number, &why, now);
            }
        }
    }

    /// Ends connections whose completions are overdue, and those with overdue cancelled I/Os.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        for number in self.queue_numbers() {
            let Some(queue) = self.queues.get(number) else {
                continue;
            };
            if queue.ending.is_some() || queue.commands.len() == 0 {
                continue;
            }
            queue.controller.touch();
            let command_max = queue.controller.settings.command_max;
            let is_silent = now.duration_since(queue.heard) > command_max;
            let oldest = queue.commands.iter().map(|(_, command)| command.since).min();
            let is_late = oldest.is_some_and(|since| now.duration_since(since) > 2 * command_max);
            let is_unwanted = |request: u32| {
                let since = self.requests[request].unwanted_since;
                since.is_some_and(|since| now.duration_since(since) > UNWANTED_MAX)
            };
            let is_kept = queue.commands.iter().any(|(_, command)| is_unwanted(command.request));
            if is_silent || is_late {
                let time = if is_silent { command_max } else { 2 * command_max };
                let why = format!("no answer for {time:?}");
                self.give_up(number, &why, now);
            } else if is_kept {
                let why = "a cancelled I/O is not answered";
                self.give_up(number, why, now);
            }
        }
    }
}
