//! How a lane inspects a portion that it has read, and copies the wanted bytes.

use straightway_sys::{Buf, Slot, cuda::CopyDirection};

use super::Lane;
use crate::{
    board::Board,
    flight::Flight,
    inspect::Image,
    job::Job,
    request::{Io, usize_of},
};

impl Lane {
    /// Inspects a portion after a whole read, and starts the copy of the wanted bytes.
    pub(super) fn inspect(&mut self, job: &Job, mut flight: Flight, io: Io, board: &Board) {
        let (Some(inspect), Buf::Slot(mut slot)) = (job.inspect(), io.buf) else {
            unreachable!("portions are read into slots");
        };
        let (number, portion) = job.plan().portion(&flight.chunk);
        let start = usize_of(portion.extent.offset - flight.chunk.extent.offset);
        let stored = &slot.as_slice()[start..start + usize_of(portion.extent.bytes)];
        let image_bytes = usize_of(portion.image_bytes);
        let spare = self.ring.spare.as_mut().map(Slot::as_mut_slice);
        let unpacked = spare.map_or(&mut [][..], |spare| &mut spare[..image_bytes]);
        flight.image_start = match inspect.inspect(number, stored, unpacked) {
            Ok(Image::Stored) => start,
            Ok(Image::Unpacked) => {
                let spare = self.ring.spare.as_mut().expect("it was unpacked into");
                std::mem::swap(&mut slot, spare);
                0
            }
            Err(error) => {
                self.ring.put(Some(slot));
                self.release(io.tag, board);
                let refused = job.refuse(&flight.chunk, error);
                return refused.unwrap_or_else(|error| job.fail(error));
            }
        };
        flight.count(job, &mut self.jobs[flight.job].tally, portion.wanted_bytes);
        self.flights[io.tag as usize] = Some(flight);
        if portion.deliveries > 0 {
            return self.copy(job, io.tag, slot, CopyDirection::ToDevice);
        }
        self.ring.put(Some(slot));
        self.release(io.tag, board);
        job.progress().add(portion.wanted_bytes);
    }
}
