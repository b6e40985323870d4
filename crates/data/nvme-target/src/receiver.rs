//! The receiving half of a connection: one buffer, filled with all available bytes.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv},
};

use crate::end::{End, transfer_time_max};

/// The buffer size: several hundred commands, or one with the maximum in-capsule data.
const BUFFER_BYTES: usize = 64 << 10;

/// The maximum wait before timeouts are checked.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// More bytes arrived.
    Bytes,
    /// The controller signalled an event.
    Wakeup,
    /// The wait timed out.
    Tick,
}

/// The received bytes that were not consumed yet.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: Arc<TcpStream>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The time of the last receive.
    last: Instant,
}

impl Receiver {
    /// Sets the receive timeout of the socket to one tick.
    pub(crate) fn new(socket: Arc<TcpStream>) -> io::Result<Self> {
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self {
            socket,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            last: Instant::now(),
        })
    }

    /// The available bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes the first bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "only available bytes are consumed");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// The time since the last receive.
    pub(crate) fn silence(&self) -> Duration {
        self.last.elapsed()
    }

    /// Receives more bytes. Returns after a tick or an event.
    pub(crate) fn fill(&mut self, needed: usize, wakeup: Option<BorrowedFd<'_>>) -> Result<Filled, End> {
        debug_assert!(needed <= BUFFER_BYTES, "heads and capsules are bounded");
        if self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(wakeup) = wakeup {
            match self.wait(wakeup)? {
                Filled::Bytes => {}
                other => return Ok(other),
            }
        }
        match recv(&*self.socket, &mut self.buffer[self.end..], RecvFlags::empty()) {
            Ok((0, _)) => Err(End::Closed),
            Ok((received, _)) => {
                self.end += received;
                self.last = Instant::now();
                Ok(Filled::Bytes)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Filled::Tick),
            Err(error) => Err(End::Socket(error.into())),
        }
    }

    /// Fills `out` completely: first from the buffer, then directly from the socket.
    pub(crate) fn take(&mut self, out: &mut [u8], stall_timeout: Duration) -> Result<(), End> {
        let there = self.bytes().len().min(out.len());
        out[..there].copy_from_slice(&self.bytes()[..there]);
        self.consume(there);
        let mut filled = there;
        let (start, time_max) = (Instant::now(), transfer_time_max(out.len(), stall_timeout));
        while filled < out.len() {
            if start.elapsed() > time_max {
                return Err(End::Silent);
            }
            match recv(&*self.socket, &mut out[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(End::Closed),
                Ok((received, _)) => {
                    filled += received;
                    self.last = Instant::now();
                }
                Err(Errno::AGAIN | Errno::INTR) if self.silence() < stall_timeout => {}
                Err(Errno::AGAIN | Errno::INTR) => return Err(End::Silent),
                Err(error) => return Err(End::Socket(error.into())),
            }
        }
        Ok(())
    }

    fn wait(&self, wakeup: BorrowedFd<'_>) -> Result<Filled, End> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(wakeup, PollFlags::IN),
        ];
        let tick = Timespec::try_from(TICK).expect("a second fits");
        match poll(&mut fds, Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => Ok(Filled::Tick),
            Ok(_) if !fds[1].revents().is_empty() => Ok(Filled::Wakeup),
            Ok(_) => Ok(Filled::Bytes),
            Err(error) => Err(End::Socket(error.into())),
        }
    }
}
