//! The settings of the transfer planner: the user's choice of a route, and sizes that suit the machine.

use crate::{
    error::{Error, ErrorKind, Result},
    place::Place,
    quantity::Bytes,
    route::Choice,
    survey::Alignment,
};

/// The settings of the transfer planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The user's choice of a route.
    pub choice: Choice,
    /// The memory of the region; for `Across`, the memory of the ring.
    pub place: Place,
    /// The region's address, which determines the alignment of its bytes.
    pub region_address: u64,
    /// The largest I/O with a drive, and so the size of a slot in its ring.
    pub chunk_bytes: u64,
    /// The largest chunk through the page cache.
    pub cached_chunk_bytes: u64,
    /// The longest request of a long transfer that is received from a socket directly into the region.
    pub request_bytes_max: u64,
    /// Extents whose gap is at most this long share one staged read.
    pub gap_bytes: u64,
    /// Whether a read through the ring is faster than DMA into host memory. That is the case for emulated drives, if a
    /// small ring stays in the CPU cache.
    pub ring_first: bool,
    /// A shorter extent is not worth a separate I/O: it shares one with its neighbours.
    pub direct_bytes_min: u64,
    /// Whether a write leaves the bytes around each move unchanged. Otherwise it zeroes the rest of the pages at the
    /// edges of a move.
    pub keeps_edges: bool,
}

impl Policy {
    /// The longest chunk: the result of one io_uring read must fit into an `i32`.
    pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

    /// The longest request: longer ones do not reduce the server's CPU time (bench/results/s3-requests.txt).
    pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

    /// A policy for host memory at address 0 with chunks of `chunk_bytes`.
    pub fn new(choice: Choice, chunk_bytes: u64) -> Self {
        Self {
            choice,
            place: Place::Host,
            region_address: 0,
            chunk_bytes,
            cached_chunk_bytes: chunk_bytes,
            request_bytes_max: Self::REQUEST_BYTES_MAX,
            // A 3 GB/s drive reads this much in the time of one 4 KiB I/O at 200 k IOPS.
            gap_bytes: 16 << 10,
            ring_first: false,
            // Head, interior and tail are three I/Os. Below this, one superset and a copy are cheaper.
            // A gather of 200,000 pages took a third of the time when neighbours shared reads.
            direct_bytes_min: 64 << 10,
            keeps_edges: false,
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
            ErrorKind::Invalid,
            "plan with chunks of",
            Bytes(wrong),
            message,
        ))
    }
}
