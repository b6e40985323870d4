//! A snapshot: a copy of a rank's state in memory, as the image of its shard. It is taken while the job is paused, and
//! written while the job runs.
//!
//! An image is taken segment by segment, and each segment is written while the next is taken. Every save reuses their
//! memory. It is pinned if tensors are on a GPU, so that the copy runs at bus speed. Several threads copy host tensors
//! chunk by chunk, and compute each checksum while the chunk is in the cache. Checksums of chunks that a GPU copied are
//! computed while they are written.

use std::{
    sync::{Arc, mpsc::Receiver},
    thread::{Builder, JoinHandle},
};

use straightway_core::{
    Bytes, Error, ErrorKind, Extent, Place, Result,
    extent::{down, up},
};
use straightway_io::Region;
use straightway_io::parallel;
use straightway_sys::{
    Slot,
    cuda::{Context, CopyDirection, Copying, CudaStreams, DeviceMemory, Span},
};

use super::{image::Image, source::SaveSource, sum::Sum};

/// The maximum number of threads that copy host tensors. One copies 9 GB/s, and eight saturate memory.
const COPIERS_MAX: usize = 8;

/// Memory is allocated in multiples of this, so that a state that grows a little still fits.
const GRAIN_BYTES: u64 = 2 << 20;

/// The length of the first segment: short, so that the drive starts early.
const SEGMENT_BYTES_MIN: u64 = 256 << 20;

/// The growth factor of segments. The drive's queue runs empty at the end of a segment, so there should be few. The
/// next segment is taken while one is written, and host memory is faster than the drive by about this factor.
const SEGMENT_GROWTH: u64 = 2;

/// The memory for snapshots, reused by every save.
#[derive(Debug, Default)]
pub(crate) struct SnapshotPool {
    regions: Vec<Region>,
    streams: CudaStreams,
}

/// A thread that prepares memory.
pub(crate) type Preparing = JoinHandle<Result<SnapshotPool>>;

/// A part of a snapshot.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The memory that holds it, which may be longer.
    pub(crate) region: Region,
    /// Its extent in the image.
    pub(crate) extent: Extent,
    /// The checksum of each chunk; `None` if it is not computed yet.
    pub(crate) sums: Vec<Option<Sum>>,
}

/// The segments of a snapshot, as they are taken. It keeps their memory, also that of a save that fails.
#[derive(Debug)]
pub(crate) struct Segments {
    inbox: Receiver<Segment>,
    used: Vec<Arc<Region>>,
}

impl Segments {
    /// Those that arrive here.
    pub(crate) fn new(inbox: Receiver<Segment>) -> Self {
        let used = Vec::new();
        Self { inbox, used }
    }

    /// The next segment, once it is taken; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<Segment> {
        self.inbox.recv().ok()
    }

    /// The memory of a segment, for a transfer.
    pub(crate) fn share(&mut self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        self.used.push(Arc::clone(&region));
        region
    }

    /// The memory of all segments, after the last one was taken. Nothing else uses it any more.
    pub(crate) fn into_regions(self) -> Vec<Region> {
        let unused = self.inbox.into_iter().map(|segment| segment.region);
        unused
            .chain(self.used.into_iter().filter_map(Arc::into_inner))
            .collect()
    }
}

/// Cuts an image into segments of whole chunks.
pub(crate) fn segments(bytes: u64, chunk_bytes: u64) -> impl Iterator<Item = Extent> {
    let first_bytes = down(SEGMENT_BYTES_MIN, chunk_bytes).max(chunk_bytes);
    let cut = move |start: u64, segment_bytes: u64| {
        let end = bytes.min(start.saturating_add(segment_bytes));
        (start < bytes).then(|| Extent::between(start, end))
    };
    let longer = |segment: &Extent| segment.bytes.saturating_mul(SEGMENT_GROWTH);
    std::iter::successors(cut(0, first_bytes), move |last| cut(last.end(), longer(last)))
}

/// Returns an error if a state needs more memory than is allowed.
pub(crate) fn check_memory(bytes: u64, memory_bytes_max: u64) -> Result<()> {
    if bytes <= memory_bytes_max {
        return Ok(());
    }
    let target = format!("a state of {}", Bytes(bytes));
    let message = format!("{} of memory are allowed for it", Bytes(memory_bytes_max));
    Err(Error::new(ErrorKind::Invalid, "take a snapshot of", target, message)
        .with_hint("allow more memory, or save from more ranks"))
}

impl SnapshotPool {
    /// Takes a snapshot of part of an image. [`give_back`](Self::give_back) returns its memory to the pool.
    pub(crate) fn take(
        &mut self,
        image: &Image,
        sources: &[SaveSource<'_>],
        extent: Extent,
        chunk_bytes: u64,
    ) -> Result<Segment> {
        let mut region = self.region_of(extent.bytes)?;
        let on_devices: Vec<_> = image.on_devices(sources, extent).collect();
        if !on_devices.is_empty() {
            if let Err(error) = region.pin(on_devices[0].0.context()) {
                self.give_back(region);
                return Err(error);
            }
            region = self.copy_from_devices(region, extent, &on_devices)?;
        }
        let used = usize::try_from(extent.bytes).expect("it is in memory");
        let bytes = &mut region.as_mut_slice()[..used];
        let sums = each_chunk(bytes, chunk_bytes, |number, chunk| {
            let offset = extent.offset + number as u64 * chunk_bytes;
            let is_all = image.fill(sources, offset, chunk);
            is_all.then(|| Sum::of(chunk))
        });
        Ok(Segment { region, extent, sums })
    }

    /// Prepares memory for segments of these lengths on a background thread. With `context`, the memory is pinned for
    /// copies from its GPU.
    pub(crate) fn prepare(lengths: Vec<u64>, context: Option<Context>) -> Result<Preparing> {
        let make = move || {
            let mut pool = Self::default();
            for bytes in lengths {
                // One grain more, so that a state that grows a little still fits.
                let region = Region::at(Place::Host, up(bytes.max(1), GRAIN_BYTES) + GRAIN_BYTES)?;
                match &context {
                    // Pinning also faults in the pages.
                    Some(context) => region.pin(context)?,
                    None => region.populate(),
                }
                pool.regions.push(region);
            }
            if let Some(context) = &context {
                pool.streams.on(context)?;
            }
            Ok(pool)
        };
        let thread = Builder::new().name("straightway-prepare".to_owned());
        let thread = thread.spawn(make);
        thread.map_err(|e| Error::os("start", "a thread", e))
    }

    /// Waits for prepared memory and adds it to the pool. If the preparation failed, the save allocates memory itself
    /// and reports the error.
    pub(crate) fn adopt(&mut self, preparing: Preparing) {
        if let Ok(Ok(mut ready)) = preparing.join() {
            self.regions.append(&mut ready.regions);
            self.streams = ready.streams;
        }
    }

    /// Whether the pool has memory.
    pub(crate) fn has_memory(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Returns the memory of a segment to the pool.
    pub(crate) fn give_back(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// Memory for `bytes`: the shortest region in the pool that is long enough, or a new one.
    pub(crate) fn region_of(&mut self, bytes: u64) -> Result<Region> {
        let fits = self.regions.iter().enumerate();
        let fits = fits.filter(|(_, region)| region.bytes() >= bytes);
        if let Some((number, _)) = fits.min_by_key(|(_, region)| region.bytes()) {
            return Ok(self.regions.swap_remove(number));
        }
        // A region that is too short is freed first, so that both do not exist at once.
        let longest = self.regions.iter().enumerate();
        if let Some((number, _)) = longest.max_by_key(|(_, region)| region.bytes()) {
            drop(self.regions.swap_remove(number));
        }
        // Its pages are faulted in by the copies, on all threads.
        Region::at(Place::Host, up(bytes.max(1), GRAIN_BYTES))
    }

    /// Copies tensors of GPUs to their places. All copies run at once. After an error the memory is in the pool.
    fn copy_from_devices(
        &mut self,
        region: Region,
        window: Extent,
        places: &[(&Arc<DeviceMemory>, Extent)],
    ) -> Result<Region> {
        let part = |(_, extent): &(_, Extent)| {
            let shared = extent.intersection(window);
            Extent::new(shared.offset - window.offset, shared.bytes)
        };
        let parts: Vec<_> = places.iter().map(part).collect();
        let (divided, slots) = region.divide(&parts)?;
        let mut in_flight = Vec::with_capacity(slots.len());
        let mut outcome = Ok(());
        for ((memory, extent), slot) in places.iter().zip(slots) {
            let from = window.offset.saturating_sub(extent.offset);
            match self.start(memory, from, slot) {
                Ok(copying) => in_flight.push(copying),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Every copy is waited for, even if another one failed.
        for copying in in_flight {
            let landed = copying.wait().map(drop).map_err(|refused| refused.error);
            outcome = outcome.and(landed);
        }
        let region = divided.unite()?;
        match outcome {
            Ok(()) => Ok(region),
            Err(error) => {
                self.give_back(region);
                Err(error)
            }
        }
    }

    /// Starts a copy of GPU memory from `from` on into a slot, which is filled.
    fn start(&mut self, memory: &Arc<DeviceMemory>, from: u64, slot: Slot) -> Result<Copying> {
        let stream = self.streams.on(memory.context())?;
        let all = Span {
            slot_offset: 0,
            memory_offset: usize::try_from(from).expect("it lies inside memory"),
            bytes: slot.bytes(),
        };
        let started = stream.copy(CopyDirection::ToHost, slot, memory, &[all]);
        started.map_err(|refused| refused.error)
    }
}

/// Runs `work` on every chunk of `bytes` on several threads, and returns the results in order.
pub(crate) fn each_chunk<T: Send>(
    bytes: &mut [u8],
    chunk_bytes: u64,
    work: impl Fn(usize, &mut [u8]) -> T + Sync,
) -> Vec<T> {
    let chunk_bytes = usize::try_from(chunk_bytes).expect("a chunk fits into memory");
    parallel::each(bytes.chunks_mut(chunk_bytes), threads(), work)
}

/// The number of threads for work on memory.
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
        assert_eq!(segments(1, chunk_bytes).collect::<Vec<_>>(), [Extent::new(0, 1)]);
    }
}
