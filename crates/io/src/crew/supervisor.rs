//! The lane of one thread, and what stands in for it when it can run no more jobs.
//!
//! A lane whose job was stopped waits a while for the I/Os that are still in flight. One that waited in vain is
//! set aside: its engine and its buffers stay as they are until the last I/O has come back, and the next job
//! gets a new lane with an engine and a ring of its own. No job waits behind what an earlier one left in
//! flight, and no buffer is freed under the kernel. A lane that panicked is replaced as well; dropping its
//! engine waits for what that has in flight.
//!
//! All of this happens on the lane's own thread: an io_uring belongs to the thread that made it.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use straightway_core::{Error, Kind, Result};

use crate::{board::Board, lane::Lane};

/// Lanes of one thread that wait for their last I/Os. Each holds its part of the ring's memory.
const LATE_MAX: usize = 2;

/// The lane of one thread.
pub(crate) struct Berth<F> {
    /// Its lane's number in the crew.
    number: usize,
    board: Arc<Board>,
    make: F,
    lane: Option<Lane>,
    /// Lanes that were set aside, with I/Os in flight.
    late: Vec<Lane>,
}

impl<F: FnMut() -> Result<Lane>> Berth<F> {
    /// A berth for lane `number` of a board. Its lanes are made by `make`, and the first at once.
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

    /// The lane, made anew where the last one is no longer there.
    pub(crate) fn lane(&mut self) -> Result<&mut Lane> {
        self.reap();
        if self.late.len() >= LATE_MAX {
            let message = "I/Os of earlier transfers have not come back";
            return Err(
                Error::new(Kind::Transient, "use", "a lane", message).with_hint(
                    "storage may hang: see the kernel's log, and try again when it answers",
                ),
            );
        }
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => (self.make)()?,
        };
        Ok(self.lane.insert(lane))
    }

    /// Takes part in the jobs on the board until there are none. An error goes to the job, and so does a panic.
    pub(crate) fn serve(&mut self) {
        let board = Arc::clone(&self.board);
        let served = catch_unwind(AssertUnwindSafe(|| {
            self.lane().map(|lane| lane.serve(&board))
        }));
        match served {
            Ok(Ok(())) => self.late.extend(self.lane.take_if(|lane| !lane.is_home())),
            Ok(Err(error)) => board.fail(self.number, &error),
            Err(panic) => {
                let message = format!("it panicked: {}", words(panic.as_ref()));
                let error = Error::new(Kind::Transient, "run", "a lane", message);
                let error = error.with_hint("this is a defect of straightway: please report it");
                match self.lane.take() {
                    Some(lane) => lane.fail_jobs(&error),
                    None => board.fail(self.number, &error),
                }
            }
        }
    }

    /// Lets go of the lanes that were set aside and have their last I/O back.
    pub(crate) fn reap(&mut self) {
        let board = &self.board;
        self.late.retain_mut(|lane| !lane.bring_home(board));
    }

    /// Whether lanes wait for their last I/Os.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

impl<F> fmt::Debug for Berth<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Berth")
            .field("lane", &self.lane)
            .field("late", &self.late)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
