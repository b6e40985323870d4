//! Several regions of a GPU that a transfer takes for one.
//!
//! Tensors that a library owns one by one are regions of their own. The plan does not know: to it they are one region, so
//! that chunks run across the borders between tensors, and only copies are cut there. Memory may come while the transfer
//! runs: a library's allocator takes 20 ms for a large model, in which storage need not wait. Lanes take chunks up to
//! where the memory is there.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use straightway_core::{Error, Kind, Result};
use straightway_sys::Region;

use crate::stage::Regions;

/// A region that holds part of the whole.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where its bytes begin in the whole.
    pub from: u64,
    /// Where they begin in the region.
    pub at: u64,
    /// The region. What is in it from `at` on belongs to the whole.
    pub region: Arc<Region>,
}

/// Regions of one GPU that stand for one region.
#[derive(Debug)]
pub struct Scattered {
    /// Where the bytes of each begin in the whole, and where in its region.
    starts: Vec<(u64, u64)>,
    regions: Regions,
    bytes: u64,
    /// All memory below this offset of the whole is there.
    ready: AtomicU64,
}

impl Scattered {
    /// Puts parts together, in order, to a whole of `bytes` bytes. What lies between the end of a region and the next part
    /// is a gap: a transfer that has bytes for it fails. No part has its memory yet, as far as transfers know:
    /// [`open`](Self::open) says so.
    pub fn new(parts: Vec<Part>, bytes: u64) -> Result<Self> {
        let refuse = |why: &str| Err(Error::new(Kind::Invalid, "make", "scattered memory", why));
        let Some(first) = parts.first().filter(|first| first.from == 0) else {
            return refuse("no part begins it");
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

    /// How long the whole is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its regions, by the numbers of the parts.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Says that the first `parts` parts have their memory.
    ///
    /// # Panics
    ///
    /// Where one of them has not.
    pub fn open(&self, parts: usize) {
        let given = self.regions[..parts].iter();
        assert!(
            given.clone().all(|region| region.device_memory().is_some()),
            "the memory of a part is given before it is opened"
        );
        let end = self.starts.get(parts).map_or(self.bytes, |(from, _)| *from);
        self.ready.fetch_max(end, Ordering::Release);
    }

    pub(crate) fn shared_regions(&self) -> &Regions {
        &self.regions
    }

    /// Whether all memory up to this offset of the whole is there.
    pub(crate) fn is_ready(&self, end: u64) -> bool {
        self.ready.load(Ordering::Acquire) >= end
    }

    /// Which parts `bytes` bytes from `at` on are in: the number of each, where in its region, and how many.
    pub(crate) fn cut(&self, mut at: u64, bytes: u64) -> impl Iterator<Item = (u32, u64, u64)> {
        let mut left = bytes;
        let mut number = self.starts.partition_point(|(from, _)| *from <= at) - 1;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let (from, start) = self.starts[number];
            let end = self
                .starts
                .get(number + 1)
                .map_or(self.bytes, |(from, _)| *from);
            let own = left.min(end - at);
            let piece = (
                u32::try_from(number).expect("parts are few"),
                start + (at - from),
                own,
            );
            (at, left, number) = (at + own, left - own, number + 1);
            Some(piece)
        })
        .filter(|(_, _, own)| *own > 0)
    }
}
