//! Writes: the body of a request.
//!
//! A request stores one part of an upload. Its body is sent straight from the memory of the I/O, or from the buffer of
//! a part that was completed by several writes. With TLS it is encrypted piece by piece. A part is stored whole or not
//! at all: after a failure it is sent again from its first byte.

use std::{io, sync::Arc, time::Instant};

use straightway_io::request::{Done, Io};
use straightway_sys::uring::sockets::Payload;

use super::{
    HttpEngine, Request,
    connection::{Connection, Phase},
    response_head::Verdict,
};
use crate::{
    checksum::{crc64nvme, crc64nvme_of_io, md5_of, md5_of_io},
    part::{PartTag, StoredPart, UploadPart},
    response::HttpResponse,
    service::{Head, Judgement},
    upload::{Admitted, Upload},
};

/// The bytes encrypted at a time.
const PIECE_BYTES: usize = 128 << 10;

/// The body of a request that stores a part.
#[derive(Debug)]
pub(super) struct Sending {
    upload: Arc<Upload>,
    part: UploadPart,
    /// The bytes to send instead of the I/O's memory; taken while the ring has them.
    body: Option<Vec<u8>>,
    /// Whether the part is sent from `body`.
    is_buffered: bool,
    /// The number of bytes sent.
    sent: usize,
}

impl Sending {
    /// Its length.
    fn end(&self) -> usize {
        usize::try_from(self.part.bytes).expect("a part fits into memory")
    }
}

impl Request {
    /// Writes the head of the request.
    pub(super) fn write_head(&mut self, out: &mut Vec<u8>) -> straightway_core::Result<Head> {
        let range = self.range();
        match &mut self.sending {
            None => self.remote.write_head(&range, out),
            Some(sending) => {
                sending.sent = 0;
                out.clear();
                self.remote.service().put_head(&sending.part, out)
            }
        }
    }

    /// Judges a response with status 200 to a write.
    pub(super) fn judge_stored(&self, response: &HttpResponse<'_>) -> Verdict {
        let sending = self.sending.as_ref().expect("it is a write");
        let service = self.remote.service();
        match service.stored(self.remote.name(), &sending.part, response) {
            Ok(tag) => Verdict::Stored(tag),
            Err(judgement) => Verdict::Refused(judgement),
        }
    }

    /// Records that the server has stored the part.
    pub(super) fn note_stored(&mut self, tag: PartTag) {
        let sending = self.sending.as_ref().expect("it is a write");
        let part = sending.part;
        sending.upload.note(StoredPart { part, tag });
        self.got += self.missing();
    }
}

impl Connection {
    /// Whether it sends a body without TLS.
    pub(super) fn sends_body(&self) -> bool {
        matches!(self.phase, Phase::SendingBody(_)) && self.session.is_none()
    }
}

impl HttpEngine {
    /// Queues the request of a write, or completes the write at once if its bytes are only buffered.
    pub(super) fn take_write(&mut self, io: Io) {
        let Some(upload) = Upload::of(&io.object) else {
            return self.refuse(io, "it is not an upload to a web server");
        };
        let (number, body) = match upload.admit(&io) {
            Ok(Admitted::Buffered) => {
                let moved = io.bytes;
                return self.finished.push(Done::new(io, Ok(moved)));
            }
            Ok(Admitted::Whole(number)) => (number, None),
            Ok(Admitted::Completes(number, body)) => (number, Some(body)),
            Err(error) => {
                let error = io::Error::other(error);
                return self.finished.push(Done::new(io, Err(error)));
            }
        };
        let bytes = upload.part_length(number);
        let sum = body.as_deref().map_or_else(|| crc64nvme_of_io(&io, bytes), crc64nvme);
        let digest = upload
            .remote()
            .service()
            .wants_digest()
            .then(|| body.as_deref().map_or_else(|| md5_of_io(&io, bytes), md5_of));
        let part = UploadPart {
            number,
            bytes: bytes as u64,
            sum,
            digest,
        };
        let (remote, end) = (Arc::clone(upload.remote()), io.offset + io.bytes as u64);
        let mut request = Request::new(io, remote, end, self.next_seed(), Instant::now());
        request.sending = Some(Sending {
            upload,
            part,
            is_buffered: body.is_some(),
            body,
            sent: 0,
        });
        self.queue(request);
    }

    /// Sends the rest of a request. If nothing is left, waits for its response.
    pub(super) fn send_rest(&mut self, key: u32, number: u32, now: Instant) {
        let connection = &mut self.connections[key];
        let settings = connection.origin.settings();
        let (stall_max, stored_max) = (settings.stall_max, settings.stored_max());
        connection.expect_within(stall_max, now);
        let request = &mut self.requests[number];
        let is_write = request.sending.is_some();
        let Some(sending) = request.sending.as_mut().filter(|sending| sending.sent < sending.end()) else {
            if is_write {
                connection.expect_within(stored_max, now);
            }
            connection.phase = Phase::Awaiting(number);
            return self.receive(key, now);
        };
        connection.phase = Phase::SendingBody(number);
        let (from, to) = (sending.sent, sending.end());
        if let Some(session) = &mut connection.session {
            let to = to.min(from + PIECE_BYTES);
            connection.out.resize(to - from, 0);
            match (&sending.body, &request.io) {
                (Some(body), _) => connection.out.copy_from_slice(&body[from..to]),
                (None, Some(io)) => io.spill_from(from, &mut connection.out),
                (None, None) => unreachable!("with TLS the ring has no I/O"),
            }
            sending.sent = to;
            if let Err(error) = session.encrypt(&connection.out) {
                return self.fail(key, Judgement::of(self.untrusted(key, &error)), now);
            }
            // Always through the ring: sending directly would recurse once per piece.
            let bytes = connection.lend_outgoing().unwrap_or_default();
            return self.operate(key, Payload::Send { bytes, from: 0 }, now);
        }
        let payload = if sending.is_buffered {
            let bytes = sending.body.take().expect("the ring does not have it");
            Payload::Send { bytes, from }
        } else {
            let io = request.io.take().expect("the ring does not have it");
            Payload::Spill { io, from, to }
        };
        self.operate(key, payload, now);
    }

    /// Takes back the memory of an I/O that was sent up to `sent`.
    pub(super) fn restore_sent(&mut self, key: u32, io: Io, sent: usize) {
        let request = self.request_of(key);
        request.io = Some(io);
        request.sending.as_mut().expect("it is a write").sent = sent;
    }

    /// Takes back a part buffer that was sent up to `sent`.
    pub(super) fn restore_body(&mut self, key: u32, body: Vec<u8>, sent: usize) {
        let sending = self.request_of(key).sending.as_mut();
        let sending = sending.expect("it is a write");
        (sending.body, sending.sent) = (Some(body), sent);
    }

    fn request_of(&mut self, key: u32) -> &mut Request {
        let number = self.connections[key].phase.request();
        &mut self.requests[number.expect("it sends a request")]
    }

    /// Handles a connection that the server closed before it read the whole request: it may have responded early, so
    /// its response is read. Returns whether that is the case.
    pub(super) fn awaits_early_response(&mut self, key: u32, error: &io::Error, now: Instant) -> bool {
        let is_closed = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        let connection = &mut self.connections[key];
        let Phase::SendingBody(number) = connection.phase else {
            return false;
        };
        if is_closed {
            connection.phase = Phase::Awaiting(number);
            self.receive(key, now);
        }
        is_closed
    }
}
