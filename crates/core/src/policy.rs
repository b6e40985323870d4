//! How a transfer is to be cut: the user's choice of route, and the sizes that suit the machine.

use crate::{
    error::{Error, Kind, Result},
    quantity::Bytes,
    route::{Choice, Place},
    survey::Alignment,
};

/// The settings of the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which route the user wants.
    pub choice: Choice,
    /// Where the region is; across, where the ring is.
    pub place: Place,
    /// The region's address, from which follows what in it is aligned.
    pub region_address: u64,
    /// The largest I/O with a drive, and so the size of a slot in its ring.
    pub chunk_bytes: u64,
    /// The most that a chunk through the page cache has.
    pub cached_chunk_bytes: u64,
    /// The longest request of a long transfer for bytes that go straight from a socket into the region.
    pub request_bytes_max: u64,
    /// Extents closer than this share one staged read.
    pub gap_bytes: u64,
    /// Whether a read by the ring is faster than DMA into host memory, as it is where a small ring stays in
    /// the processor's cache and the drive is emulated.
    pub ring_first: bool,
    /// Below this, an extent is not worth an I/O of its own: it goes with its neighbours.
    pub direct_bytes_min: u64,
}

impl Policy {
    /// Chunks are at most this long: what one io_uring read can return fits an `i32`.
    pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

    /// The longest request: beyond it the server's CPU time falls no more (bench/results/s3-requests-2026-11-16.txt).
    pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

    /// A policy for host memory at address 0 with these chunks.
    pub fn new(choice: Choice, chunk_bytes: u64) -> Self {
        Self {
            choice,
            place: Place::Host,
            region_address: 0,
            chunk_bytes,
            cached_chunk_bytes: chunk_bytes,
            request_bytes_max: Self::REQUEST_BYTES_MAX,
            // What a 3 GB/s drive reads in the time that one more 4 KiB I/O takes at 200 k IOPS.
            gap_bytes: 16 << 10,
            ring_first: false,
            // Head, interior and tail are three I/Os; one superset and a copy is cheaper below this.
            // And a gather of 200,000 pages took a third of the time with one read for each few.
            direct_bytes_min: 64 << 10,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let fits = |bytes: u64| {
            bytes.is_multiple_of(Alignment::PAGE_BYTES)
                && (Alignment::PAGE_BYTES..=Self::CHUNK_BYTES_MAX).contains(&bytes)
        };
        let sizes = [self.chunk_bytes, self.cached_chunk_bytes];
        let Some(wrong) = sizes.into_iter().find(|bytes| !fits(*bytes)) else {
            return Ok(());
        };
        let message = format!(
            "chunks are whole pages of 4 KiB, from one page to {}",
            Bytes(Self::CHUNK_BYTES_MAX)
        );
        Err(Error::new(
            Kind::Invalid,
            "plan with chunks of",
            Bytes(wrong),
            message,
        ))
    }
}
