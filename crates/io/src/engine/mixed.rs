//! The drive and the page cache behind one queue, for lanes that check what they read.
//!
//! Which of the two an I/O goes to is said by its descriptor. What is resident is copied while it is submitted and
//! comes back by the next poll, so that it is checked while it is in the processor's cache; the drive works on its
//! queue meanwhile. The drive's engine is made when the first I/O needs it.

use std::{fmt, io, time::Duration};

use straightway_core::Result;
use straightway_sys::{By, blocking};

use super::{Capabilities, Engine, cached};
use crate::request::{Done, Io, run_on_file};

/// What makes the engine for the drive.
type Make = Box<dyn Fn() -> Result<Box<dyn Engine>> + Send>;

/// An engine for the drive and one for the page cache.
pub struct Mixed {
    make: Make,
    depth: usize,
    drive: Option<Box<dyn Engine>>,
    drive_in_flight: usize,
    /// Through the page cache, and those for a drive whose engine could not be made.
    done: Vec<Done>,
    /// Whether the drive and the page cache took part since the last rest.
    used: [bool; 2],
}

impl Mixed {
    /// Takes `depth` I/Os and one more: for the drive, whose engine `make` makes, and for the page cache.
    pub fn new(depth: u32, make: impl Fn() -> Result<Box<dyn Engine>> + Send + 'static) -> Self {
        Self {
            make: Box::new(make),
            depth: depth as usize,
            drive: None,
            drive_in_flight: 0,
            done: Vec::new(),
            used: [false; 2],
        }
    }

    fn submit_to_drive(&mut self, io: Io) -> Result<(), Io> {
        self.used[0] = true;
        if self.drive.is_none() {
            match (self.make)() {
                Ok(drive) => self.drive = Some(drive),
                Err(error) => {
                    self.done.push(Done::new(io, Err(io::Error::other(error))));
                    return Ok(());
                }
            }
        }
        let drive = self.drive.as_mut().expect("just made");
        drive.submit(io)?;
        self.drive_in_flight += 1;
        Ok(())
    }
}

impl Engine for Mixed {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.done.len() + self.drive_in_flight > self.depth {
            return Err(io);
        }
        if io.by == By::Direct {
            return self.submit_to_drive(io);
        }
        self.used[1] = true;
        self.done.push(run_on_file(io, blocking::run));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let came = self.done.len();
        done.append(&mut self.done);
        match &mut self.drive {
            Some(drive) if came == 0 && self.drive_in_flight > 0 => {
                let count = drive.poll(done, timeout)?;
                self.drive_in_flight -= count;
                Ok(count)
            }
            _ => Ok(came),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "io_uring + pread",
            depth: self.depth + 1,
        }
    }

    fn names(&self) -> Vec<&'static str> {
        let drive = self.drive.as_ref().map(|drive| drive.capabilities().name);
        let names = [(self.used[0], drive), (self.used[1], Some(cached::NAME))];
        names
            .into_iter()
            .filter_map(|(is_used, name)| name.filter(|_| is_used))
            .collect()
    }

    fn warning(&self) -> Option<&str> {
        self.drive.as_ref().and_then(|drive| drive.warning())
    }

    fn rest(&mut self) {
        self.used = [false; 2];
        if let Some(drive) = &mut self.drive {
            drive.rest();
        }
    }
}

impl fmt::Debug for Mixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mixed")
            .field("drive", &self.drive)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
