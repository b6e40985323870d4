//! A copy of a rank's state in memory, as the image of its shard: taken while the job stands still,
//! written while it goes on.
//!
//! There is one piece of memory, and it is used again by every save: pinned where tensors are on a GPU, so that
//! their copy runs at the speed of the bus. Host tensors are copied by several threads, a chunk at
//! a time, and each chunk's checksum is taken while it is still in the cache; those that a GPU copied are
//! summed while they are written.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use straightway_core::{Bytes, Error, Extent, Kind, Place, Result, extent::up};
use straightway_io::Region;
use straightway_sys::{
    Slot,
    cuda::{Copying, DeviceMemory, Span},
};

use super::{image::Image, source::Source, streams::Streams, sum::Sum};
use crate::weights::Holding;

/// Threads that copy host tensors. One copies 9 GB/s, and eight are what memory takes.
const COPIERS_MAX: usize = 8;

/// Memory is taken in units of this, so that a state that grows a little finds room.
const GRAIN_BYTES: u64 = 2 << 20;

/// The memory that snapshots are taken in.
#[derive(Debug, Default)]
pub(crate) struct Studio {
    region: Option<Region>,
    streams: Streams,
}

/// A rank's state as it was.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Holds the image, and perhaps more.
    pub(crate) region: Region,
    /// How long the image is.
    pub(crate) bytes: u64,
    /// The checksum of each chunk, as far as it was taken.
    pub(crate) sums: Vec<Option<Sum>>,
}

impl Studio {
    /// Takes a snapshot. The memory comes back by [`give_back`](Self::give_back).
    pub(crate) fn take(
        &mut self,
        image: &Image,
        sources: &[Source<'_>],
        chunk_bytes: u64,
        memory_bytes_max: u64,
    ) -> Result<Snapshot> {
        let bytes = image.bytes();
        let mut region = self.region_of(bytes, memory_bytes_max)?;
        let on_devices: Vec<_> = image.on_devices(sources).collect();
        if !on_devices.is_empty() {
            region = self.copy_from_devices(region, sources, &on_devices)?;
        }
        let used = usize::try_from(bytes).expect("it is in memory");
        let sums = fill(
            image,
            sources,
            &mut region.as_mut_slice()[..used],
            chunk_bytes,
        );
        Ok(Snapshot {
            region,
            bytes,
            sums,
        })
    }

    /// Takes the memory of a snapshot back.
    pub(crate) fn give_back(&mut self, region: Region) {
        self.region = Some(region);
    }

    /// Memory for `bytes`: what is there, if that is enough.
    pub(crate) fn region_of(&mut self, bytes: u64, memory_bytes_max: u64) -> Result<Region> {
        if bytes > memory_bytes_max {
            let target = format!("a state of {}", Bytes(bytes));
            let message = format!("{} of memory are allowed for it", Bytes(memory_bytes_max));
            return Err(
                Error::new(Kind::Invalid, "take a snapshot of", target, message)
                    .with_hint("allow more memory, or save from more ranks"),
            );
        }
        match self.region.take() {
            Some(region) if region.bytes() >= bytes => Ok(region),
            // What was there is let go of first, or both would be there at once.
            too_small => {
                drop(too_small);
                // Its pages come with the first copies, on all their threads.
                Region::at(Place::Host, up(bytes.max(1), GRAIN_BYTES))
            }
        }
    }

    /// Copies tensors of GPUs to their places. All copies are under way at once.
    fn copy_from_devices(
        &mut self,
        region: Region,
        sources: &[Source<'_>],
        places: &[(usize, Extent)],
    ) -> Result<Region> {
        let memory = |(number, _): &(usize, Extent)| match &sources[*number].memory {
            Holding::Device(memory) => memory,
            Holding::Host(_) => unreachable!("only what is on a GPU has a place here"),
        };
        let memories: Vec<_> = places.iter().map(memory).collect();
        region.pin(memories[0].context())?;
        let parts: Vec<_> = places.iter().map(|(_, extent)| *extent).collect();
        let (divided, slots) = region.divide(&parts)?;
        let mut flying = Vec::with_capacity(slots.len());
        let mut outcome = Ok(());
        for (memory, slot) in memories.into_iter().zip(slots) {
            match self.start(memory, slot) {
                Ok(copying) => flying.push(copying),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Every copy is waited for, whatever came of the others.
        for copying in flying {
            let landed = copying.wait().map(drop).map_err(|refused| refused.error);
            outcome = outcome.and(landed);
        }
        let region = divided.unite();
        outcome?;
        region
    }

    /// Starts the copy of all of a GPU's memory into a slot that is as long.
    fn start(&mut self, memory: &Arc<DeviceMemory>, slot: Slot) -> Result<Copying> {
        let stream = self.streams.on(memory.context())?;
        let all = Span {
            slot_offset: 0,
            memory_offset: 0,
            bytes: slot.bytes(),
        };
        let started = stream.copy_to_host(slot, memory, &[all]);
        started.map_err(|refused| refused.error)
    }
}

/// Fills all chunks with what is in host memory and sums those that are then whole.
fn fill(
    image: &Image,
    sources: &[Source<'_>],
    bytes: &mut [u8],
    chunk_bytes: u64,
) -> Vec<Option<Sum>> {
    each_chunk(bytes, chunk_bytes, |number, chunk| {
        let offset = number as u64 * chunk_bytes;
        let is_all = image.fill(sources, offset, chunk);
        is_all.then(|| Sum::of(chunk))
    })
}

/// Runs `work` on every chunk of `bytes`, on several threads, and answers what it answered, in order.
pub(crate) fn each_chunk<T: Send + Default>(
    bytes: &mut [u8],
    chunk_bytes: u64,
    work: impl Fn(usize, &mut [u8]) -> T + Sync,
) -> Vec<T> {
    let chunk_bytes = usize::try_from(chunk_bytes).expect("a chunk fits into memory");
    let chunks: Vec<_> = bytes
        .chunks_mut(chunk_bytes)
        .map(|c| Mutex::new(Some(c)))
        .collect();
    let answers: Vec<_> = chunks.iter().map(|_| Mutex::new(T::default())).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(number) else {
                return;
            };
            let chunk = chunk.lock().unwrap_or_else(PoisonError::into_inner).take();
            let answer = work(number, chunk.expect("each number is drawn once"));
            *answers[number]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = answer;
        }
    };
    let threads = threads().min(chunks.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    let take = |answer: Mutex<T>| answer.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.into_iter().map(take).collect()
}

/// How many threads work on memory.
pub(crate) fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores.min(COPIERS_MAX)
}
