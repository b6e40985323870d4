//! The executor's settings: lanes, queue depth, chunk size, memory, engine. They are plain data; handles and tools of
//! tests are [`ExecutorParts`](crate::ExecutorParts).

mod demand;

use straightway_core::{
    Alignment, Bytes, Error, ErrorKind, PciAddress, Place, Plan, Policy, Rate, Result, extent::down,
};
use straightway_sys::{FreeMemory, uring::DEPTH_MAX};

use crate::{gds::GdsUse, parallel, track::Track};

pub use demand::Demand;

/// The engine for I/O with drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriveEngine {
    /// io_uring, or the thread pool where io_uring is forbidden.
    #[default]
    Auto,
    /// io_uring, or an error.
    Ring,
    /// The thread pool.
    Pool,
}

/// The size of one lane's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// The number of slots.
    pub slots: usize,
    /// The length of each slot.
    pub slot_bytes: usize,
}

impl RingSize {
    /// The same memory in slots of at least `slot_bytes`, at least two of them: one is read into while another is
    /// unpacked or copied.
    pub(crate) fn cut(self, slot_bytes: usize) -> Self {
        if slot_bytes <= self.slot_bytes {
            return self;
        }
        let slots = self.slots * self.slot_bytes / slot_bytes;
        Self {
            slots: slots.max(2),
            slot_bytes,
        }
    }

    /// The same number of slots in at most `bytes`.
    pub(crate) fn within(self, bytes: u64) -> Self {
        let room = down(bytes / self.slots as u64, Alignment::PAGE_BYTES).max(Alignment::PAGE_BYTES);
        Self {
            slot_bytes: usize::try_from(room).map_or(self.slot_bytes, |room| room.min(self.slot_bytes)),
            ..self
        }
    }
}

/// The executor's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Lanes for the drive. One keeps a drive busy; more help with several drives.
    pub drive_lanes: u32,
    /// Lanes that copy between the page cache and host memory: one per core.
    pub cached_lanes: u32,
    /// Lanes for the drive where they also copy between the ring and host memory.
    pub ring_lanes: u32,
    /// I/Os in flight on each drive lane.
    pub depth: u32,
    /// The same for jobs that only write: a drive merges writes.
    pub write_depth: u32,
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// The largest copy between the page cache and host memory.
    pub cached_chunk_bytes: u64,
    /// The longest request over a network: [`Policy::request_bytes_max`].
    pub request_bytes_max: u64,
    /// The memory of the rings of one crew in host memory, over all its lanes. A crew serves one family of stores and
    /// one track, and jobs of class *now* have separate crews, so that an executor can use it several times. Lanes that
    /// check portions use more if each would have fewer than two slots of that length.
    pub staging_bytes: u64,
    /// Whether `Auto` reads from a drive into host memory through the ring: [`Policy::ring_first`].
    pub ring_first: bool,
    /// Lanes that copy between the page cache and a GPU.
    pub gpu_lanes: u32,
    /// The largest copy of such a lane.
    pub gpu_chunk_bytes: u64,
    /// The pinned memory of the rings of the drive lanes and the page-cache lanes of one GPU together. Lanes that check
    /// portions use the same slots, and more of them if portions are short. If both run at the same time they have as
    /// much again, and so have other families of stores and jobs of class *now*.
    pub pinned_bytes: u64,
    /// When GPUDirect Storage is used.
    pub gds: GdsUse,
    /// The device whose BAR memory holds the ring of file-to-file copies. Drives then move the bytes by peer-to-peer
    /// DMA, and a file that cannot be moved that way is an error.
    pub through: Option<PciAddress>,
    /// The engine for the drive.
    pub engine: DriveEngine,
    /// The rate limit of jobs without a share of their own. Of a copy, it counts each byte once.
    pub rate_max: Option<Rate>,
    /// The measured rate of the drive, from which reservations are taken.
    pub rate_measured: Option<Rate>,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = u32::try_from(parallel::cores(LANES_MAX as usize)).unwrap_or(LANES_MAX);
        Self {
            drive_lanes: 1,
            cached_lanes: cores,
            // One copies while the other waits for the drive: 3.1 GB/s, and 2.8 with one.
            ring_lanes: cores.min(2),
            depth: 16,
            // 2.46 GB/s, and 2.23 with 16 of 1 MiB, on the disk of an H200 host, medians of four.
            write_depth: 64,
            chunk_bytes: CHUNK_BYTES,
            // Each chunk is mapped, copied and unmapped: 4 MiB is the knee on two cores.
            cached_chunk_bytes: 4 << 20,
            request_bytes_max: Policy::REQUEST_BYTES_MAX,
            staging_bytes: 64 << 20,
            ring_first: false,
            // On an H200 host with 16 cores the CPU is the limit: 12 lanes reach 0.91 of a pinned copy, 15 reach 0.94.
            // Beyond 4 MiB the ring falls out of the CPU cache (`bench/results/gpu-lanes.txt`, `gpu-chunks.txt`). One core
            // is left to the application, which waits for the bytes.
            gpu_lanes: cores.saturating_sub(1).clamp(1, 15),
            gpu_chunk_bytes: 4 << 20,
            // Two slots for each of 15 lanes, and a quarter for the drive lanes.
            pinned_bytes: 192 << 20,
            gds: GdsUse::default(),
            through: None,
            engine: DriveEngine::Auto,
            rate_max: None,
            rate_measured: None,
        }
    }
}

/// The largest I/O where nothing is known about the drive.
const CHUNK_BYTES: u64 = 1 << 20;

/// The same for reads through the ring into host memory. The slots of 36 such reads stay in the CPU cache: 4.2 GB/s from
/// a virtual drive, and 3.4 GB/s with 1 MiB.
const RING_CHUNK_BYTES: u64 = 256 << 10;

/// The drive lanes of a GPU have 1/4 of its pinned memory. Its page-cache lanes, which run at the same time, have the
/// rest.
const DRIVE_SHARE: u64 = 4;

/// Spare slots per drive lane in host memory, as a fraction of the queue depth (1/8), at least 2. With few slots the
/// drive gets a new I/O after every copy, and the slots stay in the CPU cache: 6.0 GB/s from a virtual drive, and 4.5
/// with twice as many slots as the queue depth.
const SPARE_SHARE: usize = 8;
const SPARE_MIN: usize = 2;

/// Slots of a page-cache lane. It fills one slot at a time: with more slots its copies never fall behind.
const CACHED_SLOTS_MAX: usize = 8;

/// Slots of a lane that checks what it reads. Slots returned by a copy are still in the CPU cache: with four in turn
/// instead of two, a warm restore took half as long again on an H200.
const CHECKED_SLOTS_MAX: usize = 4;

/// The ring of a lane that checks what it reads from local files into host memory: three chunks of a checkpoint, which
/// are read, checked or unpacked, and copied. Those of two lanes fit into a CPU cache of 32 MiB, and less memory is
/// cleared before the first read. Over a network, more have to be under way.
pub(crate) const CHECKED_FILE_RING_BYTES: u64 = 13 << 20;

/// Lanes that check what they read from a drive. Three to five keep up with it; with 15, the memory that a virtual
/// drive fills falls out of the CPU cache: 2.64 s for 8.6 GB on an H200 host, and 2.48 s with three or five.
const CHECKED_DRIVE_LANES: u32 = 4;

/// In a control group with a memory limit, the rings of one crew have at most 1/8 of what is left, and those of a GPU
/// 1/4; both at least 4 MiB.
const STAGING_SHARE: u64 = 8;
const PINNED_SHARE: u64 = 4;
const RING_BYTES_MIN: u64 = 4 << 20;

/// The error for chunks of a size that does not work, with the nearest one that does.
fn refuse_chunk(bytes: Bytes) -> Error {
    let page = Alignment::PAGE_BYTES;
    let most = Policy::CHUNK_BYTES_MAX;
    let fits = |size: &Bytes| (page..=most).contains(&size.0) && size.0.is_multiple_of(page);
    // `4MB` are 4,000,000 bytes. `6000` is rounded up.
    let rounded = || Bytes(bytes.0.checked_next_multiple_of(page).unwrap_or(most).clamp(page, most));
    let near = bytes.binary_twin().filter(fits).unwrap_or_else(rounded);
    let shown = if bytes.0.is_multiple_of(1024) {
        bytes.to_string()
    } else {
        bytes.exactly()
    };
    let message = format!("the size must be a multiple of 4 KiB, at most {}", Bytes(most));
    Error::new(ErrorKind::Invalid, "run with", format!("chunks of {shown}"), message)
        .with_hint(format!("try ⟦chunk={}⟧", near.typed()))
}

/// The most lanes of one kind. More would find no core to run on.
pub const LANES_MAX: u32 = 256;

impl Settings {
    /// Returns an error if a value is out of range or the values contradict each other.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &'static str, value: String, allowed: String| {
            Err(Error::new(
                ErrorKind::Invalid,
                "run with",
                format!("{what} {value}"),
                allowed,
            ))
        };
        let lanes = 1..=LANES_MAX;
        for (what, count) in [
            ("drive lanes:", self.drive_lanes),
            ("ring lanes:", self.ring_lanes),
            ("page-cache lanes:", self.cached_lanes),
            ("GPU lanes:", self.gpu_lanes),
        ] {
            if !lanes.contains(&count) {
                return refuse(what, count.to_string(), format!("it must be 1 to {LANES_MAX}"));
            }
        }
        for depth in [self.depth, self.write_depth] {
            if !(1..=DEPTH_MAX).contains(&depth) {
                return refuse("depth", depth.to_string(), format!("it must be 1 to {DEPTH_MAX}"));
            }
        }
        let page = Alignment::PAGE_BYTES;
        let most = Policy::CHUNK_BYTES_MAX;
        for bytes in [self.chunk_bytes, self.cached_chunk_bytes, self.gpu_chunk_bytes] {
            if !(page..=most).contains(&bytes) || !bytes.is_multiple_of(page) {
                return Err(refuse_chunk(Bytes(bytes)));
            }
        }
        let least = self.chunk_bytes * u64::from(self.drive_lanes);
        if self.staging_bytes < least {
            let allowed = format!("each lane needs one chunk, {} in all", Bytes(least));
            return refuse("staging memory of", Bytes(self.staging_bytes).to_string(), allowed);
        }
        let rate_max = self.rate_max.unwrap_or(Rate(1.0));
        if !(rate_max.0.is_finite() && rate_max.0 >= 1.0) {
            let allowed = "it must be at least 1 B/s".to_owned();
            return refuse("a rate limit of", rate_max.to_string(), allowed);
        }
        Ok(())
    }

    /// Returns an error if the pinned memory is too small for the lanes of a GPU. Separate from `check`, because it
    /// does not matter without a GPU.
    pub(crate) fn check_gpu(&self) -> Result<()> {
        let drive = self.chunk_bytes * u64::from(self.drive_lanes) * DRIVE_SHARE;
        let cached = self.gpu_chunk_bytes * u64::from(self.gpu_lanes) * DRIVE_SHARE;
        let least = drive.max(cached.div_ceil(DRIVE_SHARE - 1));
        if self.pinned_bytes >= least {
            return Ok(());
        }
        let message = format!("each lane needs one chunk, {} in all", Bytes(least));
        let target = format!("pinned memory of {}", Bytes(self.pinned_bytes));
        Err(Error::new(ErrorKind::Invalid, "run with", target, message))
    }

    /// The same settings for a drive of which only this is known: whether reads through the ring are faster.
    pub(crate) fn with_ring_first(&self, ring_first: bool) -> Self {
        let is_default = self.chunk_bytes == CHUNK_BYTES;
        Self {
            ring_first,
            chunk_bytes: if ring_first && is_default {
                RING_CHUNK_BYTES
            } else {
                self.chunk_bytes
            },
            ..*self
        }
    }

    /// The same settings with smaller rings, if the control groups of this process leave it little memory.
    #[must_use]
    pub fn within_groups(self) -> Self {
        match FreeMemory::in_groups() {
            Some(free) => self.within(free.bytes),
            None => self,
        }
    }

    /// The same settings with smaller rings, for a process whose control group leaves it `free_bytes`. The rest is for
    /// the bytes themselves, and an executor may have several rings.
    #[must_use]
    pub fn within(self, free_bytes: u64) -> Self {
        let part = |share: u64| down(free_bytes / share, Alignment::PAGE_BYTES).max(RING_BYTES_MIN);
        let (staging, pinned) = (part(STAGING_SHARE), part(PINNED_SHARE));
        let mut settings = self;
        if settings.staging_bytes > staging {
            let less = Demand {
                staging_bytes: Some(staging),
                ..Demand::default()
            };
            settings = less.over(settings);
            let lanes = settings.cached_lanes.max(settings.ring_lanes).max(settings.drive_lanes);
            let share = down(staging / u64::from(lanes), Alignment::PAGE_BYTES);
            settings.chunk_bytes = settings.chunk_bytes.min(share.max(Alignment::PAGE_BYTES));
        }
        if settings.pinned_bytes > pinned {
            settings.pinned_bytes = pinned;
            // Each lane keeps two slots, of a page at least.
            let (drive, cached) = (pinned / DRIVE_SHARE, pinned - pinned / DRIVE_SHARE);
            let page = Alignment::PAGE_BYTES;
            let lanes = cached / (2 * settings.gpu_chunk_bytes);
            settings.gpu_lanes = settings.gpu_lanes.min(u32::try_from(lanes).unwrap_or(u32::MAX)).max(1);
            let of_lane = |bytes: u64, lanes: u32| down(bytes / u64::from(lanes) / 2, page).max(page);
            settings.gpu_chunk_bytes = settings.gpu_chunk_bytes.min(of_lane(cached, settings.gpu_lanes));
            settings.chunk_bytes = settings.chunk_bytes.min(of_lane(drive, settings.drive_lanes));
        }
        settings
    }

    /// The most lanes that serve a track and a place.
    pub(crate) fn lanes(&self, track: Track, place: Place) -> u32 {
        match (track, place) {
            (Track::Drive, Place::Host | Place::P2p(_)) => self.drive_lanes.max(self.copying_lanes()),
            (Track::Drive, Place::Gpu(_)) => self.drive_lanes,
            (Track::Cached | Track::Checked, Place::Host | Place::P2p(_)) => self.cached_lanes,
            (Track::Cached | Track::Checked, Place::Gpu(_)) => self.gpu_lanes,
        }
    }

    /// The lanes for the drive that also copy: at most one per chunk of the staging memory.
    fn copying_lanes(&self) -> u32 {
        let room = u32::try_from(self.staging_bytes / self.chunk_bytes).unwrap_or(u32::MAX);
        self.ring_lanes.min(room).max(1)
    }

    /// The number of lanes that serve a plan. One keeps a drive busy unless it also has to copy.
    pub(crate) fn lanes_for(&self, plan: &Plan, track: Track, place: Place) -> u32 {
        match (track, place) {
            (Track::Drive, Place::Host | Place::P2p(_)) if plan.is_staged() => self.copying_lanes(),
            (Track::Drive, _) => self.drive_lanes,
            (Track::Checked, _) if plan.is_checked_from_drive() => self.lanes(track, place).min(CHECKED_DRIVE_LANES),
            (Track::Cached | Track::Checked, _) => self.lanes(track, place),
        }
    }

    /// The ring of each lane that serves a track and a place.
    pub fn ring(&self, track: Track, place: Place) -> RingSize {
        let drive_share = self.pinned_bytes / DRIVE_SHARE;
        let bytes = match (track, place) {
            (_, Place::Host | Place::P2p(_)) => self.staging_bytes,
            (Track::Drive, Place::Gpu(_)) => drive_share,
            // Restores rarely run at the same time as loads, so both can use this much.
            (Track::Cached | Track::Checked, Place::Gpu(_)) => self.pinned_bytes - drive_share,
        };
        let depth = self.depth as usize;
        let (slot_bytes, most) = match track {
            Track::Drive if !matches!(place, Place::Gpu(_)) => {
                (self.chunk_bytes, depth + (depth / SPARE_SHARE).max(SPARE_MIN))
            }
            Track::Drive => (self.chunk_bytes, depth * 2),
            Track::Cached => match place {
                // Nothing is staged into host memory; these slots are for file-to-file copies.
                Place::Host | Place::P2p(_) => (self.chunk_bytes, CACHED_SLOTS_MAX),
                Place::Gpu(_) => (self.gpu_chunk_bytes, CACHED_SLOTS_MAX),
            },
            // The ring is cut again for the length of the portions.
            Track::Checked => {
                let own = bytes / u64::from(self.lanes(track, place));
                let slots = CHECKED_SLOTS_MAX as u64;
                (
                    down(own / slots, Alignment::PAGE_BYTES).max(Alignment::PAGE_BYTES),
                    CHECKED_SLOTS_MAX,
                )
            }
        };
        let slots = bytes / u64::from(self.lanes(track, place)) / slot_bytes;
        // A portion needs one slot to be read into and one to be unpacked into.
        let least = if track == Track::Checked { 2 } else { 1 };
        RingSize {
            slots: usize::try_from(slots).unwrap_or(usize::MAX).clamp(least, most),
            slot_bytes: usize::try_from(slot_bytes).unwrap_or(usize::MAX),
        }
    }

    /// The largest chunk through the page cache.
    pub(crate) fn cached_chunk_bytes(&self, place: Place) -> u64 {
        match place {
            Place::Host | Place::P2p(_) => self.cached_chunk_bytes,
            Place::Gpu(_) => self.gpu_chunk_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rings_of_a_gpu_s_lanes_stay_within_its_pinned_memory() {
        let settings = Settings {
            gpu_lanes: 15,
            ..Settings::default()
        };
        let gpu = Place::Gpu(0);
        let sum: usize = [(Track::Drive, 1), (Track::Cached, 15)]
            .map(|(track, lanes)| {
                let ring = settings.ring(track, gpu);
                assert!(ring.slots >= 2, "a copy and the next read overlap");
                lanes * ring.slots * ring.slot_bytes
            })
            .iter()
            .sum();
        // 32 slots of 1 MiB for the drive, two of 4 MiB for each lane.
        assert_eq!(sum, 152 << 20);
        assert!(sum as u64 <= settings.pinned_bytes);
    }

    #[test]
    fn lanes_that_check_local_files_have_room_for_three_chunks_and_no_more() {
        let settings = |lanes| Settings {
            cached_lanes: lanes,
            ..Settings::default()
        };
        // A chunk of 4 MiB that does not begin on a page.
        let chunk = (4 << 20) + 8192;
        let ring = |lanes| settings(lanes).ring(Track::Checked, Place::Host);
        for lanes in [1, 2, 4] {
            let RingSize { slots, slot_bytes } = ring(lanes).within(CHECKED_FILE_RING_BYTES).cut(chunk);
            assert_eq!((slots, slot_bytes), (3, chunk), "{lanes} lanes");
        }
        assert_eq!(ring(16).within(CHECKED_FILE_RING_BYTES), ring(16));
    }

    #[test]
    fn checking_lanes_have_at_least_two_slots() {
        let page = 4096;
        let settings = Settings {
            chunk_bytes: page,
            staging_bytes: page,
            pinned_bytes: page,
            drive_lanes: 1,
            ..Settings::default()
        };
        for place in [Place::Host, Place::Gpu(0)] {
            let ring = settings.ring(Track::Checked, place);
            assert!(ring.slots >= 2 && ring.cut(1).slots >= 2, "{ring:?}");
            assert_eq!((ring.cut(1 << 20).slots, ring.cut(1 << 20).slot_bytes), (2, 1 << 20));
        }
    }

    #[test]
    fn rings_are_smaller_in_a_small_control_group() {
        let web = crate::store::Tuning {
            chunk_bytes: 8 << 20,
            depth: 16,
        };
        let usual = || Settings {
            gpu_lanes: 15,
            ..Settings::default()
        };
        for settings in [usual(), web.applied_to(usual(), [])] {
            let same = settings.within(4 << 30);
            assert_eq!(
                (same.staging_bytes, same.pinned_bytes, same.chunk_bytes, same.gpu_lanes),
                (
                    settings.staging_bytes,
                    settings.pinned_bytes,
                    settings.chunk_bytes,
                    settings.gpu_lanes
                )
            );
            for free_bytes in [0, 1 << 20, 16 << 20, 100 << 20, 500 << 20] {
                let small = settings.within(free_bytes);
                small.check().unwrap();
                small.check_gpu().unwrap();
                let least = RING_BYTES_MIN;
                assert!(small.staging_bytes <= (free_bytes / 8).max(least), "{free_bytes}");
                assert!(small.pinned_bytes <= (free_bytes / 4).max(least), "{free_bytes}");
                for (track, place) in [
                    (Track::Drive, Place::Host),
                    (Track::Cached, Place::Host),
                    (Track::Drive, Place::Gpu(0)),
                    (Track::Cached, Place::Gpu(0)),
                ] {
                    let RingSize { slots, slot_bytes } = small.ring(track, place);
                    let all = slots * slot_bytes * small.lanes(track, place) as usize;
                    assert!(
                        all as u64 <= (free_bytes / 4).max(least),
                        "{free_bytes}: {track:?} {place:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn pinned_memory_too_small_for_the_lanes_of_a_gpu_is_refused_only_by_check_gpu() {
        let settings = Settings {
            pinned_bytes: 8 << 20,
            gpu_lanes: 3,
            ..Settings::default()
        };
        settings.check().unwrap();
        let error = settings.check_gpu().unwrap_err();
        assert!(error.to_string().contains("16 MiB in all"), "{error}");
    }
}
