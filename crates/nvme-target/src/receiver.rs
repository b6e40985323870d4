//! The receiving half of a connection: one buffer, filled by as much as there is.

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

use crate::connection::End;

/// The buffer: several hundred commands, or one with all the data that a capsule may have.
const BUFFER_BYTES: usize = 64 << 10;

/// How long a wait lasts at most before time-outs are looked at.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// More bytes.
    Bytes,
    /// The bell of the controller.
    Bell,
    /// Nothing for the time of a tick.
    Tick,
}

/// Bytes that have come and were not used yet.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: Arc<TcpStream>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// When the last bytes came.
    last: Instant,
}

impl Receiver {
    /// Waits at most a tick at a time.
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

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Drops the first bytes.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "only what is there is consumed");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// How long nothing has come.
    pub(crate) fn silence(&self) -> Duration {
        self.last.elapsed()
    }

    /// Takes more bytes, until a tick has passed or the bell rings.
    pub(crate) fn fill(
        &mut self,
        needed: usize,
        bell: Option<BorrowedFd<'_>>,
    ) -> Result<Filled, End> {
        debug_assert!(needed <= BUFFER_BYTES, "heads and capsules are bounded");
        if self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if let Some(bell) = bell {
            match self.wait(bell)? {
                Filled::Bytes => {}
                other => return Ok(other),
            }
        }
        match recv(
            &*self.socket,
            &mut self.buffer[self.end..],
            RecvFlags::empty(),
        ) {
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

    /// Takes exactly as many bytes as `out` has: first what is there, then straight from the socket.
    pub(crate) fn take(&mut self, out: &mut [u8], patience: Duration) -> Result<(), End> {
        let there = self.bytes().len().min(out.len());
        out[..there].copy_from_slice(&self.bytes()[..there]);
        self.consume(there);
        let mut filled = there;
        while filled < out.len() {
            match recv(&*self.socket, &mut out[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(End::Closed),
                Ok((received, _)) => {
                    filled += received;
                    self.last = Instant::now();
                }
                Err(Errno::AGAIN | Errno::INTR) if self.silence() < patience => {}
                Err(Errno::AGAIN | Errno::INTR) => return Err(End::Silent),
                Err(error) => return Err(End::Socket(error.into())),
            }
        }
        Ok(())
    }

    fn wait(&self, bell: BorrowedFd<'_>) -> Result<Filled, End> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(bell, PollFlags::IN),
        ];
        let tick = Timespec::try_from(TICK).expect("a second fits");
        match poll(&mut fds, Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => Ok(Filled::Tick),
            Ok(_) if !fds[1].revents().is_empty() => Ok(Filled::Bell),
            Ok(_) => Ok(Filled::Bytes),
            Err(error) => Err(End::Socket(error.into())),
        }
    }
}
