//! The end of a queue: after it, no command of the queue changes data.
//!
//! Closing the socket is not enough. The thread of a queue has up to 64 KiB of received commands in its buffer and
//! would execute them. A host that has lost its association repeats its writes in another one, and a late write of the
//! first would overwrite newer data.

use std::{
    net::{Shutdown, TcpStream},
    sync::{Arc, MutexGuard},
};

use straightway_core::Lock;

use crate::end::End;

/// The socket of a queue, and whether the queue may still change data.
#[derive(Debug)]
pub(crate) struct Fence {
    socket: Arc<TcpStream>,
    is_closed: Lock<bool>,
}

impl Fence {
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            is_closed: Lock::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock()
    }

    /// Permits one change of data. The queue does not end before the guard is dropped. Fails if it has ended.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, bool>, End> {
        let is_closed = self.lock();
        if *is_closed {
            return Err(End::Closed);
        }
        Ok(is_closed)
    }

    /// Whether the queue has ended.
    pub(crate) fn is_closed(&self) -> bool {
        *self.lock()
    }

    /// Closes the socket, so that a thread that sends or receives returns.
    pub(crate) fn shut_down(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Ends the queue. Waits for a change that has begun.
    pub(crate) fn close(&self) {
        self.shut_down();
        *self.lock() = true;
    }
}
