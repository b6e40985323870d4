//! Injection of faults.

use std::{io::Write, time::Duration};

use straightway_nvme::{
    Pdu, Sqe, Status,
    nvm::Nvm,
    pdu::{Data, FatalStatus, Ready, TermReq},
};

use super::{Connection, InjectedFault, Over};

impl Connection {
    pub(super) fn inject(&mut self, fault: InjectedFault, sqe: &Sqe, command: &Nvm) -> Result<(), Over> {
        let (cid, length) = (sqe.cid, sqe.sgl.bytes);
        let data = |offset: u32, bytes: u32| Data {
            cid,
            tag: 0,
            offset,
            bytes,
            is_last: true,
            is_success: true,
        };
        let wrong = vec![0xBA; length as usize + 4096];
        let of = |data: &Data| Pdu::ControllerData(*data);
        match fault {
            InjectedFault::ShortRead => {
                let part = data(0, length / 2);
                self.send(&of(&part), &wrong[..length as usize / 2])
            }
            InjectedFault::WrongCid => {
                let part = Data {
                    cid: cid ^ 0x4000,
                    ..data(0, length)
                };
                self.send(&of(&part), &wrong[..length as usize])
            }
            InjectedFault::Gap => {
                let part = data(512, length - 512);
                self.send(&of(&part), &wrong[..length as usize - 512])
            }
            InjectedFault::LongRead => {
                let part = data(0, length + 512);
                self.send(&of(&part), &wrong[..length as usize + 512])
            }
            InjectedFault::DataDigest | InjectedFault::HeaderDigest => {
                let part = data(0, length);
                let is_head = fault == InjectedFault::HeaderDigest;
                self.send_spoiled(&of(&part), &wrong[..length as usize], is_head, !is_head)
            }
            InjectedFault::LateAnswer => {
                let Nvm::Read(range) = command else {
                    unreachable!("it applies to reads only")
                };
                let start = (range.start << self.script.block_shift) as usize;
                let bytes = self.shared.bytes.lock().unwrap()[start..start + length as usize].to_vec();
                self.give(cid, &bytes)?;
                self.answer(cid, Status::SUCCESS, 0)
            }
            InjectedFault::ReadyBeyond | InjectedFault::ReadyForRead => {
                let ready = Ready {
                    cid,
                    tag: 1,
                    offset: 0,
                    bytes: length + u32::from(fault == InjectedFault::ReadyBeyond) * 512,
                };
                self.send(&Pdu::Ready(ready), &[])
            }
            InjectedFault::WriteWithoutData => self.answer(cid, Status::SUCCESS, 0),
            InjectedFault::HalfWrite => {
                self.ask_for(cid, length as usize / 2)?;
                self.answer(cid, Status::SUCCESS, 0)
            }
            InjectedFault::Term => {
                let term = TermReq {
                    status: FatalStatus::SEQUENCE,
                    information: 0,
                };
                self.send(&Pdu::ControllerTerm(term), &[1; 24])
            }
            InjectedFault::Close => Err(Over),
            InjectedFault::CloseInside => {
                let mut bytes = Vec::new();
                self.framing.encode(&of(&data(0, length)), length as usize, &mut bytes);
                bytes.extend(&wrong[..length as usize / 2]);
                let _ = self.stream.write_all(&bytes);
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                Err(Over)
            }
            InjectedFault::Silence => {
                std::thread::sleep(Duration::from_hours(1));
                Err(Over)
            }
            InjectedFault::Interrupted => self.answer(cid, Status::INTERRUPTED, 0),
            InjectedFault::Protected => self.answer(cid, Status::WRITE_PROTECTED.dnr(), 0),
            InjectedFault::Media => self.answer(cid, Status::READ_ERROR.dnr(), 0),
            InjectedFault::Path => self.answer(cid, Status::PATH_INTERNAL, 0),
            InjectedFault::Garbage => self.stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").map_err(|_| Over),
        }
    }
}
