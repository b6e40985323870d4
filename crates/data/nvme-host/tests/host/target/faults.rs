//! Injection of faults: PDUs that the relay forges in place of the target's.

use std::sync::atomic::Ordering;

use straightway_lab::{Exits, Passing, Way};
use straightway_nvme::{
    Pdu, Sqe, Status,
    nvm::Nvm,
    pdu::{Data, FatalStatus, Ready, TermReq},
};

use super::{
    InjectedFault, Shared,
    changes::{Changes, Held, answer},
};

impl Shared {
    /// The fault to inject into this command.
    pub(super) fn fault_for(&self, command: &Nvm) -> Option<InjectedFault> {
        let mut slot = self.fault.lock().unwrap();
        let (fault, left) = slot.as_mut().filter(|(_, left)| *left > 0)?;
        let fits = match fault {
            InjectedFault::ReadyBeyond
            | InjectedFault::WriteWithoutData
            | InjectedFault::HalfWrite
            | InjectedFault::Protected => matches!(command, Nvm::Write { .. }),
            InjectedFault::Term
            | InjectedFault::Close
            | InjectedFault::Silence
            | InjectedFault::Interrupted
            | InjectedFault::Garbage
            | InjectedFault::Path => true,
            _ => matches!(command, Nvm::Read(_)),
        };
        if !fits {
            return None;
        }
        *left -= 1;
        self.injected.fetch_add(1, Ordering::SeqCst);
        Some(*fault)
    }
}

impl Changes {
    pub(super) fn inject(&mut self, fault: InjectedFault, sqe: &Sqe, passing: &Passing, exits: &mut Exits) {
        let (cid, length) = (sqe.cid, sqe.sgl.bytes);
        let wrong = vec![0xBA; length as usize + 512];
        // Data with success.
        let data = |cid: u16, offset: u32, bytes: u32| {
            let data = Data {
                cid,
                tag: 0,
                offset,
                bytes,
                is_last: true,
                is_success: true,
            };
            (Pdu::ControllerData(data), &wrong[..bytes as usize])
        };
        let mut send = |(pdu, data): (Pdu, &[u8])| exits.send(Way::ToHost, &pdu, data);
        let ready = |bytes: u32| {
            let ready = Ready {
                cid,
                tag: 1,
                offset: 0,
                bytes,
            };
            (Pdu::Ready(ready), &[][..])
        };
        match fault {
            InjectedFault::ShortRead => send(data(cid, 0, length / 2)),
            InjectedFault::WrongCid => send(data(cid ^ 0x4000, 0, length)),
            InjectedFault::Gap => send(data(cid, 512, length - 512)),
            InjectedFault::LongRead => send(data(cid, 0, length + 512)),
            InjectedFault::DataDigest | InjectedFault::HeaderDigest => {
                let (pdu, data) = data(cid, 0, length);
                let mut bytes = exits.encode(Way::ToHost, &pdu, data);
                let last = bytes.len() - 1;
                bytes[if fault == InjectedFault::HeaderDigest { 24 } else { last }] ^= 1;
                exits.write(Way::ToHost, bytes);
            }
            InjectedFault::LateAnswer => {
                self.held.insert((passing.connection, cid), Held::Twice);
                exits.pass(passing);
            }
            InjectedFault::ReadyBeyond => send(ready(length + 512)),
            InjectedFault::ReadyForRead => send(ready(length)),
            InjectedFault::WriteWithoutData => answer(exits, cid, Status::SUCCESS, 0),
            InjectedFault::HalfWrite => {
                send(ready(length / 2));
                self.held.insert((passing.connection, cid), Held::Swallowed);
            }
            InjectedFault::Term => {
                let term = TermReq {
                    status: FatalStatus::SEQUENCE,
                    information: 0,
                };
                exits.send(Way::ToHost, &Pdu::ControllerTerm(term), &[1; 24]);
            }
            InjectedFault::Close => exits.close(),
            InjectedFault::CloseInside => {
                let (pdu, data) = data(cid, 0, length);
                let mut bytes = exits.encode(Way::ToHost, &pdu, data);
                bytes.truncate(bytes.len() - length as usize / 2);
                exits.write(Way::ToHost, bytes);
                exits.close();
            }
            InjectedFault::Silence => exits.mute(),
            InjectedFault::Interrupted => answer(exits, cid, Status::INTERRUPTED, 0),
            InjectedFault::Protected => answer(exits, cid, Status::WRITE_PROTECTED.dnr(), 0),
            InjectedFault::Media => answer(exits, cid, Status::READ_ERROR.dnr(), 0),
            InjectedFault::Path => answer(exits, cid, Status::PATH_INTERNAL, 0),
            InjectedFault::Garbage => exits.write(Way::ToHost, b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
        }
    }
}
