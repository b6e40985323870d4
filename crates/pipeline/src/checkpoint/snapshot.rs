//! A copy of a rank's state in memory, as the image of its shard: taken while the job stands still,
//! written while it goes on.
//!
//! An image is taken segment by segment, and each is on its way to the drive while the next is taken. Their
//! memory is used again by every save: pinned where tensors are on a GPU, so that their copy runs at the
//! speed of the bus. Host tensors are copied by several threads, a chunk at a time, and each chunk's
//! checksum is taken while it is still in the cache; those that a GPU copied are summed while they are
//! written.

use std::{
    sync::Arc,
    thread::{Builder, JoinHandle},
};

use straightway_core::{
    Bytes, Error, Extent, Kind, Place, Result,
    extent::{down, up},
};
use straightway_io::Region;
use straightway_sys::{
    Slot,
    cuda::{Context, Copying, DeviceMemory, Direction, Span, Streams},
};

use super::{image::Image, source::Source, sum::Sum};
use crate::parallel;

/// Threads that copy host tensors. One copies 9 GB/s, and eight are what memory takes.
const COPIERS_MAX: usize = 8;

/// Memory is taken in units of this, so that a state that grows a little finds room.
const GRAIN_BYTES: u64 = 2 << 20;

/// How long the first segment is: soon taken, so that the drive starts soon.
const SEGMENT_BYTES_MIN: u64 = 256 << 20;

/// How much longer each is than the one before. The drive's queue runs empty at the end of a segment, so there
/// are to be few; and while one is written the next is taken, which host memory does about this much faster.
const SEGMENT_GROWTH: u64 = 2;

/// The memory that snapshots are taken in.
#[derive(Debug, Default)]
pub(crate) struct Studio {
    regions: Vec<Region>,
    streams: Streams,
}

/// Memory that is being made ready.
pub(crate) type Preparing = JoinHandle<Result<Studio>>;

/// Part of a rank's state as it was.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Holds that part of the image, and perhaps more.
    pub(crate) region: Region,
    /// Which part of the image it is.
    pub(crate) extent: Extent,
    /// The checksum of each chunk, as far as it was taken.
    pub(crate) sums: Vec<Option<Sum>>,
}

/// Cuts an image into segments of whole chunks.
pub(crate) fn segments(bytes: u64, chunk_bytes: u64) -> impl Iterator<Item = Extent> {
    let first_bytes = down(SEGMENT_BYTES_MIN, chunk_bytes).max(chunk_bytes);
    let cut = move |start: u64, segment_bytes: u64| {
        let end = bytes.min(start.saturating_add(segment_bytes));
        (start < bytes).then(|| Extent::between(start, end))
    };
    let longer = |segment: &Extent| segment.bytes.saturating_mul(SEGMENT_GROWTH);
    std::iter::successors(cut(0, first_bytes), move |last| {
        cut(last.end(), longer(last))
    })
}

/// Refuses a state that would take more memory than is allowed.
pub(crate) fn check_memory(bytes: u64, memory_bytes_max: u64) -> Result<()> {
    if bytes <= memory_bytes_max {
        return Ok(());
    }
    let target = format!("a state of {}", Bytes(bytes));
    let message = format!("{} of memory are allowed for it", Bytes(memory_bytes_max));
    Err(
        Error::new(Kind::Invalid, "take a snapshot of", target, message)
            .with_hint("allow more memory, or save from more ranks"),
    )
}

impl Studio {
    /// Takes a snapshot of part of an image. Its memory comes back by [`give_back`](Self::give_back).
    pub(crate) fn take(
        &mut self,
        image: &Image,
        sources: &[Source<'_>],
        extent: Extent,
        chunk_bytes: u64,
    ) -> Result<Segment> {
        let mut region = self.region_of(extent.bytes)?;
        let on_devices: Vec<_> = image.on_devices(sources, extent).collect();
        if !on_devices.is_empty() {
            region = self.copy_from_devices(region, extent, &on_devices)?;
        }
        let used = usize::try_from(extent.bytes).expect("it is in memory");
        let bytes = &mut region.as_mut_slice()[..used];
        let sums = each_chunk(bytes, chunk_bytes, |number, chunk| {
            let offset = extent.offset + number as u64 * chunk_bytes;
            let is_all = image.fill(sources, offset, chunk);
            is_all.then(|| Sum::of(chunk))
        });
        Ok(Segment {
            region,
            extent,
            sums,
        })
    }

    /// Makes memory ready on a thread of its own, for segments of these lengths. Where `context` is given, tensors of its
    /// GPU will be copied there.
    pub(crate) fn prepare(lengths: Vec<u64>, context: Option<Context>) -> Result<Preparing> {
        let make = move || {
            let mut studio = Self::default();
            for bytes in lengths {
                // One grain more: a state that grows a little finds room.
                let region = Region::at(Place::Host, up(bytes.max(1), GRAIN_BYTES) + GRAIN_BYTES)?;
                match &context {
                    // This brings in the pages, too.
                    Some(context) => region.pin(context)?,
                    None => region.populate(),
                }
                studio.regions.push(region);
            }
            if let Some(context) = &context {
                studio.streams.on(context)?;
            }
            Ok(studio)
        };
        let thread = Builder::new().name("straightway-prepare".to_owned());
        let thread = thread.spawn(make);
        thread.map_err(|e| Error::os("start", "a thread", e))
    }

    /// Takes over what was made ready, and waits for it where that is not yet done. Where it failed, the save takes the
    /// memory itself, and says what it lacks.
    pub(crate) fn adopt(&mut self, preparing: Preparing) {
        if let Ok(Ok(mut ready)) = preparing.join() {
            self.regions.append(&mut ready.regions);
            self.streams = ready.streams;
        }
    }

    /// Whether it has any memory.
    pub(crate) fn has_memory(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Takes the memory of a segment back.
    pub(crate) fn give_back(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// Memory for `bytes`: the shortest that is there and long enough, or new.
    pub(crate) fn region_of(&mut self, bytes: u64) -> Result<Region> {
        let fits = self.regions.iter().enumerate();
        let fits = fits.filter(|(_, region)| region.bytes() >= bytes);
        if let Some((number, _)) = fits.min_by_key(|(_, region)| region.bytes()) {
            return Ok(self.regions.swap_remove(number));
        }
        // What is too short is let go of first, or both would be there at once.
        let longest = self.regions.iter().enumerate();
        if let Some((number, _)) = longest.max_by_key(|(_, region)| region.bytes()) {
            drop(self.regions.swap_remove(number));
        }
        // Its pages come with the first copies, on all their threads.
        Region::at(Place::Host, up(bytes.max(1), GRAIN_BYTES))
    }

    /// Copies tensors of GPUs to their places. All copies are under way at once.
    fn copy_from_devices(
        &mut self,
        region: Region,
        window: Extent,
        places: &[(&Arc<DeviceMemory>, Extent)],
    ) -> Result<Region> {
        region.pin(places[0].0.context())?;
        let part = |(_, extent): &(_, Extent)| {
            let shared = extent.intersection(window);
            Extent::new(shared.offset - window.offset, shared.bytes)
        };
        let parts: Vec<_> = places.iter().map(part).collect();
        let (divided, slots) = region.divide(&parts)?;
        let mut flying = Vec::with_capacity(slots.len());
        let mut outcome = Ok(());
        for ((memory, extent), slot) in places.iter().zip(slots) {
            let from = window.offset.saturating_sub(extent.offset);
            match self.start(memory, from, slot) {
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

    /// Starts the copy of a GPU's memory from `from` on into a slot, as much as that holds.
    fn start(&mut self, memory: &Arc<DeviceMemory>, from: u64, slot: Slot) -> Result<Copying> {
        let stream = self.streams.on(memory.context())?;
        let all = Span {
            slot_offset: 0,
            memory_offset: usize::try_from(from).expect("it lies inside memory"),
            bytes: slot.bytes(),
        };
        let started = stream.copy(Direction::ToHost, slot, memory, &[all]);
        started.map_err(|refused| refused.error)
    }
}

/// Runs `work` on every chunk of `bytes`, on several threads, and answers what it answered, in order.
pub(crate) fn each_chunk<T: Send>(
    bytes: &mut [u8],
    chunk_bytes: u64,
    work: impl Fn(usize, &mut [u8]) -> T + Sync,
) -> Vec<T> {
    let chunk_bytes = usize::try_from(chunk_bytes).expect("a chunk fits into memory");
    parallel::each(bytes.chunks_mut(chunk_bytes), threads(), work)
}

/// How many threads work on memory.
pub(crate) fn threads() -> usize {
    parallel::cores(COPIERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_chunks_that_follow_each_other_and_grow() {
        let (chunk_bytes, bytes) = (4 << 20, (5 << 30) + 12_345);
        let all: Vec<_> = segments(bytes, chunk_bytes).collect();
        assert_eq!(all[0], Extent::new(0, SEGMENT_BYTES_MIN));
        assert_eq!(all[all.len() - 1].end(), bytes);
        for pair in all.windows(2) {
            assert_eq!(pair[0].end(), pair[1].offset);
            assert!(pair[1].offset.is_multiple_of(chunk_bytes));
        }
        assert_eq!(all.len(), 5, "0.25, 0.5, 1 and 2 GiB, and the rest");
        assert_eq!(segments(0, chunk_bytes).count(), 0);
        assert_eq!(
            segments(1, chunk_bytes).collect::<Vec<_>>(),
            [Extent::new(0, 1)]
        );
    }
}
