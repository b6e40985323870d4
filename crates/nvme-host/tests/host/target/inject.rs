//! The lies.

use std::{io::Write, time::Duration};

use straightway_nvme::{
    Pdu, Sqe, Status,
    nvm::Nvm,
    pdu::{Data, FatalStatus, Ready, TermReq},
};

use super::{Connection, Lie, Over};

impl Connection {
    pub(super) fn tell(&mut self, lie: Lie, sqe: &Sqe, command: &Nvm) -> Result<(), Over> {
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
        match lie {
            Lie::ShortRead => {
                let part = data(0, length / 2);
                self.send(&of(&part), &wrong[..length as usize / 2])
            }
            Lie::WrongCid => {
                let part = Data {
                    cid: cid ^ 0x4000,
                    ..data(0, length)
                };
                self.send(&of(&part), &wrong[..length as usize])
            }
            Lie::Gap => {
                let part = data(512, length - 512);
                self.send(&of(&part), &wrong[..length as usize - 512])
            }
            Lie::LongRead => {
                let part = data(0, length + 512);
                self.send(&of(&part), &wrong[..length as usize + 512])
            }
            Lie::DataDigest | Lie::HeaderDigest => {
                let part = data(0, length);
                let is_head = lie == Lie::HeaderDigest;
                self.send_spoiled(&of(&part), &wrong[..length as usize], is_head, !is_head)
            }
            Lie::LateAnswer => {
                let Nvm::Read(range) = command else {
                    unreachable!("it is told of reads")
                };
                let start = (range.start << self.script.block_shift) as usize;
                let bytes =
                    self.shared.bytes.lock().unwrap()[start..start + length as usize].to_vec();
                self.give(cid, &bytes)?;
                self.answer(cid, Status::SUCCESS, 0)
            }
            Lie::ReadyBeyond | Lie::ReadyForRead => {
                let ready = Ready {
                    cid,
                    tag: 1,
                    offset: 0,
                    bytes: length + u32::from(lie == Lie::ReadyBeyond) * 512,
                };
                self.send(&Pdu::Ready(ready), &[])
            }
            Lie::WriteWithoutData => self.answer(cid, Status::SUCCESS, 0),
            Lie::Term => {
                let term = TermReq {
                    status: FatalStatus::SEQUENCE,
                    information: 0,
                };
                self.send(&Pdu::ControllerTerm(term), &[1; 24])
            }
            Lie::Close => Err(Over),
            Lie::CloseInside => {
                let mut bytes = Vec::new();
                self.framing
                    .encode(&of(&data(0, length)), length as usize, &mut bytes);
                bytes.extend(&wrong[..length as usize / 2]);
                let _ = self.stream.write_all(&bytes);
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                Err(Over)
            }
            Lie::Silence => {
                std::thread::sleep(Duration::from_hours(1));
                Err(Over)
            }
            Lie::Interrupted => self.answer(cid, Status::INTERRUPTED, 0),
            Lie::Protected => self.answer(cid, Status::WRITE_PROTECTED.dnr(), 0),
            Lie::Media => self.answer(cid, Status::READ_ERROR.dnr(), 0),
            Lie::Path => self.answer(cid, Status::PATH_INTERNAL, 0),
            Lie::Garbage => self
                .stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
                .map_err(|_| Over),
        }
    }
}
