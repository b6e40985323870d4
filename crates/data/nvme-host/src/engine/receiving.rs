//! Receiving: headers, payload, completions and R2Ts.

use std::time::Instant;

use straightway_nvme::{
    Cqe, DIGEST_BYTES, Decoded, Pdu, Status,
    pdu::{Data, Frame, Ready},
};
use straightway_sys::uring::sockets::{Payload, SocketCompletion};

use super::{
    NvmeEngine, Object,
    queue::{COPIED_BYTES_MAX, IncomingPayload, Transfer},
    sending::key,
};

/// A protocol violation of the target.
type Violation = String;

impl NvmeEngine {
    /// Handles a completed ring operation.
    pub(super) fn handle_completion(&mut self, landed: SocketCompletion<Object>, now: Instant) {
        let SocketCompletion { key, payload, result } = landed;
        let number = key / 2;
        let is_send = key % 2 == 1;
        let queue = &mut self.queues[number];
        if is_send {
            queue.sending = None;
        } else {
            queue.receiving = None;
        }
        let is_ending = queue.ending.is_some();
        match (is_send, result) {
            (true, Ok(moved)) if !is_ending => return self.sent(number, payload, moved, now),
            (true, result) => {
                self.restore_sent(number, payload);
                if let (Err(error), false) = (result, is_ending) {
                    return self.give_up(number, &format!("sending failed: {error}"), now);
                }
            }
            (false, result) => {
                let moved = *result.as_ref().unwrap_or(&0);
                self.restore_received(number, payload, moved);
                match result {
                    _ if is_ending => {}
                    Ok(0) => {
                        return self.give_up(number, "the target closed the connection", now);
                    }
                    Ok(_) => {
                        self.queues[number].heard = now;
                        return self.process(number, now);
                    }
                    Err(error) => {
                        let why = format!("receiving failed: {error}");
                        return self.give_up(number, &why, now);
                    }
                }
            }
        }
        self.close_if_quiet(number, now);
    }

    /// Returns the buffers of a receive, with `moved` bytes in them.
    fn restore_received(&mut self, number: u32, payload: Payload<Object>, moved: usize) {
        let queue = &mut self.queues[number];
        let (io, into_io, inbox, into_inbox) = match payload {
            Payload::Receive { bytes, .. } => (None, 0, bytes, moved),
            Payload::FillThen { io, fill, bytes, .. } => {
                let first = moved.min(fill.len());
                (Some(io), first, bytes, moved - first)
            }
            _ => unreachable!("it was begun as a receive"),
        };
        queue.inbox = inbox;
        queue.have += into_inbox;
        if let Some(io) = io {
            let incoming = queue.incoming.as_mut().expect("it was begun for a payload");
            incoming.got += into_io;
            let request = queue.commands[incoming.slot].request;
            self.requests[request].io = Some(io);
        }
    }

    /// Starts the next receive, unless one is in progress.
    pub(super) fn receive(&mut self, number: u32, now: Instant) {
        let Some(queue) = self.queues.get(number) else {
            return;
        };
        if queue.receiving.is_some() || queue.ending.is_some() {
            return;
        }
        let queue = &mut self.queues[number];
        let end = queue.inbox_end();
        let left = queue.incoming.as_ref().map_or(0, |f| f.bytes - f.got);
        let payload = if left == 0 {
            Payload::Receive {
                from: queue.have,
                to: end,
                bytes: std::mem::take(&mut queue.inbox),
            }
        } else {
            let incoming = queue.incoming.as_ref().expect("it has bytes left");
            let from = incoming.start + incoming.got;
            let request = queue.commands[incoming.slot].request;
            let io = self.requests[request].io.take();
            let io = io.expect("a read is with the ring for one payload at a time");
            // Takes whatever is available. Waiting for the whole payload of a long read cost a seventh of the
            // throughput.
            Payload::FillThen {
                io,
                fill: from..from + left,
                then: queue.have..end,
                bytes: std::mem::take(&mut queue.inbox),
            }
        };
        match self.ring.begin(key(number, false), &queue.socket, payload) {
            Ok(operation) => queue.receiving = Some(operation),
            Err(payload) => {
                self.restore_received(number, payload, 0);
                self.give_up(number, "the kernel takes no more operations", now);
            }
        }
    }

    /// Processes all complete PDUs and payload parts in the inbox.
    fn process(&mut self, number: u32, now: Instant) {
        let mut at = 0;
        let outcome = loop {
            match self.step(number, &mut at, now) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(violation) => break Err(violation),
            }
        };
        match outcome {
            Ok(()) => {
                let queue = &mut self.queues[number];
                queue.inbox.copy_within(at..queue.have, 0);
                queue.have -= at;
            }
            Err(violation) => self.give_up(number, &violation, now),
        }
    }

    /// Processes one PDU or payload part of the inbox from `at` on. Returns whether there may be more.
    fn step(&mut self, number: u32, at: &mut usize, now: Instant) -> Result<bool, Violation> {
        if self.queues[number].incoming.is_some() {
            return self.fill(number, at, now);
        }
        let queue = &mut self.queues[number];
        let decoded = queue.framing.decode(&queue.inbox[*at..queue.have]);
        match decoded.map_err(|fault| fault.to_string())? {
            Decoded::Partial(need) => {
                queue.need = need;
                Ok(false)
            }
            Decoded::Whole(frame) => {
                *at += frame.head_bytes;
                queue.need = 0;
                self.take(number, &frame, now)?;
                Ok(true)
            }
        }
    }

    /// Continues a payload: copies bytes that arrived with its header, and finishes it when it is complete.
    fn fill(&mut self, number: u32, at: &mut usize, now: Instant) -> Result<bool, Violation> {
        let queue = &mut self.queues[number];
        let incoming = queue.incoming.as_mut().expect("it was looked at");
        let there = (queue.have - *at).min(incoming.bytes - incoming.got);
        let command = &queue.commands[incoming.slot];
        let request = &mut self.requests[command.request];
        if there > 0 {
            let io = request.io.as_mut().expect("the ring does not have it");
            let from = incoming.start + incoming.got;
            io.fill_from(from, &queue.inbox[*at..*at + there]);
            incoming.got += there;
            *at += there;
        }
        if incoming.got < incoming.bytes {
            return Ok(false);
        }
        let (start, bytes, slot) = (incoming.start, incoming.bytes, incoming.slot);
        let (has_digest, is_success) = (incoming.has_digest, incoming.is_success);
        if has_digest {
            let Some(sum) = queue.inbox[*at..queue.have].first_chunk::<DIGEST_BYTES>() else {
                queue.need = DIGEST_BYTES;
                return Ok(false);
            };
            let expected = u32::from_le_bytes(*sum);
            *at += DIGEST_BYTES;
            let index = command.request;
            let io = request.io.take().expect("the ring does not have it");
            let actual = self.digest_of(&io, start, bytes);
            self.requests[index].io = Some(io);
            if actual != expected {
                return Err("the data digest is wrong".to_owned());
            }
        }
        let queue = &mut self.queues[number];
        queue.incoming = None;
        queue.need = 0;
        queue.commands[slot].moved += bytes;
        if is_success {
            let cid = queue.commands[slot].cid;
            self.complete(number, slot, Cqe::new(cid, Status::SUCCESS), now)?;
        }
        Ok(true)
    }

    /// Processes a PDU.
    fn take(&mut self, number: u32, frame: &Frame, now: Instant) -> Result<(), Violation> {
        match frame.pdu {
            Pdu::ControllerData(data) => self.take_data(number, frame, data),
            Pdu::Response(cqe) => {
                let slot = self.queues[number]
                    .slot_of(cqe.cid)
                    .ok_or_else(|| format!("the target answered command {:#06x}, which is not open", cqe.cid))?;
                self.complete(number, slot, cqe, now)
            }
            Pdu::Ready(ready) => self.take_ready(number, ready),
            Pdu::ControllerTerm(term) => Err(format!("the target ended the connection: {}", term.status)),
            _ => Err("the target sent a PDU out of sequence".to_owned()),
        }
    }

    fn take_data(&mut self, number: u32, frame: &Frame, data: Data) -> Result<(), Violation> {
        let queue = &mut self.queues[number];
        let slot = queue
            .slot_of(data.cid)
            .ok_or_else(|| format!("the target sent data for command {:#06x}, which is not open", data.cid))?;
        let command = &queue.commands[slot];
        if self.requests[command.request].is_write() {
            return Err("the target sent data for a write".to_owned());
        }
        let (offset, bytes) = (data.offset as usize, frame.data_bytes);
        if offset != command.moved || bytes > command.bytes - command.moved {
            let (from, to) = (command.moved, command.bytes);
            return Err(format!(
                "the target sent bytes {offset} to {} where {from} to {to} were due",
                offset + bytes
            ));
        }
        queue.incoming = Some(IncomingPayload {
            slot,
            start: command.start + offset,
            bytes,
            got: 0,
            has_digest: frame.has_digest,
            is_success: data.is_success,
        });
        Ok(())
    }

    fn take_ready(&mut self, number: u32, ready: Ready) -> Result<(), Violation> {
        let queue = &mut self.queues[number];
        let slot = queue.slot_of(ready.cid).ok_or_else(|| {
            format!(
                "the target requested data of command {:#06x}, which is not open",
                ready.cid
            )
        })?;
        let command = &mut queue.commands[slot];
        if !self.requests[command.request].is_write() {
            return Err("the target requested data of a read".to_owned());
        }
        let (offset, bytes) = (ready.offset as usize, ready.bytes as usize);
        if command.is_asked {
            return Err("the target requested data again before it arrived".to_owned());
        }
        if offset != command.moved || bytes > command.bytes - command.moved {
            let (from, to) = (command.moved, command.bytes);
            return Err(format!(
                "the target requested bytes {offset} to {} where {from} to {to} are left",
                offset + bytes
            ));
        }
        command.is_asked = true;
        queue.transfers.push_back(Transfer {
            slot,
            tag: ready.tag,
            at: offset,
            end: offset + bytes,
        });
        Ok(())
    }

    /// Processes the completion of a command. Success requires all of its data.
    fn complete(&mut self, number: u32, slot: u32, cqe: Cqe, now: Instant) -> Result<(), Violation> {
        let queue = &mut self.queues[number];
        let command = &mut queue.commands[slot];
        let sending = queue.outgoing.as_ref().filter(|s| s.slot == slot);
        let is_sending = sending.is_some();
        // The completion may be seen before the end of the send that it belongs to.
        let moved = command.moved + sending.map_or(0, |s| s.bytes);
        if cqe.status.is_success() && moved != command.bytes {
            let bytes = command.bytes;
            return Err(format!(
                "the target reported success with {moved} of {bytes} bytes moved"
            ));
        }
        if command.answer.is_some() {
            return Err("the target answered a command twice".to_owned());
        }
        // A failed write may have data in flight. A PDU that was begun is sent to its end, but no more.
        queue.transfers.retain(|transfer| transfer.slot != slot);
        if is_sending {
            queue.commands[slot].answer = Some(cqe);
        } else {
            self.answered(number, slot, cqe, now);
        }
        Ok(())
    }

    /// Removes a completed command.
    pub(super) fn answered(&mut self, number: u32, slot: u32, cqe: Cqe, now: Instant) {
        let queue = &mut self.queues[number];
        let command = queue.commands.remove(slot);
        let request = &mut self.requests[command.request];
        if !request.is_write() && command.bytes > COPIED_BYTES_MAX {
            queue.long_reads -= 1;
        }
        request.open -= 1;
        if !cqe.status.is_success() {
            request.refused = Some(cqe.status);
        }
        if request.is_settled() {
            self.settle(command.request, number, now);
        }
    }
}
