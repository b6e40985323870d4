//! An I/O queue: reads, writes, flushes, Write Zeroes and discards, executed in order of arrival.
//!
//! A write without in-capsule data gets one R2T for all its data. Each piece is written as it arrives. An outstanding
//! write therefore costs only a table entry, and all data goes through one buffer.

use std::sync::{Arc, atomic::Ordering};

use straightway_nvme::{
    DIGEST_BYTES, Fault, Frame, Pdu, Sgl, Sqe, Status,
    admin::ALL_NAMESPACES,
    digest,
    entry::FLAGS_SGL,
    fabrics::{self, Fabrics},
    log::AnaState,
    nvm::{DATASET_RANGE_BYTES, LbaRange, Nvm},
    pdu::{Data, FatalStatus, Ready},
};

use crate::{
    admin::QueueHead,
    authentication::{Authentication, is_authentication},
    connection::{Arrived, Connection, HOST_DATA_BYTES_MAX, sequence},
    controller::Controller,
    durability::Reports,
    end::End,
    fence::Fence,
    host::add,
    login::Login,
    namespace::Namespace,
    pending::{DATASET_BYTES_MAX, Pending, Purpose, discard, extent, written},
    sender::Read,
    state::Shared,
    table::Table,
};

/// Reads of at least this size are prefetched before they are sent.
const PREFETCH_BYTES_MIN: usize = 64 << 10;

/// The state of an I/O queue.
#[derive(Debug)]
pub(crate) struct IoQueue<'a> {
    shared: &'a Shared,
    controller: Arc<Controller>,
    fence: Arc<Fence>,
    authentication: Authentication,
    connection: &'a mut Connection,
    table: Arc<Table>,
    head: QueueHead,
    entries: usize,
    /// Whether flow control is disabled: a read may end without a completion.
    is_uncontrolled: bool,
    /// Writes that wait for data, indexed by their transfer tag.
    pending: Vec<Option<Pending>>,
    /// The buffer for data of writes.
    data: Vec<u8>,
    reports: Reports,
}

impl<'a> IoQueue<'a> {
    pub(crate) fn new(shared: &'a Shared, login: &Login, connection: &'a mut Connection) -> Self {
        let connect = login.connect;
        Self {
            shared,
            controller: login.controller.clone(),
            fence: login.fence.clone(),
            authentication: Authentication::new(shared, login),
            connection,
            table: shared.table(),
            head: QueueHead::new(connect.size, connect.is_uncontrolled),
            entries: usize::from(connect.size) + 1,
            is_uncontrolled: connect.is_uncontrolled,
            pending: Vec::new(),
            data: Vec::new(),
            reports: Reports::default(),
        }
    }

    /// Completes Connect, then executes commands until the end.
    pub(crate) fn run(&mut self, login: &Login) -> End {
        let result = login.answer.to_result();
        self.complete(login.sqe.cid, Status::SUCCESS, result);
        self.connection.deadline = self.authentication.deadline();
        loop {
            if let Err(end) = self.step() {
                return end;
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        match self.connection.next(None)? {
            Arrived::Frame(frame) => {
                self.check_alive()?;
                match frame.pdu {
                    Pdu::Command(sqe) => self.command(&sqe, &frame),
                    Pdu::HostData(data) => self.host_data(data, &frame),
                    Pdu::HostTerm(term) => {
                        tracing::warn!("host {}: {}", self.controller.identity.nqn, term.status);
                        Err(End::Closed)
                    }
                    _ => Err(sequence("a second ICReq")),
                }
            }
            _ if self.shared.is_over.load(Ordering::Relaxed) => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// Fails if the association has ended: the buffer may have commands that arrived before. Otherwise restarts the
    /// keep-alive timer.
    fn check_alive(&self) -> Result<(), End> {
        if self.fence.is_closed() || self.controller.is_expired() {
            return Err(End::Closed);
        }
        if self.authentication.is_trusted() {
            self.controller.mark_alive();
        }
        Ok(())
    }

    fn complete(&mut self, cid: u16, status: Status, result: u64) {
        if !status.is_success() {
            add(&self.controller.host.counters.errors, 1);
        }
        let cqe = self.head.complete(cid, status, result);
        self.connection.sender.response(cqe);
    }

    fn command(&mut self, sqe: &Sqe, frame: &Frame) -> Result<(), End> {
        if self.connection.sender.is_empty() {
            self.reports.acknowledge(&self.controller.identity);
        }
        let done = self.execute(sqe, frame)?;
        self.connection.receiver.consume(frame.total_bytes());
        if let Some(status) = done {
            self.complete(sqe.cid, status, 0);
        }
        Ok(())
    }

    /// Executes a command. `None` if it is completed already or later.
    fn execute(&mut self, sqe: &Sqe, frame: &Frame) -> Result<Option<Status>, End> {
        if sqe.flags != FLAGS_SGL {
            return Ok(Some(Status::INVALID_FIELD.dnr()));
        }
        if sqe.opcode == fabrics::OPCODE {
            return self.fabrics(sqe, frame);
        }
        if !self.authentication.is_trusted() {
            return Ok(Some(Status::AUTH_REQUIRED.dnr()));
        }
        // In-capsule data must match the command's SGL.
        if frame.data_bytes > 0 && !sqe.sgl.is_in_capsule() {
            return Ok(Some(Status::INVALID_SGL_TYPE.dnr()));
        }
        let command = match Nvm::from_sqe(sqe) {
            Ok(command) => command,
            Err(status) => return Ok(Some(status)),
        };
        if !self.shared.is_newest(&self.table) {
            self.table = self.shared.table();
        }
        if matches!(command, Nvm::Flush) && sqe.nsid == ALL_NAMESPACES {
            return Ok(Some(self.flush_all()));
        }
        let namespace = match self.namespace(sqe.nsid) {
            Ok(namespace) => namespace,
            Err(status) => return Ok(Some(status)),
        };
        match command {
            Nvm::Read(range) => self.read(sqe, &namespace, range),
            Nvm::Write { range, is_durable } => self.write(sqe, frame, namespace, range, is_durable),
            Nvm::Dataset { ranges, deallocates } => self.dataset(sqe, frame, namespace, ranges, deallocates),
            Nvm::Flush => {
                add(&self.controller.host.counters.other_commands, 1);
                let host = &self.controller.identity;
                Ok(Some(self.reports.sync(&namespace, host)))
            }
            Nvm::WriteZeroes {
                range,
                may_deallocate,
                is_durable,
            } => {
                let status = self.zero(&namespace, range, may_deallocate, is_durable)?;
                Ok(Some(status))
            }
            Nvm::Compare(_) | Nvm::Verify(_) => Ok(Some(Status::INVALID_OPCODE.dnr())),
        }
    }

    /// Executes a fabrics command. An I/O queue has only those of authentication.
    fn fabrics(&mut self, sqe: &Sqe, frame: &Frame) -> Result<Option<Status>, End> {
        let command = match Fabrics::from_sqe(sqe) {
            Ok(command) if is_authentication(command) => command,
            _ if self.authentication.is_trusted() => return Ok(Some(Status::INVALID_FIELD.dnr())),
            _ => return Ok(Some(Status::AUTH_REQUIRED.dnr())),
        };
        let data = self.connection.capsule_data(frame);
        let done = self.authentication.execute(command, sqe, data);
        self.connection.deadline = self.authentication.deadline();
        Ok(Some(match done {
            Ok(None) => Status::SUCCESS,
            Ok(Some(message)) => {
                let bytes = message.len();
                self.connection.sender.page(sqe.cid, &message, bytes)?;
                Status::SUCCESS
            }
            Err(status) => status,
        }))
    }

    fn namespace(&self, nsid: u32) -> Result<Arc<Namespace>, Status> {
        let namespace = self.table.namespaces.get(&nsid);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        match self.shared.ports[self.controller.port].state(namespace.ana_group) {
            AnaState::Optimized | AnaState::NonOptimized => Ok(Arc::clone(namespace)),
            AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            AnaState::Lost => Err(Status::ANA_LOST),
            AnaState::Change => Err(Status::ANA_TRANSITION),
        }
    }

    fn read(&mut self, sqe: &Sqe, namespace: &Namespace, range: LbaRange) -> Result<Option<Status>, End> {
        let (offset, bytes) = match extent(namespace, range) {
            Ok(extent) => extent,
            Err(status) => return Ok(Some(status)),
        };
        if sqe.sgl.kind != Sgl::TRANSPORT {
            return Ok(Some(Status::INVALID_SGL_TYPE.dnr()));
        }
        if sqe.sgl.bytes != bytes {
            return Ok(Some(Status::SGL_DATA_LENGTH.dnr()));
        }
        let host = self.controller.host.clone();
        // Held while the data is sent, so that shares apply if the network is the bottleneck. The gate does not wait
        // for a pass whose host reads too slowly.
        let _pass = host.turn(u64::from(bytes));
        if bytes as usize >= PREFETCH_BYTES_MIN {
            namespace.backing.prefetch(offset, bytes as usize);
        }
        let sent = self.connection.sender.read(Read {
            cid: sqe.cid,
            backing: &namespace.backing,
            offset,
            bytes: bytes as usize,
            is_success: self.is_uncontrolled,
        })?;
        add(&host.counters.reads, 1);
        match sent {
            Ok(()) => {
                add(&host.counters.read_bytes, u64::from(bytes));
                // The success flag in the last data PDU replaces the completion.
                Ok((!self.is_uncontrolled).then_some(Status::SUCCESS))
            }
            Err(error) => {
                tracing::error!("cannot read namespace {}: {error}", namespace.nsid);
                Ok(Some(Status::READ_ERROR))
            }
        }
    }

    fn write(
        &mut self,
        sqe: &Sqe,
        frame: &Frame,
        namespace: Arc<Namespace>,
        range: LbaRange,
        is_durable: bool,
    ) -> Result<Option<Status>, End> {
        if !namespace.backing.is_writable {
            return Ok(Some(Status::WRITE_PROTECTED.dnr()));
        }
        let (offset, bytes) = match extent(&namespace, range) {
            Ok(extent) => extent,
            Err(status) => return Ok(Some(status)),
        };
        let purpose = Purpose::Write { offset, is_durable };
        self.take_data(sqe, frame, namespace, purpose, bytes)
    }

    fn dataset(
        &mut self,
        sqe: &Sqe,
        frame: &Frame,
        namespace: Arc<Namespace>,
        ranges: u16,
        deallocates: bool,
    ) -> Result<Option<Status>, End> {
        if !namespace.backing.is_writable {
            return Ok(Some(Status::WRITE_PROTECTED.dnr()));
        }
        // Linux sends a buffer for 256 ranges, however many it uses.
        let used_bytes = usize::from(ranges) * DATASET_RANGE_BYTES;
        let bytes = sqe.sgl.bytes;
        if !(used_bytes..=DATASET_BYTES_MAX).contains(&(bytes as usize)) {
            return Ok(Some(Status::SGL_DATA_LENGTH.dnr()));
        }
        let purpose = Purpose::Dataset {
            ranges: Vec::new(),
            used_bytes,
            deallocates,
        };
        self.take_data(sqe, frame, namespace, purpose, bytes)
    }

    /// Uses in-capsule data, or requests the data with an R2T.
    fn take_data(
        &mut self,
        sqe: &Sqe,
        frame: &Frame,
        namespace: Arc<Namespace>,
        purpose: Purpose,
        bytes: u32,
    ) -> Result<Option<Status>, End> {
        if sqe.sgl.bytes != bytes {
            return Ok(Some(Status::SGL_DATA_LENGTH.dnr()));
        }
        let mut pending = Pending {
            cid: sqe.cid,
            namespace,
            purpose,
            bytes,
            received: 0,
            failed: None,
        };
        match sqe.sgl.kind {
            Sgl::IN_CAPSULE if sqe.sgl.address != 0 => Ok(Some(Status::SGL_OFFSET.dnr())),
            Sgl::IN_CAPSULE if frame.data_bytes != bytes as usize => Ok(Some(Status::SGL_DATA_LENGTH.dnr())),
            Sgl::IN_CAPSULE => {
                match self.connection.capsule_data(frame) {
                    Ok(data) => {
                        let _pass = self.controller.host.turn(u64::from(bytes));
                        let _open = self.fence.enter()?;
                        pending.take(data, &self.controller.identity);
                    }
                    Err(status) => pending.failed = Some(status),
                }
                Ok(Some(self.finish(&pending)?))
            }
            Sgl::TRANSPORT => {
                self.ask(pending)?;
                Ok(None)
            }
            _ => Ok(Some(Status::INVALID_SGL_TYPE.dnr())),
        }
    }

    /// Sends an R2T for all data of a command.
    fn ask(&mut self, pending: Pending) -> Result<(), End> {
        let tag = match self.pending.iter().position(Option::is_none) {
            Some(tag) => tag,
            None if self.pending.len() < self.entries => {
                self.pending.push(None);
                self.pending.len() - 1
            }
            None => {
                let what = "more commands than the queue has entries";
                return Err(Fault::new(FatalStatus::LIMIT, 0, what).into());
            }
        };
        self.connection.sender.ready(Ready {
            cid: pending.cid,
            tag: u16::try_from(tag).expect("queues have at most 1024 entries"),
            offset: 0,
            bytes: pending.bytes,
        });
        self.pending[tag] = Some(pending);
        Ok(())
    }

    /// Processes a data PDU of a command.
    fn host_data(&mut self, data: Data, frame: &Frame) -> Result<(), End> {
        let tag = usize::from(data.tag);
        let pending = self.pending.get_mut(tag).and_then(Option::as_mut);
        let Some(pending) = pending else {
            return Err(Fault::field(10, "data with a tag that was not requested").into());
        };
        if pending.cid != data.cid {
            return Err(Fault::field(8, "data of a command that has another tag").into());
        }
        let end = data.offset.checked_add(data.bytes);
        if data.offset != pending.received || end.is_none_or(|end| end > pending.bytes) {
            let what = "data out of order or past the end of the command";
            return Err(Fault::new(FatalStatus::DATA_RANGE, data.offset, what).into());
        }
        let is_whole = end == Some(pending.bytes);
        if data.is_last != is_whole {
            return Err(Fault::field(1, "the last data PDU does not end the command").into());
        }
        self.connection.receiver.consume(frame.head_bytes);
        let digest_bytes = if frame.has_digest { DIGEST_BYTES } else { 0 };
        let total = frame.data_bytes + digest_bytes;
        if self.data.is_empty() {
            self.data = vec![0; HOST_DATA_BYTES_MAX as usize + DIGEST_BYTES];
        }
        let stall_timeout = self.connection.stall_timeout;
        let buffer = &mut self.data[..total];
        self.connection.receiver.take(buffer, stall_timeout)?;
        let (bytes, sum) = buffer.split_at(frame.data_bytes);
        let is_right = sum
            .first_chunk()
            .is_none_or(|sum| digest(bytes) == u32::from_le_bytes(*sum));
        if is_right && self.authentication.is_trusted() {
            let _pass = self.controller.host.turn(bytes.len() as u64);
            let _open = self.fence.enter()?;
            pending.take(bytes, &self.controller.identity);
        } else {
            pending.received += data.bytes;
            pending.failed = Some(if is_right {
                Status::AUTH_REQUIRED.dnr()
            } else {
                Status::TRANSIENT_TRANSPORT
            });
        }
        if is_whole && let Some(pending) = self.pending[tag].take() {
            let cid = pending.cid;
            let status = self.finish(&pending)?;
            self.complete(cid, status, 0);
        }
        Ok(())
    }

    /// Completes a command after all its data has arrived.
    fn finish(&mut self, pending: &Pending) -> Result<Status, End> {
        let counters = &self.controller.host.counters;
        match &pending.purpose {
            Purpose::Write { .. } => add(&counters.writes, 1),
            Purpose::Dataset { .. } => add(&counters.other_commands, 1),
        }
        if let Some(status) = pending.failed {
            return Ok(status);
        }
        Ok(match &pending.purpose {
            Purpose::Write { is_durable, .. } => {
                add(&counters.written_bytes, u64::from(pending.bytes));
                if *is_durable {
                    let host = &self.controller.identity;
                    self.reports.sync(&pending.namespace, host)
                } else {
                    Status::SUCCESS
                }
            }
            Purpose::Dataset {
                ranges,
                used_bytes,
                deallocates: true,
            } => {
                let _open = self.fence.enter()?;
                let host = &self.controller.identity;
                discard(&pending.namespace, host, &ranges[..*used_bytes])
            }
            Purpose::Dataset { .. } => Status::SUCCESS,
        })
    }

    fn zero(
        &mut self,
        namespace: &Arc<Namespace>,
        range: LbaRange,
        may_deallocate: bool,
        is_durable: bool,
    ) -> Result<Status, End> {
        add(&self.controller.host.counters.other_commands, 1);
        if !namespace.backing.is_writable {
            return Ok(Status::WRITE_PROTECTED.dnr());
        }
        if !range.is_within(namespace.backing.blocks()) {
            return Ok(Status::LBA_RANGE.dnr());
        }
        let shift = namespace.backing.block_shift;
        let (offset, bytes) = (range.start << shift, u64::from(range.blocks) << shift);
        let _pass = self.controller.host.turn(bytes);
        let done = {
            let _open = self.fence.enter()?;
            namespace.zero(&self.controller.identity, offset, bytes, may_deallocate)
        };
        Ok(match done {
            Ok(()) if is_durable => self.reports.sync(namespace, &self.controller.identity),
            other => written(other),
        })
    }

    fn flush_all(&mut self) -> Status {
        add(&self.controller.host.counters.other_commands, 1);
        let all = self.table.namespaces.values();
        let writable = all.filter(|namespace| namespace.backing.is_writable);
        self.reports.sync_all(writable, &self.controller.identity)
    }
}
