//! Which parts of a file are in the page cache.
//!
//! `cachestat(2)` (Linux 6.5) counts the cached pages of a range without accessing them. The whole file is queried
//! first. Only a range that is partly cached is halved and queried again: a file that is completely cached or not
//! cached at all costs one call.
//!
//! Older kernels have `mincore(2)` on a mapping (`page_map.rs`). Overlays need it too: the pages of a file belong to the
//! file system below, which `cachestat` does not see and a mapping does. It visits every page (5 ns for one that is not
//! cached, 30 ns for one that is), so each window is queried once.

use std::{
    io,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
};

use straightway_core::{
    Extent,
    extent::{down, up},
};

use crate::file::{File, IoPath};

const PAGE: u64 = 4096;

/// Halving stops at this size: a drive reads this much in less time than a query takes.
const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// The maximum number of windows of one query.
const WINDOWS_MAX: u64 = 8192;

/// The parts of `extent` that are in the page cache, as whole pages, in order.
///
/// A window that is at least half cached counts as cached: the kernel reads the rest, and a read that does not wait
/// shows how much that is. Where no read can show it, only a window that is completely cached counts. If the kernel
/// does not answer (without write permission, or because it is too old), nothing counts as cached.
pub fn resident(file: &File, extent: Extent) -> Vec<Extent> {
    let window_bytes = up((extent.bytes / WINDOWS_MAX).max(WINDOW_BYTES_MIN), PAGE);
    let whole = extent.superset(PAGE);
    let mut open = vec![whole];
    if counts_by_page(file) {
        let starts = (whole.offset..whole.end()).step_by(usize::try_from(window_bytes).unwrap_or(usize::MAX));
        open = starts
            .map(|at| Extent::between(at, whole.end().min(at + window_bytes)))
            .collect();
        open.reverse();
    }
    let mut runs: Vec<Extent> = Vec::new();
    while let Some(range) = open.pop() {
        let Ok(cached) = cached_pages(file, range) else {
            return Vec::new();
        };
        let pages = range.bytes / PAGE;
        if cached == 0 {
            continue;
        }
        if cached < pages && range.bytes > window_bytes {
            let half = range.offset + up(range.bytes / 2, PAGE);
            open.push(Extent::between(half, range.end()));
            open.push(Extent::between(range.offset, half));
            continue;
        }
        let least = if file.reads_nowait() { pages.div_ceil(2) } else { pages };
        if cached < least {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end() == range.offset => run.bytes += range.bytes,
            _ => runs.push(range),
        }
    }
    runs
}

/// Whether every page of `extent` is in the page cache.
pub(crate) fn is_resident(file: &File, extent: Extent) -> bool {
    let whole = extent.superset(PAGE);
    cached_pages(file, whole).is_ok_and(|cached| cached * PAGE == whole.bytes)
}

/// The number of bytes of a file in the page cache, in whole pages. `None` if the kernel does not answer.
pub fn resident_bytes(file: &File) -> Option<u64> {
    let whole = Extent::new(0, file.bytes()).superset(PAGE);
    cached_pages(file, whole).ok().map(|pages| pages * PAGE)
}

/// The number of windows of a sample, spread evenly: a gap of a hundredth of the file is found.
const SAMPLES: u64 = 128;

/// The length of a window of a sample.
const SAMPLE_BYTES: u64 = 16 * PAGE;

/// As [`resident`], but a file whose samples are all cached counts as completely cached.
///
/// Counting visits every cached page: 8 GiB take 28 ms on a host that copies them in 160 ms. The later read must
/// detect pages that were not cached after all.
pub fn resident_by_sample(file: &File, extent: Extent) -> Vec<Extent> {
    let whole = extent.superset(PAGE);
    if whole.bytes < SAMPLES * SAMPLE_BYTES * 4 {
        return resident(file, extent);
    }
    let last = whole.end() - SAMPLE_BYTES;
    let stride = (last - whole.offset) / (SAMPLES - 1);
    let is_cached = |i: u64| {
        let offset = down(whole.offset + i * stride, PAGE);
        cached_pages(file, Extent::new(offset, SAMPLE_BYTES)).is_ok_and(|pages| pages * PAGE == SAMPLE_BYTES)
    };
    // The last window may exceed the file, where there are no pages.
    if (0..SAMPLES - 1).all(is_cached) {
        vec![whole]
    } else {
        resident(file, extent)
    }
}

/// The number of cached pages in `range`, which consists of whole pages.
fn cached_pages(file: &File, range: Extent) -> io::Result<u64> {
    if counts_by_page(file) {
        return mincore(file, range);
    }
    match cachestat(file, range) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            NO_CACHESTAT.store(true, Ordering::Relaxed);
            mincore(file, range)
        }
        answer => answer,
    }
}

/// Whether this kernel lacks `cachestat`.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// Whether the kernel is asked about each page of the file.
fn counts_by_page(file: &File) -> bool {
    file.is_overlaid() || NO_CACHESTAT.load(Ordering::Relaxed)
}

fn mincore(file: &File, range: Extent) -> io::Result<u64> {
    let map = file.page_map();
    map.ok_or(io::ErrorKind::PermissionDenied)?.cached(range)
}

/// `struct cachestat_range` and `struct cachestat` of the kernel.
#[repr(C)]
struct Range {
    offset: u64,
    bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn cachestat(file: &File, range: Extent) -> io::Result<u64> {
    // System call numbers are the same on all architectures since Linux 5.1.
    const SYS_CACHESTAT: libc::c_long = 451;
    let fd = file.descriptor(IoPath::PageCache).as_raw_fd();
    let range = Range {
        offset: range.offset,
        bytes: range.bytes,
    };
    let mut stat = Stat::default();
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut stat, 0) };
    match status {
        0 => Ok(stat.cached),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_system_calls_agree_with_what_was_read() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1_u8; 5 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        let whole = Extent::new(0, file.bytes());
        assert_eq!(resident(&file, whole), vec![whole]);
        assert_eq!(mincore(&file, whole).unwrap(), 1280);
        assert_eq!(cachestat(&file, whole).ok().unwrap_or(1280), 1280);
    }

    #[test]
    fn a_sample_distinguishes_cached_and_evicted_files() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1_u8; 64 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        let whole = Extent::new(0, file.bytes());
        assert_eq!(resident_by_sample(&file, whole), vec![whole]);
        file.evict().unwrap();
        if cached_pages(&file, whole).is_ok_and(|pages| pages == 0) {
            assert_eq!(resident_by_sample(&file, whole), Vec::new());
        } else {
            eprintln!("left out: evicted files: this file system does not evict its pages");
        }
    }
}
