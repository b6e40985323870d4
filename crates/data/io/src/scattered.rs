//! Several regions of one GPU that a transfer treats as one region.
//!
//! Tensors that a library allocates one by one are separate regions. The plan treats them as one region: chunks cross
//! the borders between tensors, and only the copies are split there. Memory may be allocated while the transfer runs: a
//! library's allocator takes 20 ms for a large model, and storage need not wait for it. Lanes take only chunks whose
//! memory is allocated.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::Region;

use crate::stage::Regions;

/// A region that holds part of the whole.
#[derive(Clone, Debug)]
pub struct ScatteredPart {
    /// Offset of its bytes in the whole.
    pub from: u64,
    /// Offset of its bytes in the region.
    pub at: u64,
    /// The region. Its bytes from `at` on belong to the whole.
    pub region: Arc<Region>,
}

/// Regions of one GPU that act as one region.
#[derive(Debug)]
pub struct Scattered {
    /// For each part, the offset in the whole and the offset in its region.
    starts: Vec<(u64, u64)>,
    regions: Regions,
    bytes: u64,
    /// All memory below this offset of the whole is allocated.
    ready: AtomicU64,
}

impl Scattered {
    /// Joins parts, in order, to a whole of `bytes` bytes. The space between the end of a region and the next part is a
    /// gap: a transfer with bytes in a gap fails. Transfers treat all parts as not yet allocated until
    /// [`open`](Self::open) is called.
    pub fn new(parts: Vec<ScatteredPart>, bytes: u64) -> Result<Self> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, "make", "scattered memory", why));
        let Some(first) = parts.first().filter(|first| first.from == 0) else {
            return refuse("its first part does not begin at offset 0");
        };
        let place = first.region.place();
        if !parts.is_sorted_by_key(|part| part.from) {
            return refuse("its parts are not in order");
        }
        for part in &parts {
            if part.from > bytes || part.at > part.region.bytes() {
                return refuse("a part begins beyond its end");
            }
            if part.region.context().is_none() || part.region.place() != place {
                return refuse("its parts are not on one GPU");
            }
        }
        Ok(Self {
            starts: parts.iter().map(|part| (part.from, part.at)).collect(),
            regions: parts.into_iter().map(|part| part.region).collect(),
            bytes,
            ready: AtomicU64::new(0),
        })
    }

    /// The length of the whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The regions, in the order of the parts.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Declares that the memory of the first `parts` parts is allocated.
    ///
    /// # Panics
    ///
    /// If one of them has no memory.
    pub fn open(&self, parts: usize) {
        let given = self.regions[..parts].iter();
        assert!(
            given.clone().all(|region| region.device_memory().is_some()),
            "a part has its memory before it is opened"
        );
        let end = self.starts.get(parts).map_or(self.bytes, |(from, _)| *from);
        self.ready.fetch_max(end, Ordering::Release);
    }

    pub(crate) fn shared_regions(&self) -> &Regions {
        &self.regions
    }

    /// Whether all memory up to this offset of the whole is allocated.
    pub(crate) fn is_ready(&self, end: u64) -> bool {
        self.ready.load(Ordering::Acquire) >= end
    }

    /// Splits `bytes` bytes from `at` on by part: the part's number, the offset in its region, and the length.
    pub(crate) fn cut(&self, mut at: u64, bytes: u64) -> impl Iterator<Item = (u32, u64, u64)> {
        let mut left = bytes;
        let mut number = self.starts.partition_point(|(from, _)| *from <= at) - 1;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let (from, start) = self.starts[number];
            let end = self.starts.get(number + 1).map_or(self.bytes, |(from, _)| *from);
            let own = left.min(end - at);
            let piece = (u32::try_from(number).expect("parts are few"), start + (at - from), own);
            (at, left, number) = (at + own, left - own, number + 1);
            Some(piece)
        })
        .filter(|(_, _, own)| *own > 0)
    }
}
