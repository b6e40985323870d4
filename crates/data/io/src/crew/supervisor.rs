//! The supervisor of one thread's lane, which replaces the lane when it can run no more jobs.
//!
//! A lane whose job was stopped waits a while for the I/Os in flight. If they do not complete in time, the lane is set
//! aside: its engine and its buffers stay until the last I/O has completed, and the next job gets a new lane with its
//! own engine and ring. So no job waits behind the I/Os of an earlier one, and no buffer is freed while the kernel uses
//! it. A lane that panicked or whose engine failed is replaced as well; dropping its engine waits for its I/Os in flight.
//!
//! All of this happens on the lane's own thread: an io_uring belongs to the thread that made it.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use straightway_core::{Error, ErrorKind, Result};

use crate::{board::Board, lane::Lane};

/// The most lanes of one thread that are set aside. Each holds its part of the ring's memory.
const LATE_MAX: usize = 2;

/// Owns the lane of one thread.
pub(crate) struct LaneSupervisor<F> {
    /// The lane's number in the crew.
    number: usize,
    board: Arc<Board>,
    make: F,
    lane: Option<Lane>,
    /// Lanes that were set aside, with I/Os in flight.
    late: Vec<Lane>,
}

impl<F: FnMut() -> Result<Lane>> LaneSupervisor<F> {
    /// A supervisor for lane `number` of a board. `make` makes its lanes, the first at once.
    pub(crate) fn new(number: usize, board: &Arc<Board>, mut make: F) -> Result<Self> {
        let lane = Some(make()?);
        Ok(Self {
            number,
            board: Arc::clone(board),
            make,
            lane,
            late: Vec::new(),
        })
    }

    /// The lane. A new one is made if the last one was set aside, panicked or failed.
    pub(crate) fn lane(&mut self) -> Result<&mut Lane> {
        self.reap();
        if self.late.len() >= LATE_MAX {
            let message = "I/Os of earlier transfers have not completed";
            return Err(Error::new(ErrorKind::Transient, "use", "a lane", message)
                .with_hint("storage may hang: see the kernel's log, and try again when it answers"));
        }
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => (self.make)()?,
        };
        Ok(self.lane.insert(lane))
    }

    /// Runs the jobs on the board until there are none. Errors and panics go to the jobs.
    pub(crate) fn serve(&mut self) {
        let board = Arc::clone(&self.board);
        let served = catch_unwind(AssertUnwindSafe(|| self.lane().map(|lane| lane.serve(&board))));
        if let Ok(Ok(())) = served
            && self
                .lane
                .as_ref()
                .is_some_and(|lane| lane.is_idle() && lane.broken().is_none())
        {
            return;
        }
        // This lane serves no more jobs, and its slots are of no use to them.
        board.note_slots(self.number, false);
        match (served, self.lane.take()) {
            (Ok(Ok(())), Some(lane)) => match lane.broken().map(Error::again) {
                Some(error) => lane.abandon(&error, &board),
                None => self.late.push(lane),
            },
            (Ok(Ok(())), None) => {}
            (Ok(Err(error)), lane) => {
                self.lane = lane;
                board.fail(self.number, &error);
            }
            (Err(panic), lane) => {
                let message = format!("it panicked: {}", panic_message(panic.as_ref()));
                let error = Error::new(ErrorKind::Transient, "run", "a lane", message);
                let error = error.with_hint("this is a defect of straightway: please report it");
                match lane {
                    Some(lane) => lane.abandon(&error, &board),
                    None => board.fail(self.number, &error),
                }
            }
        }
    }

    /// Drops lanes that were set aside and have no I/O left in flight.
    pub(crate) fn reap(&mut self) {
        let board = &self.board;
        self.late.retain_mut(|lane| !lane.drain(board));
    }

    /// Whether any lane is set aside.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

impl<F> fmt::Debug for LaneSupervisor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneSupervisor")
            .field("lane", &self.lane)
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
