//! An admin queue: properties, Identify and log pages, features and events.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use straightway_nvme::{
    Cqe, Frame, Pdu, Sgl, Sqe, Status,
    admin::{Admin, Feature, QueueCounts},
    entry::FLAGS_SGL,
    fabrics::{self, ControllerCapabilities, Fabrics, Property},
};

use crate::{
    authentication::{Authentication, is_authentication},
    connection::{Arrived, Connection, sequence},
    controller::Controller,
    end::End,
    login::{Login, QUEUE_SIZE_MAX},
    page,
    state::Shared,
};

/// The NVMe version in properties and pages: 1.4.
const VERSION: u64 = 0x0001_0400;

/// CAP.TO: the ready timeout in units of 500 ms.
const READY_500MS: u8 = 15;

/// The outcome of a successful command.
#[derive(Debug)]
enum Answer {
    /// A completion with dword 0.
    Result(u64),
    /// Data, padded with zeros to the length of the command's buffer and followed by a completion.
    Data(Vec<u8>),
    /// The completion is sent later.
    Later,
}

/// The state of an admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue<'a> {
    shared: &'a Shared,
    controller: Arc<Controller>,
    connection: &'a mut Connection,
    head: QueueHead,
    /// Asynchronous Event Requests that wait for an event.
    requests: VecDeque<u16>,
    authentication: Authentication,
}

/// The submission queue head pointer, which completions carry with flow control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueHead {
    at: u16,
    size: u16,
    is_uncontrolled: bool,
}

impl QueueHead {
    pub(crate) fn new(size: u16, is_uncontrolled: bool) -> Self {
        Self {
            at: 0,
            size,
            is_uncontrolled,
        }
    }

    /// Advances the head and makes the completion of a command.
    pub(crate) fn complete(&mut self, cid: u16, status: Status, result: u64) -> Cqe {
        if !self.is_uncontrolled {
            // `size` is zero-based: the entries are 0 to `size`.
            self.at = if self.at >= self.size { 0 } else { self.at + 1 };
        }
        Cqe {
            result,
            sq_head: if self.is_uncontrolled { 0xffff } else { self.at },
            ..Cqe::new(cid, status)
        }
    }
}

impl<'a> AdminQueue<'a> {
    pub(crate) fn new(shared: &'a Shared, login: &Login, connection: &'a mut Connection) -> Self {
        Self {
            shared,
            controller: login.controller.clone(),
            connection,
            head: QueueHead::new(login.connect.size, login.connect.is_uncontrolled),
            requests: VecDeque::new(),
            authentication: Authentication::new(shared, login),
        }
    }

    /// Completes Connect, then executes commands until the end.
    pub(crate) fn run(&mut self, login: &Login) -> End {
        let result = login.answer.to_result();
        let cqe = self.head.complete(login.sqe.cid, Status::SUCCESS, result);
        self.connection.sender.response(cqe);
        self.connection.deadline = self.authentication.deadline();
        loop {
            if let Err(end) = self.step() {
                return end;
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        let controller = self.controller.clone();
        match self.connection.next(Some(controller.wakeup_fd()))? {
            Arrived::Frame(frame) => {
                controller.mark_alive();
                self.frame(&frame)?;
            }
            Arrived::Wakeup => {
                controller.clear_wakeup();
                self.send_events();
            }
            Arrived::Tick => {}
        }
        if controller.is_expired() {
            return Err(End::KeepAlive);
        }
        if self.shared.is_over.load(Ordering::Relaxed) {
            return Err(End::Closed);
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), End> {
        let sqe = match frame.pdu {
            Pdu::Command(sqe) => sqe,
            Pdu::HostTerm(term) => {
                tracing::warn!("host {}: {}", self.controller.identity.nqn, term.status);
                return Err(End::Closed);
            }
            _ => return Err(sequence("an admin queue accepts only commands")),
        };
        let answer = self.execute(&sqe, frame);
        self.connection.receiver.consume(frame.total_bytes());
        let cid = sqe.cid;
        match answer {
            Ok(Answer::Later) => {}
            Ok(Answer::Result(result)) => {
                let cqe = self.head.complete(cid, Status::SUCCESS, result);
                self.connection.sender.response(cqe);
            }
            Ok(Answer::Data(data)) => {
                let bytes = sqe.sgl.bytes as usize;
                self.connection.sender.page(cid, &data, bytes)?;
                let cqe = self.head.complete(cid, Status::SUCCESS, 0);
                self.connection.sender.response(cqe);
            }
            Err(status) => {
                let cqe = self.head.complete(cid, status, 0);
                self.connection.sender.response(cqe);
            }
        }
        Ok(())
    }

    fn execute(&mut self, sqe: &Sqe, frame: &Frame) -> Result<Answer, Status> {
        if sqe.flags != FLAGS_SGL {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if sqe.opcode == fabrics::OPCODE {
            return self.fabrics(sqe, frame);
        }
        if !self.authentication.is_trusted() {
            return Err(Status::AUTH_REQUIRED.dnr());
        }
        match Admin::from_sqe(sqe)? {
            Admin::Identify(what) => {
                let page = page::identify(self.shared, &self.controller, what)?;
                if sqe.sgl.bytes as usize != page.len() {
                    return Err(Status::SGL_DATA_LENGTH.dnr());
                }
                transferred(sqe, page)
            }
            Admin::GetLog(what) => {
                let local = self.connection.local();
                if sqe.sgl.bytes != what.bytes {
                    return Err(Status::SGL_DATA_LENGTH.dnr());
                }
                let part = page::log(self.shared, &self.controller, local, what)?;
                transferred(sqe, part)
            }
            // Nothing was aborted: commands are executed in order as they arrive.
            Admin::Abort { .. } => Ok(Answer::Result(1)),
            Admin::SetFeatures { feature, value, .. } => self.set_feature(feature, value),
            Admin::GetFeatures { feature, .. } => self.feature(feature),
            Admin::EventRequest => {
                if self.requests.len() > usize::from(page::EVENT_LIMIT) {
                    return Err(Status::AER_LIMIT);
                }
                self.requests.push_back(sqe.cid);
                self.send_events();
                Ok(Answer::Later)
            }
            Admin::KeepAlive => Ok(Answer::Result(0)),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe, frame: &Frame) -> Result<Answer, Status> {
        let command = Fabrics::from_sqe(sqe)?;
        if is_authentication(command) {
            let data = self.connection.capsule_data(frame);
            let done = self.authentication.execute(command, sqe, data);
            self.connection.deadline = self.authentication.deadline();
            return Ok(done?.map_or(Answer::Result(0), Answer::Data));
        }
        if !self.authentication.is_trusted() {
            return Err(Status::AUTH_REQUIRED.dnr());
        }
        match command {
            Fabrics::Connect(_) => Err(Status::COMMAND_SEQUENCE.dnr()),
            Fabrics::PropertyGet { property } => {
                let value = match property {
                    Property::CAP => ControllerCapabilities::new(QUEUE_SIZE_MAX + 1, READY_500MS).0,
                    Property::VS => VERSION,
                    Property::CC => self.controller.config(),
                    Property::CSTS => self.controller.status(),
                    _ => return Err(Status::INVALID_FIELD.dnr()),
                };
                Ok(Answer::Result(value))
            }
            Fabrics::PropertySet { property, value } => {
                if property != Property::CC {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.controller.configure(value);
                Ok(Answer::Result(0))
            }
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn set_feature(&mut self, feature: u8, value: u32) -> Result<Answer, Status> {
        match feature {
            Feature::QUEUES if !self.controller.is_discovery => {
                let asked = QueueCounts::from_value(value);
                let granted = QueueCounts::both(asked.pairs().min(self.shared.queues_max));
                Ok(Answer::Result(u64::from(granted.to_value())))
            }
            Feature::EVENTS => {
                self.controller.set_event_mask(value);
                Ok(Answer::Result(0))
            }
            Feature::KEEP_ALIVE => {
                self.controller.keep_alive_ms.store(value, Ordering::Relaxed);
                Ok(Answer::Result(0))
            }
            Feature::WRITE_CACHE | Feature::HOST_ID | Feature::WRITE_PROTECT => {
                Err(Status::FEATURE_NOT_CHANGEABLE.dnr())
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn feature(&self, feature: u8) -> Result<Answer, Status> {
        let value = match feature {
            Feature::QUEUES => u64::from(QueueCounts::both(self.shared.queues_max).to_value()),
            Feature::EVENTS => u64::from(self.controller.event_mask()),
            Feature::KEEP_ALIVE => u64::from(self.controller.keep_alive_ms.load(Ordering::Relaxed)),
            Feature::WRITE_CACHE => u64::from(self.shared.is_writable),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(Answer::Result(value))
    }

    fn send_events(&mut self) {
        while !self.requests.is_empty() {
            let Some(event) = self.controller.next_event() else {
                return;
            };
            let cid = self.requests.pop_front().expect("one waits");
            let cqe = self.head.complete(cid, Status::SUCCESS, event.to_result());
            self.connection.sender.response(cqe);
        }
    }
}

/// Data for a command that has a buffer for it.
fn transferred(sqe: &Sqe, data: Vec<u8>) -> Result<Answer, Status> {
    if sqe.sgl.kind != Sgl::TRANSPORT {
        return Err(Status::INVALID_SGL_TYPE.dnr());
    }
    Ok(Answer::Data(data))
}
