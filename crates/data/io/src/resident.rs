//! Small reads of a file that is in the page cache, made on the caller's thread.
//!
//! A job costs tens of microseconds: it is planned, posted to lanes, and its end is told. A read of 4 KiB from the page
//! cache takes one. So small reads are first tried here, without waiting for a drive. If one byte is not in the cache,
//! the caller begins a job for all of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{
    Choice, Extent, Leg, Place, Reason, Receipt, Result, Route,
    receipt::{Bound, Latency, Percentiles, RouteBytes, SCHEMA},
};
use straightway_sys::{CpuTime, Region, Window, blocking};

use crate::{executor::Executor, handle::Handle, opening::Running, request::usize_of, store::file};

/// The longest read that is tried. Several lanes copy a longer one faster than one thread.
const READ_BYTES_MAX: u64 = 128 << 10;

/// The most bytes of all reads of one call: the caller's thread is busy for about a millisecond.
const CALL_BYTES_MAX: u64 = 8 << 20;

/// One small read.
#[derive(Clone, Debug)]
pub struct SmallRead {
    /// The bytes of the object.
    pub extent: Extent,
    /// The region.
    pub to: Arc<Region>,
    /// The offset in the region.
    pub at: u64,
}

impl Executor {
    /// Whether [`read_resident`](Self::read_resident) may be tried for these extents of an object.
    pub fn suits_resident(&self, object: &dyn Handle, choice: Choice, extents: impl Iterator<Item = Extent>) -> bool {
        let is_asked = matches!(choice, Choice::Auto | Choice::Only(Route::Buffered));
        let Some(file) = object.file().filter(|file| file.is_on_local_file_system()) else {
            return false;
        };
        if !is_asked || !self.is_free() {
            return false;
        }
        let (end, mut left) = (file.bytes(), CALL_BYTES_MAX);
        for extent in extents {
            let fits = extent.bytes <= READ_BYTES_MAX.min(left);
            if !fits || extent.offset.checked_add(extent.bytes).is_none_or(|e| e > end) {
                return false;
            }
            left -= extent.bytes;
        }
        true
    }

    /// Reads small extents of a file on this thread, if all of their bytes are in the page cache. Otherwise returns
    /// `None`; some of the regions are then written to.
    ///
    /// The caller has asked [`suits_resident`](Self::suits_resident). Regions are in host memory.
    pub fn read_resident(
        &self,
        object: &Arc<dyn Handle>,
        choice: Choice,
        reads: &[SmallRead],
    ) -> Option<Result<Receipt>> {
        let file = file(object).ok()?;
        let is_reachable = |read: &SmallRead| {
            let end = read.at.checked_add(read.extent.bytes);
            read.to.place() == Place::Host && end.is_some_and(|end| end <= read.to.bytes())
        };
        if !reads.iter().all(is_reachable) {
            return None;
        }
        let (began, cpu, _running) = (Instant::now(), CpuTime::of_thread(), Running::begin());
        let mut took = Vec::with_capacity(reads.len());
        let (mut ios, mut before) = (0, began);
        for read in reads.iter().filter(|read| !read.extent.is_empty()) {
            let window = Window::new(&read.to, read.at, usize_of(read.extent.bytes));
            ios += blocking::read_now(&file, read.extent.offset, window)?;
            let now = Instant::now();
            took.push(now - before);
            before = now;
        }
        if let Err(error) = file.check_unchanged() {
            return Some(Err(error));
        }
        let reason = match choice {
            Choice::Auto => Reason::Resident,
            Choice::Only(_) => Reason::Demanded,
        };
        let bytes = reads.iter().map(|read| read.extent.bytes).sum();
        let row = RouteBytes {
            leg: Leg::Read,
            route: Route::Buffered,
            reason,
            bytes,
        };
        took.sort_unstable();
        let us = |time: &Duration| time.as_secs_f64() * 1e6;
        let at = |per_mille: usize| took.get(took.len() * per_mille / 1000).map_or(0.0, us);
        let storage = Percentiles {
            count: took.len() as u64,
            p50_us: at(500),
            p99_us: at(990),
            p99_9_us: at(999),
            max_us: took.last().map_or(0.0, us),
        };
        Some(Ok(receipt(began, cpu, row, ios, storage)))
    }
}

/// The receipt of reads on this thread.
fn receipt(began: Instant, cpu: CpuTime, row: RouteBytes, ios: u64, storage: Percentiles) -> Receipt {
    let seconds = began.elapsed().as_secs_f64();
    let (bytes, cpu) = (row.bytes, CpuTime::of_thread() - cpu);
    let is_empty = bytes == 0;
    Receipt {
        schema: SCHEMA.to_owned(),
        bytes,
        seconds,
        rate_bytes_per_s: bytes as f64 / seconds.max(1e-9),
        routes: if is_empty { Vec::new() } else { vec![row] },
        latency: Latency {
            storage,
            ..Latency::default()
        },
        cpu_user_s: cpu.user_s,
        cpu_system_s: cpu.system_s,
        cpu_s_per_gb: if is_empty {
            0.0
        } else {
            cpu.total_s() / (bytes as f64 / 1e9)
        },
        cpu_shared: false,
        staging_bytes_peak: 0,
        pinned_bytes_peak: 0,
        ios,
        storage_bytes: bytes,
        sync_s: 0.0,
        waiting_s: 0.0,
        engine: if is_empty { "none" } else { "pread" }.to_owned(),
        lanes: 0,
        registration: None,
        requests: None,
        sockets: None,
        verified: None,
        bound_by: if is_empty { Bound::Nothing } else { Bound::PageCache },
        settings_from: Vec::new(),
        warnings: Vec::new(),
    }
}
