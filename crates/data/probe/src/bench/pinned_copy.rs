//! The rate of the bus between host and GPU: consecutive pinned copies without other load. All other GPU figures are
//! compared with this one.

use std::{collections::VecDeque, time::Instant};

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{
    Region, RingSpace, Slot,
    cuda::{CopyDirection, Copying, CudaStream, Span},
};

/// Copies in flight at once.
const COPIES: usize = 4;

/// Measures the rate of pinned copies of `chunk_bytes` over a whole GPU region, in bytes per second, once for each of
/// `rounds`.
pub(super) fn pinned_copy(
    region: &Region,
    direction: CopyDirection,
    chunk_bytes: usize,
    rounds: usize,
) -> Result<Vec<f64>> {
    let Some(memory) = region.device_memory() else {
        let message = "it is in host memory, not in GPU memory";
        return Err(Error::new(ErrorKind::Invalid, "measure", "the region", message));
    };
    let chunks = memory.bytes() / chunk_bytes;
    let mut slots = RingSpace::default().pinned_ring(memory.context(), COPIES, chunk_bytes)?;
    let stream = CudaStream::new(memory.context())?;
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let mut in_flight: VecDeque<Copying> = VecDeque::new();
        for chunk in 0..chunks {
            let slot = match slots.pop() {
                Some(slot) => slot,
                None => finish_oldest(&mut in_flight)?,
            };
            let memory_offset = chunk * chunk_bytes;
            let span = [Span {
                slot_offset: 0,
                memory_offset,
                bytes: chunk_bytes,
            }];
            let copying = stream.copy(direction, slot, memory, &span);
            in_flight.push_back(copying.map_err(|refused| refused.error)?);
        }
        while !in_flight.is_empty() {
            slots.push(finish_oldest(&mut in_flight)?);
        }
        let bytes = (chunks * chunk_bytes) as f64;
        rates.push(bytes / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(rates)
}

/// Waits for the oldest copy and takes its slot back.
fn finish_oldest(in_flight: &mut VecDeque<Copying>) -> Result<Slot> {
    let oldest = in_flight.pop_front().expect("slots are free or in flight");
    oldest.wait().map_err(|refused| refused.error)
}
