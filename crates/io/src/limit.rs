//! What the bus between host and GPU can do at best: pinned copies, one after the other, with
//! nothing else in the way. Every other figure of a GPU is held against this one.

use std::{collections::VecDeque, time::Instant};

use straightway_core::{Error, Kind, Result};
use straightway_sys::{
    Region, Slot,
    cuda::{Copying, Direction, Span, Stream},
};

/// Copies in flight at once.
const COPIES: usize = 4;

/// Bytes a second of pinned copies of `chunk_bytes` over all of a GPU region, in each of `rounds`.
pub fn pinned_copy(
    region: &Region,
    way: Direction,
    chunk_bytes: usize,
    rounds: usize,
) -> Result<Vec<f64>> {
    let Some(memory) = region.device_memory() else {
        let message = "it is in host memory, and GPU memory is meant";
        return Err(Error::new(Kind::Invalid, "measure", "the region", message));
    };
    let chunks = memory.bytes() / chunk_bytes;
    let mut slots = Slot::pinned_ring(memory.context(), COPIES, chunk_bytes)?;
    let stream = Stream::new(memory.context())?;
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let mut flying: VecDeque<Copying> = VecDeque::new();
        for chunk in 0..chunks {
            let slot = match slots.pop() {
                Some(slot) => slot,
                None => land(&mut flying)?,
            };
            let memory_offset = chunk * chunk_bytes;
            let span = [Span {
                slot_offset: 0,
                memory_offset,
                bytes: chunk_bytes,
            }];
            let copying = stream.copy(way, slot, memory, &span);
            flying.push_back(copying.map_err(|refused| refused.error)?);
        }
        while !flying.is_empty() {
            slots.push(land(&mut flying)?);
        }
        let bytes = (chunks * chunk_bytes) as f64;
        rates.push(bytes / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(rates)
}

/// Waits for the oldest copy and takes its slot back.
fn land(flying: &mut VecDeque<Copying>) -> Result<Slot> {
    let oldest = flying.pop_front().expect("slots are free or flying");
    oldest.wait().map_err(|refused| refused.error)
}
