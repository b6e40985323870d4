//! Sending: commands in batches, and data that the target requests.

use std::time::Instant;

use straightway_io::request::Io;
use straightway_nvme::{Pdu, RunningDigest, pdu::Data};
use straightway_sys::uring::sockets::Payload;

use super::{
    NvmeEngine, Object,
    queue::{OutgoingPayload, Queue},
};

/// The key of a ring operation: twice the queue's number, plus one for sends.
pub(super) fn key(queue: u32, is_send: bool) -> u32 {
    2 * queue + u32::from(is_send)
}

impl NvmeEngine {
    /// Starts the next send, unless one is in progress.
    pub(super) fn send(&mut self, number: u32, now: Instant) {
        let Some(queue) = self.queues.get(number) else {
            return;
        };
        if queue.sending.is_some() || queue.ending.is_some() {
            return;
        }
        if !queue.transfers.is_empty() {
            return self.send_data(number, now);
        }
        let queue = &mut self.queues[number];
        if queue.outbox.is_empty() {
            return;
        }
        match queue.socket.send_now(&queue.outbox) {
            Ok(sent) if sent == queue.outbox.len() => queue.outbox.clear(),
            Ok(sent) => {
                let bytes = swap_outbox(queue);
                self.begin_send(number, Payload::Send { bytes, from: sent }, now);
            }
            Err(error) => self.give_up(number, &format!("sending failed: {error}"), now),
        }
    }

    /// Sends waiting commands, followed by the next requested data PDU.
    fn send_data(&mut self, number: u32, now: Instant) {
        let queue = &mut self.queues[number];
        let transfer = queue.transfers.front_mut().expect("it was looked at");
        let bytes = (transfer.end - transfer.at).min(queue.host_data_bytes_max);
        let command = &queue.commands[transfer.slot];
        let data = Data {
            cid: command.cid,
            tag: transfer.tag,
            offset: u32::try_from(transfer.at).expect("commands are short"),
            bytes: u32::try_from(bytes).expect("commands are short"),
            is_last: transfer.at + bytes == transfer.end,
            is_success: false,
        };
        let start = command.start + transfer.at;
        let (slot, request) = (transfer.slot, command.request);
        transfer.at += bytes;
        if transfer.at == transfer.end {
            queue.transfers.pop_front();
        }
        queue.framing.encode(&Pdu::HostData(data), bytes, &mut queue.outbox);
        let has_digest = queue.framing.has_data_digest();
        let io = self.requests[request].io.take();
        let io = io.expect("a write is with the ring for one PDU at a time");
        let digest = has_digest.then(|| self.digest_of(&io, start, bytes));
        let queue = &mut self.queues[number];
        queue.outgoing = Some(OutgoingPayload { slot, bytes, digest });
        let payload = Payload::SpillAfter {
            bytes: swap_outbox(queue),
            from: 0,
            io,
            spill: start..start + bytes,
        };
        self.begin_send(number, payload, now);
    }

    fn begin_send(&mut self, number: u32, payload: Payload<Object>, now: Instant) {
        let queue = &mut self.queues[number];
        match self.ring.begin(key(number, true), &queue.socket, payload) {
            Ok(operation) => queue.sending = Some(operation),
            Err(payload) => {
                self.restore_sent(number, payload);
                self.give_up(number, "the kernel takes no more operations", now);
            }
        }
    }

    /// Returns the buffers of a send.
    pub(super) fn restore_sent(&mut self, number: u32, payload: Payload<Object>) {
        let queue = &mut self.queues[number];
        match payload {
            Payload::Send { bytes, .. } => keep_spare(queue, bytes),
            Payload::SpillAfter { bytes, io, .. } => {
                keep_spare(queue, bytes);
                let outgoing = queue.outgoing.as_ref().expect("it was begun with data");
                let request = queue.commands[outgoing.slot].request;
                self.requests[request].io = Some(io);
            }
            _ => unreachable!("it was begun as a send"),
        }
    }

    /// Continues after `moved` bytes were sent.
    pub(super) fn sent(&mut self, number: u32, payload: Payload<Object>, moved: usize, now: Instant) {
        let rest = match payload {
            Payload::Send { bytes, from } if from + moved < bytes.len() => Payload::Send {
                bytes,
                from: from + moved,
            },
            Payload::SpillAfter { bytes, from, io, spill } if moved < bytes.len() - from + spill.len() => {
                let head = moved.min(bytes.len() - from);
                Payload::SpillAfter {
                    from: from + head,
                    spill: spill.start + moved - head..spill.end,
                    bytes,
                    io,
                }
            }
            whole => {
                self.restore_sent(number, whole);
                return self.sent_whole(number, now);
            }
        };
        if moved == 0 {
            self.restore_sent(number, rest);
            return self.give_up(number, "the connection accepts no more bytes", now);
        }
        self.begin_send(number, rest, now);
    }

    /// Finishes a send. A digest may follow, and a completion that arrived meanwhile is processed now.
    fn sent_whole(&mut self, number: u32, now: Instant) {
        let queue = &mut self.queues[number];
        let Some(outgoing) = queue.outgoing.take() else {
            return;
        };
        if let Some(digest) = outgoing.digest {
            queue.outbox.splice(0..0, digest.to_le_bytes());
        }
        let slot = outgoing.slot;
        let command = &mut queue.commands[slot];
        command.moved += outgoing.bytes;
        let is_more = queue.transfers.iter().any(|t| t.slot == slot);
        let command = &mut queue.commands[slot];
        command.is_asked = is_more;
        if let Some(cqe) = command.answer.take() {
            self.answered(number, slot, cqe, now);
        }
    }

    /// The digest of a part of an I/O's memory.
    pub(super) fn digest_of(&mut self, io: &Io, start: usize, bytes: usize) -> u32 {
        let mut running = RunningDigest::new();
        let mut at = start;
        while at < start + bytes {
            let length = (start + bytes - at).min(self.scratch.len());
            io.spill_from(at, &mut self.scratch[..length]);
            running.update(&self.scratch[..length]);
            at += length;
        }
        running.value()
    }
}

/// Takes the send buffer and replaces it by the spare one.
fn swap_outbox(queue: &mut Queue) -> Vec<u8> {
    let spare = std::mem::take(&mut queue.spare);
    std::mem::replace(&mut queue.outbox, spare)
}

fn keep_spare(queue: &mut Queue, mut bytes: Vec<u8>) {
    bytes.clear();
    queue.spare = bytes;
}
