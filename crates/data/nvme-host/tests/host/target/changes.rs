//! The rule of the relay: it shows the host what the script says.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use straightway_lab::{Exits, Passing, Way};
use straightway_nvme::{
    Cqe, Pdu, Sgl, Sqe, Status,
    admin::{Admin, AsyncEvent, Feature, GetLog, QueueCounts},
    fabrics::{self, Connected, ControllerCapabilities, Fabrics, Property},
    identify::{self, NamespaceId, page},
    index::{INDEX_HEADER_BYTES, INDEX_PAGE},
    nvm::Nvm,
    pdu::{Data, Ready},
};

use super::{Script, Shared};

/// The maximum in-capsule data that the target accepts.
const CAPSULE_BYTES_MAX: usize = 16 << 10;

/// The fields of a read of the name index.
pub(super) fn index_read(sqe: &Sqe) -> Option<GetLog> {
    match Admin::from_sqe(sqe) {
        Ok(Admin::GetLog(log)) if sqe.opcode != fabrics::OPCODE && log.page == INDEX_PAGE => Some(log),
        _ => None,
    }
}

/// A command of which the relay holds something back.
#[derive(Debug)]
pub(super) enum Held {
    /// In-capsule data that is longer than the target accepts. It is sent after the R2T.
    Capsule(Vec<u8>),
    /// The second half of an R2T, which is sent after the data of the first.
    SecondHalf(Ready),
    /// The data of a write that never reaches the target.
    Swallowed,
    /// A read that is completed twice.
    Twice,
}

/// The rule of the relay.
#[derive(Debug)]
pub(super) struct Changes {
    shared: Arc<Shared>,
    /// By connection and command identifier.
    pub(super) held: HashMap<(usize, u16), Held>,
}

/// Completes a command.
pub(super) fn answer(exits: &mut Exits, cid: u16, status: Status, result: u64) {
    let cqe = Cqe {
        result,
        ..Cqe::new(cid, status)
    };
    exits.send(Way::ToHost, &Pdu::Response(cqe), &[]);
}

impl Changes {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            held: HashMap::new(),
        }
    }

    pub(super) fn handle(&mut self, mut passing: Passing, exits: &mut Exits) {
        let script = self.shared.script.lock().unwrap().clone();
        match passing.pdu {
            Pdu::Command(sqe) if sqe.opcode == fabrics::OPCODE => {
                let is_connect = matches!(Fabrics::from_sqe(&sqe), Ok(Fabrics::Connect(_)));
                if is_connect && passing.queue > 0 && script.cuts_queues {
                    return exits.close();
                }
                exits.pass(&passing);
            }
            Pdu::Command(sqe) if passing.queue == 0 => self.admin(&sqe, &passing, &script, exits),
            Pdu::Command(sqe) => self.io(sqe, passing, &script, exits),
            Pdu::HostData(data) => self.host_data(data, &passing, exits),
            Pdu::IcResp(mut response) => {
                response.digests = script.digests.unwrap_or(response.digests);
                response.data_bytes_max = script.host_data_bytes_max.unwrap_or(response.data_bytes_max);
                passing.pdu = Pdu::IcResp(response);
                exits.pass(&passing);
            }
            Pdu::Response(cqe) => {
                let changed = passing
                    .command
                    .and_then(|sqe| completion(&sqe, cqe, passing.queue, &script));
                passing.pdu = Pdu::Response(changed.unwrap_or(cqe));
                exits.pass(&passing);
            }
            Pdu::ControllerData(data) => {
                if let Some(sqe) = passing.command.filter(|_| passing.queue == 0) {
                    change_page(&sqe, &mut passing.data, &script);
                }
                self.give(data, &passing, &script, exits);
            }
            Pdu::Ready(ready) => self.ready(ready, &passing, exits),
            _ => exits.pass(&passing),
        }
    }

    fn admin(&self, sqe: &Sqe, passing: &Passing, script: &Script, exits: &mut Exits) {
        match Admin::from_sqe(sqe) {
            Ok(Admin::Identify(what)) if what.page == page::NAMESPACE && script.hides_namespaces => {}
            Ok(Admin::EventRequest) if script.storms => {
                answer(exits, sqe.cid, Status::SUCCESS, AsyncEvent::NAMESPACES.to_result());
            }
            Ok(Admin::GetLog(log)) if log.page == INDEX_PAGE && !script.has_index => {
                answer(exits, sqe.cid, Status::INVALID_LOG_PAGE.dnr(), 0);
            }
            Ok(Admin::GetLog(log)) if log.page == INDEX_PAGE && take_one(&self.shared.refusals) => {
                answer(exits, sqe.cid, Status::INTERRUPTED, 0);
            }
            _ => exits.pass(passing),
        }
    }

    fn io(&mut self, sqe: Sqe, mut passing: Passing, script: &Script, exits: &mut Exits) {
        let command = Nvm::from_sqe(&sqe).unwrap();
        if let Some(fault) = self.shared.fault_for(&command) {
            return self.inject(fault, &sqe, &passing, exits);
        }
        if command == Nvm::Flush {
            exits.delay(script.flush_time);
        }
        if passing.data.len() > CAPSULE_BYTES_MAX {
            let bytes = u32::try_from(passing.data.len()).unwrap();
            let data = std::mem::take(&mut passing.data);
            self.held.insert((passing.connection, sqe.cid), Held::Capsule(data));
            passing.pdu = Pdu::Command(sqe.with_sgl(Sgl::transport(bytes)));
        }
        exits.pass(&passing);
    }

    /// Sends an R2T on in two halves, which is permitted. One for data that the relay holds is served.
    fn ready(&mut self, ready: Ready, passing: &Passing, exits: &mut Exits) {
        let key = (passing.connection, ready.cid);
        if let Some(Held::Capsule(bytes)) = self.held.remove(&key) {
            let step = 128 << 10;
            for (number, part) in bytes.chunks(step).enumerate() {
                let data = Data {
                    cid: ready.cid,
                    tag: ready.tag,
                    offset: (number * step) as u32,
                    bytes: part.len() as u32,
                    is_last: number * step + part.len() == bytes.len(),
                    is_success: false,
                };
                exits.send(Way::ToTarget, &Pdu::HostData(data), part);
            }
            return;
        }
        let first = (ready.bytes / 2 + 1).next_multiple_of(4).min(ready.bytes);
        let half = |offset, bytes| Ready { offset, bytes, ..ready };
        exits.send(Way::ToHost, &Pdu::Ready(half(ready.offset, first)), &[]);
        if first < ready.bytes {
            let second = half(ready.offset + first, ready.bytes - first);
            self.held.insert(key, Held::SecondHalf(second));
        }
    }

    fn host_data(&mut self, mut data: Data, passing: &Passing, exits: &mut Exits) {
        let key = (passing.connection, data.cid);
        match self.held.get(&key) {
            Some(Held::Swallowed) => {
                if data.is_last {
                    self.held.remove(&key);
                    answer(exits, data.cid, Status::SUCCESS, 0);
                }
                return;
            }
            Some(Held::SecondHalf(second)) if data.is_last => {
                data.is_last = false;
                exits.send(Way::ToTarget, &Pdu::HostData(data), &passing.data);
                exits.send(Way::ToHost, &Pdu::Ready(*second), &[]);
                self.held.remove(&key);
                return;
            }
            _ => {}
        }
        exits.pass(passing);
    }

    /// Sends data of the target on, in pieces and without the success flag if the script says so.
    fn give(&mut self, data: Data, passing: &Passing, script: &Script, exits: &mut Exits) {
        let is_done = data.is_success;
        let is_twice = is_done && self.held.remove(&(passing.connection, data.cid)).is_some();
        let answers = usize::from(is_twice) + usize::from(is_done && !script.has_success);
        let pieces = passing.data.len().div_ceil(script.data_bytes_max);
        for (number, part) in passing.data.chunks(script.data_bytes_max).enumerate() {
            let is_last = data.is_last && number + 1 == pieces;
            let piece = Data {
                offset: data.offset + (number * script.data_bytes_max) as u32,
                bytes: part.len() as u32,
                is_last,
                is_success: is_last && is_done && script.has_success,
                ..data
            };
            exits.send(Way::ToHost, &Pdu::ControllerData(piece), part);
        }
        for _ in 0..answers {
            answer(exits, data.cid, Status::SUCCESS, 0);
        }
    }
}

/// Counts down. Returns false at zero.
fn take_one(left: &AtomicU32) -> bool {
    let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    taken.is_ok()
}

/// The completion that the script shows instead of the target's.
fn completion(sqe: &Sqe, cqe: Cqe, queue: u16, script: &Script) -> Option<Cqe> {
    let with = |result: u64| Cqe { result, ..cqe };
    if sqe.opcode == fabrics::OPCODE {
        return match Fabrics::from_sqe(sqe).ok()? {
            Fabrics::Connect(_) if script.needs_auth => {
                let connected = Connected {
                    needs_auth: true,
                    ..Connected::from_result(cqe.result)
                };
                Some(with(connected.to_result()))
            }
            Fabrics::PropertyGet { property } if property == Property::CAP => {
                let entries = script.entries?;
                Some(with(ControllerCapabilities::new(entries, 15).0))
            }
            _ => None,
        };
    }
    if queue > 0 {
        let status = script.flush_status.filter(|_| Nvm::from_sqe(sqe) == Ok(Nvm::Flush))?;
        return Some(Cqe { status, ..cqe });
    }
    match Admin::from_sqe(sqe).ok()? {
        Admin::SetFeatures { feature, .. } if feature == Feature::QUEUES => {
            Some(with(QueueCounts::both(script.queues?).to_value().into()))
        }
        _ => None,
    }
}

/// Changes a page of the target.
fn change_page(sqe: &Sqe, page: &mut Vec<u8>, script: &Script) {
    if let Some(log) = index_read(sqe) {
        return change_index(&log, page, script);
    }
    let Ok(Admin::Identify(what)) = Admin::from_sqe(sqe) else {
        return;
    };
    match what.page {
        page::CONTROLLER => {
            let mut controller = identify::Controller::decode(page).unwrap();
            controller.transfer_shift = script.transfer_shift.unwrap_or(controller.transfer_shift);
            controller.ana_transition_s = script.transition_s.unwrap_or(controller.ana_transition_s);
            if let Some(bytes) = script.capsule_bytes {
                controller.command_capsule_16 = bytes / 16 + 4;
            }
            *page = controller.encode();
        }
        page::NAMESPACE if page.iter().any(|byte| *byte > 0) => {
            let mut namespace = identify::Namespace::decode(page).unwrap();
            if script.block_shift > 12 {
                let bytes = namespace.bytes().unwrap();
                namespace = identify::Namespace::new(bytes >> script.block_shift, script.block_shift);
            }
            if script.uuid.is_some() {
                namespace.nguid = [0; 16];
            }
            *page = namespace.encode();
        }
        page::DESCRIPTORS if script.uuid.is_some() => {
            let id = NamespaceId {
                uuid: script.uuid,
                ..NamespaceId::default()
            };
            *page = id.encode();
        }
        _ => {}
    }
}

/// Changes the boot and the versions in a part of the name index, which begins with the header or with an entry.
fn change_index(log: &GetLog, part: &mut [u8], script: &Script) {
    let mut rest = part;
    if log.offset == 0 {
        let (header, entries) = rest.split_at_mut(INDEX_HEADER_BYTES);
        if let Some(boot) = script.boot {
            header[32..40].copy_from_slice(&boot.to_le_bytes());
        }
        rest = entries;
    }
    while rest.len() >= 32 {
        let name_bytes = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
        if let Some(version) = script.version {
            rest[16..24].copy_from_slice(&version.to_le_bytes());
        }
        let entry_bytes = (32 + name_bytes.next_multiple_of(4)).min(rest.len());
        rest = &mut rest[entry_bytes..];
    }
}
