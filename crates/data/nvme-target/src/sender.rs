//! The sending half of a connection: PDUs are batched and sent together.

use std::{
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    fs::sendfile,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use straightway_nvme::{
    Cqe, Fault, Framing, Pdu, digest,
    pdu::{Data, Ready},
};

use crate::{
    backing::Backing,
    end::{End, transfer_time_max},
};

/// Reads up to this size are copied into the batch. Their own `send` and `sendfile` calls would cost more.
const COPY_BYTES_MAX: usize = 16 << 10;

/// The maximum data length of one PDU with a data digest, which needs the bytes in memory, and the size at which a
/// batch is sent.
const BATCH_BYTES: usize = 256 << 10;

/// The limits for reading and discarding input before a connection is closed, so that the peer receives the last PDU.
const DRAIN_BYTES_MAX: usize = 1 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A batch of PDUs.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: Arc<TcpStream>,
    pub(crate) framing: Framing,
    /// The timeout for a peer that reads nothing.
    stall_timeout: Duration,
    out: Vec<u8>,
}

/// The timeout of one system call that sends, which the socket must have. A call that sends a part before its timeout
/// returns as if the peer had just read, so the timeout of a call is a small part of that of the peer.
pub(crate) fn send_tick(stall_timeout: Duration) -> Duration {
    (stall_timeout / 16).clamp(Duration::from_millis(1), Duration::from_secs(1))
}

/// The time limits of a transfer to a peer: without progress, and in all.
struct Deadlines {
    stall_timeout: Duration,
    /// The time of the last progress.
    progress: Instant,
    end: Instant,
}

impl Deadlines {
    fn begin(bytes: usize, stall_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            stall_timeout,
            progress: now,
            end: now + transfer_time_max(bytes, stall_timeout),
        }
    }

    /// Notes that bytes were sent. Fails if the transfer takes too long.
    fn note_sent(&mut self) -> Result<(), End> {
        self.progress = Instant::now();
        if self.progress > self.end {
            Err(End::Silent)
        } else {
            Ok(())
        }
    }

    /// Fails if the peer has read nothing for too long. Called when a call has sent nothing.
    fn check_stall(&self) -> Result<(), End> {
        if self.progress.elapsed() >= self.stall_timeout {
            Err(End::Silent)
        } else {
            Ok(())
        }
    }
}

/// The data of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read<'a> {
    pub(crate) cid: u16,
    pub(crate) backing: &'a Backing,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Whether the last data PDU replaces the completion.
    pub(crate) is_success: bool,
}

impl Sender {
    pub(crate) fn new(socket: Arc<TcpStream>, framing: Framing, stall_timeout: Duration) -> Self {
        Self {
            socket,
            framing,
            stall_timeout,
            out: Vec::new(),
        }
    }

    /// Whether the batch should be sent although more commands have arrived. Hundreds of commands fit into the receive
    /// buffer, and each may be answered by megabytes.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() >= BATCH_BYTES
    }

    /// Whether all completions were sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Adds a PDU without data.
    pub(crate) fn pdu(&mut self, pdu: &Pdu) {
        self.framing.encode(pdu, 0, &mut self.out);
    }

    /// Adds a completion.
    pub(crate) fn response(&mut self, cqe: Cqe) {
        self.pdu(&Pdu::Response(cqe));
    }

    /// Adds an R2T.
    pub(crate) fn ready(&mut self, ready: Ready) {
        self.pdu(&Pdu::Ready(ready));
    }

    /// Adds a page from memory, followed by zeros up to `bytes`. Sends the batch whenever it is full.
    pub(crate) fn page(&mut self, cid: u16, page: &[u8], bytes: usize) -> Result<(), End> {
        let mut done = 0;
        loop {
            let piece = (bytes - done).min(BATCH_BYTES);
            if self.out.len() + piece > BATCH_BYTES {
                self.flush_with(SendFlags::MORE)?;
            }
            self.head(cid, done, piece, done + piece == bytes, false);
            let rest = page.get(done..).unwrap_or_default();
            let present = rest.len().min(piece);
            self.out.extend_from_slice(&rest[..present]);
            self.out.resize(self.out.len() + piece - present, 0);
            self.data_digest(piece);
            done += piece;
            if done == bytes {
                return Ok(());
            }
        }
    }

    /// Sends the data of a read. Data that cannot be read fails the command if it is copied. If it is sent by
    /// `sendfile`, it was announced, and the connection ends.
    pub(crate) fn read(&mut self, read: Read<'_>) -> Result<std::io::Result<()>, End> {
        if self.framing.has_data_digest() || read.bytes <= COPY_BYTES_MAX {
            self.copy(read)
        } else {
            self.pages(read).map(Ok)
        }
    }

    /// Copies the data into the batch.
    fn copy(&mut self, read: Read<'_>) -> Result<std::io::Result<()>, End> {
        let mut done = 0;
        while done < read.bytes {
            let piece = (read.bytes - done).min(BATCH_BYTES);
            if self.out.len() + piece > BATCH_BYTES {
                self.flush_with(SendFlags::MORE)?;
            }
            let before = self.out.len();
            let is_last = done + piece == read.bytes;
            self.head(read.cid, done, piece, is_last, read.is_success);
            let at = self.out.len();
            self.out.resize(at + piece, 0);
            let offset = read.offset + done as u64;
            if let Err(error) = read.backing.read(&mut self.out[at..], offset) {
                self.out.truncate(before);
                return Ok(Err(error));
            }
            self.data_digest(piece);
            done += piece;
        }
        Ok(Ok(()))
    }

    /// Sends pages of the page cache by `sendfile`.
    fn pages(&mut self, read: Read<'_>) -> Result<(), End> {
        self.head(read.cid, 0, read.bytes, true, read.is_success);
        self.flush_with(SendFlags::MORE)?;
        let present = read.backing.present(read.offset, read.bytes);
        let (mut offset, end) = (read.offset, read.offset + present as u64);
        let mut deadlines = Deadlines::begin(read.bytes, self.stall_timeout);
        while offset < end {
            let left = usize::try_from(end - offset).expect("a part of a command");
            match sendfile(&*self.socket, read.backing.fd(), Some(&mut offset), left) {
                // The file was truncated or is unreadable. Data that was announced cannot be sent.
                Ok(0) | Err(Errno::IO | Errno::NXIO | Errno::NOMEM) => return Err(End::Backing),
                Ok(_) => deadlines.note_sent()?,
                Err(Errno::AGAIN | Errno::INTR) => deadlines.check_stall()?,
                Err(error) => return Err(End::Socket(error.into())),
            }
        }
        let padding = read.bytes - present;
        self.out.resize(self.out.len() + padding, 0);
        Ok(())
    }

    fn head(&mut self, cid: u16, offset: usize, bytes: usize, is_last: bool, is_success: bool) {
        let narrow = |n: usize| u32::try_from(n).expect("commands have at most 4 MiB");
        let data = Data {
            cid,
            tag: 0,
            offset: narrow(offset),
            bytes: narrow(bytes),
            is_last,
            is_success: is_success && is_last,
        };
        self.framing.encode(&Pdu::ControllerData(data), bytes, &mut self.out);
    }

    /// Adds the digest of the last `bytes`, if it was negotiated.
    fn data_digest(&mut self, bytes: usize) {
        if self.framing.has_data_digest() && bytes > 0 {
            let sum = digest(&self.out[self.out.len() - bytes..]);
            self.out.extend_from_slice(&sum.to_le_bytes());
        }
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Result<(), End> {
        self.flush_with(SendFlags::empty())
    }

    fn flush_with(&mut self, flags: SendFlags) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut sent = 0;
        let mut deadlines = Deadlines::begin(self.out.len(), self.stall_timeout);
        while sent < self.out.len() {
            match send(self.socket.as_fd(), &self.out[sent..], flags | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    sent += count;
                    deadlines.note_sent()?;
                }
                Err(Errno::AGAIN | Errno::INTR) => deadlines.check_stall()?,
                Err(error) => return Err(End::Socket(error.into())),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Sends a termination request with the start of the offending PDU, and closes the connection.
    pub(crate) fn terminate(&mut self, fault: &Fault, wrong: &[u8]) {
        let wrong = &wrong[..wrong.len().min(128)];
        self.framing
            .encode(&Pdu::ControllerTerm(fault.term), wrong.len(), &mut self.out);
        self.out.extend_from_slice(wrong);
        self.close();
    }

    /// Sends the batch and closes, after the peer had time to receive it.
    pub(crate) fn close(&mut self) {
        if self.flush().is_err() || self.socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut dropped = 0;
        let mut buffer = [0; 4096];
        let start = Instant::now();
        while dropped < DRAIN_BYTES_MAX && start.elapsed() < DRAIN_TIME {
            match recv(self.socket.as_fd(), &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) | Err(_) => return,
                Ok((count, _)) => dropped += count,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use straightway_nvme::{Digests, Role};

    use super::*;

    #[test]
    fn pages_that_the_peer_does_not_read_end_the_connection_and_cost_no_memory() {
        for data in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let peer = TcpStream::connect(address).expect("it listens");
            let (socket, _) = listener.accept().expect("the peer connects");
            let stall_timeout = Duration::from_millis(200);
            socket
                .set_write_timeout(Some(send_tick(stall_timeout)))
                .expect("not zero");
            let digests = Digests { header: false, data };
            let framing = Framing::new(Role::Controller, 1 << 20).agreed(digests, 0);
            let mut sender = Sender::new(Arc::new(socket), framing, stall_timeout);
            // More than the buffers of any socket.
            let ended = (0..1000).find_map(|cid| {
                let sent = sender.page(cid, &[7; 4096], 4 << 20);
                assert!(sender.out.capacity() <= 4 * BATCH_BYTES);
                sent.err()
            });
            assert!(matches!(ended, Some(End::Silent)), "{ended:?}");
            drop(peer);
        }
    }
}
