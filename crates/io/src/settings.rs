//! How the executor is set up: lanes, depth, chunk size, memory, engine.

use straightway_core::{
    Alignment, Bytes, Error, Kind, PciAddress, Place, Plan, Policy, Rate, Result, extent::down,
};
use straightway_sys::uring::DEPTH_MAX;

use crate::{
    engine::Engine,
    gds::Gds,
    learning::Learning,
    peer::Peers,
    track::Track,
    wrapper::{
        faulty::{Faults, Faulty},
        traced::{Trace, Traced},
    },
};

/// Which engine drives a file around the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriveEngine {
    /// io_uring, or the thread pool where that is forbidden.
    #[default]
    Auto,
    /// io_uring, or an error.
    Ring,
    /// The thread pool.
    Pool,
}

/// The ring of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// How many slots it has.
    pub slots: usize,
    /// How long each is.
    pub slot_bytes: usize,
}

impl RingSize {
    /// The same memory in slots of at least `slot_bytes`, of which there are two at the least: one is read into while
    /// another is unpacked or copied.
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
}

/// How the executor is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Lanes that go to the drive. One keeps a drive busy; more help where there are several.
    pub drive_lanes: u32,
    /// Lanes that copy out of the page cache: one for each core.
    pub cached_lanes: u32,
    /// Lanes that go to the drive where they also copy between the ring and host memory.
    pub ring_lanes: u32,
    /// I/Os in flight on each drive lane.
    pub depth: u32,
    /// The same where a job only writes. A drive puts writes together.
    pub write_depth: u32,
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// The most that a lane copies at once between the page cache and host memory.
    pub cached_chunk_bytes: u64,
    /// The longest request over a network: [`Policy::request_bytes_max`].
    pub request_bytes_max: u64,
    /// Memory of all rings together.
    pub staging_bytes: u64,
    /// Whether `Auto` takes the ring from a drive into host memory: [`Policy::ring_first`].
    pub ring_first: bool,
    /// Lanes that copy between the page cache and a GPU.
    pub gpu_lanes: u32,
    /// The most that such a lane copies at once.
    pub gpu_chunk_bytes: u64,
    /// Pinned memory of all rings of one GPU together.
    pub pinned_bytes: u64,
    /// Whether GPUDirect Storage is used: [`GdsUse`](crate::gds::GdsUse).
    pub gds: Gds,
    /// The device in whose BAR memory copies from file to file have their ring: drives then move the bytes by
    /// peer-to-peer DMA, and what cannot is an error.
    pub through: Option<PciAddress>,
    /// What is proven of peer-to-peer DMA.
    pub peers: Peers,
    /// Which engine goes to the drive.
    pub engine: DriveEngine,
    /// A limit on all I/Os of those who name no share of their own: of a copy from file to file that is the reads and
    /// the writes.
    pub rate_max: Option<Rate>,
    /// The rate that was measured on the drive, of which parts can be reserved.
    pub rate_measured: Option<Rate>,
    /// What is known of the drive beside this, and where to keep what transfers find out; `None` learns nothing.
    pub learning: Option<Learning>,
    /// Failures to inject.
    pub faults: Option<Faults>,
    /// Where to keep a list of all I/Os.
    pub trace: Option<Trace>,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = u32::try_from(cores).unwrap_or(1);
        Self {
            drive_lanes: 1,
            cached_lanes: cores.min(LANES_MAX),
            // One copies while the other waits for the drive: 3.1 GB/s beside 2.8 with one.
            ring_lanes: cores.min(2),
            depth: 16,
            // 2.46 GB/s beside 2.23 with 16 of 1 MiB on the disk of an H200 host, medians of four.
            write_depth: 64,
            chunk_bytes: 1 << 20,
            // Mapped, copied and let go of at once: the knee of that on two cores.
            cached_chunk_bytes: 4 << 20,
            request_bytes_max: Policy::REQUEST_BYTES_MAX,
            staging_bytes: 64 << 20,
            ring_first: false,
            // On an H200 host with 16 cores the CPU is the limit: 12 lanes reach 0.91 of a pinned copy, 15 reach 0.94.
            // Beyond 4 MiB the ring falls out of cache (`bench/results/`). A core is left to the application, which
            // waits for the bytes.
            gpu_lanes: cores.saturating_sub(1).clamp(1, 15),
            gpu_chunk_bytes: 4 << 20,
            // Two slots for each of 15 lanes, and a quarter for the drive's.
            pinned_bytes: 192 << 20,
            gds: Gds::default(),
            through: None,
            peers: Peers::default(),
            engine: DriveEngine::Auto,
            rate_max: None,
            rate_measured: None,
            learning: None,
            faults: None,
            trace: None,
        }
    }
}

/// The drive lanes of a GPU have one part in this many of its pinned memory; its page-cache lanes,
/// which run side by side, the rest.
const DRIVE_SHARE: u64 = 4;

/// Slots that a drive lane's ring in host memory has beside those in its queue, as a part of these, and at least. With
/// few the drive gets a new I/O after every copy, and they stay in the processor's cache: 6.0 GB/s from a virtual drive,
/// where twice as many slots as the queue has made it 4.5.
const SPARE_SHARE: usize = 8;
const SPARE_MIN: usize = 2;

/// A page-cache lane fills one slot at a time: beyond this, its copies are never behind.
const CACHED_SLOTS_MAX: usize = 8;

/// Slots of a lane that checks what it reads. Those that come back from a copy are still in the processor's cache: with
/// four in turn instead of two, a warm restore took half as long again on an H200.
const CHECKED_SLOTS_MAX: usize = 4;

/// Lanes that check what comes from a drive. Three to five keep up with it; with 15 the memory that a virtual drive fills
/// falls out of the processor's cache: 2.64 s for 8.6 GB on an H200 host, and 2.48 s with three or five.
const CHECKED_DRIVE_LANES: u32 = 4;

/// More lanes than this find no core to run on.
pub const LANES_MAX: u32 = 256;

impl Settings {
    /// An error where a figure is out of range or the figures do not go together.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &'static str, value: String, allowed: String| {
            Err(Error::new(
                Kind::Invalid,
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
                return refuse(
                    what,
                    count.to_string(),
                    format!("1 to {LANES_MAX} are allowed"),
                );
            }
        }
        for depth in [self.depth, self.write_depth] {
            if !(1..=DEPTH_MAX).contains(&depth) {
                return refuse(
                    "depth",
                    depth.to_string(),
                    format!("1 to {DEPTH_MAX} is allowed"),
                );
            }
        }
        let page = Alignment::PAGE_BYTES;
        let most = Policy::CHUNK_BYTES_MAX;
        for bytes in [
            self.chunk_bytes,
            self.cached_chunk_bytes,
            self.gpu_chunk_bytes,
        ] {
            if !(page..=most).contains(&bytes) || !bytes.is_multiple_of(page) {
                let allowed = format!("a multiple of 4 KiB up to {} is meant", Bytes(most));
                return refuse("chunks of", Bytes(bytes).to_string(), allowed);
            }
        }
        let least = self.chunk_bytes * u64::from(self.drive_lanes);
        if self.staging_bytes < least {
            let allowed = format!("each lane needs one chunk, {} in all", Bytes(least));
            return refuse(
                "staging memory of",
                Bytes(self.staging_bytes).to_string(),
                allowed,
            );
        }
        let rate_max = self.rate_max.unwrap_or(Rate(1.0));
        if !(rate_max.0.is_finite() && rate_max.0 >= 1.0) {
            let allowed = "at least 1 B/s is meant".to_owned();
            return refuse("a rate limit of", rate_max.to_string(), allowed);
        }
        Ok(())
    }

    /// An error where the pinned memory is too small for the lanes of a GPU. Apart from `check`,
    /// because those who use no GPU need not care.
    pub(crate) fn check_gpu(&self) -> Result<()> {
        let drive = self.chunk_bytes * u64::from(self.drive_lanes) * DRIVE_SHARE;
        let cached = self.gpu_chunk_bytes * u64::from(self.gpu_lanes) * DRIVE_SHARE;
        let least = drive.max(cached.div_ceil(DRIVE_SHARE - 1));
        if self.pinned_bytes >= least {
            return Ok(());
        }
        let message = format!("each lane needs one chunk, {} in all", Bytes(least));
        let target = format!("pinned memory of {}", Bytes(self.pinned_bytes));
        Err(Error::new(Kind::Invalid, "run with", target, message))
    }

    /// How many lanes serve a track and a place at most.
    pub(crate) fn lanes(&self, track: Track, place: Place) -> u32 {
        match (track, place) {
            (Track::Drive, Place::Host | Place::P2p(_)) => {
                self.drive_lanes.max(self.copying_lanes())
            }
            (Track::Drive, Place::Gpu(_)) => self.drive_lanes,
            (Track::Cached | Track::Checked, Place::Host | Place::P2p(_)) => self.cached_lanes,
            (Track::Cached | Track::Checked, Place::Gpu(_)) => self.gpu_lanes,
        }
    }

    /// Lanes that go to the drive and copy as well: as many as the ring has a chunk for.
    fn copying_lanes(&self) -> u32 {
        let room = u32::try_from(self.staging_bytes / self.chunk_bytes).unwrap_or(u32::MAX);
        self.ring_lanes.min(room).max(1)
    }

    /// How many of them serve a plan. One keeps a drive busy as long as it need not copy as well.
    pub(crate) fn lanes_for(&self, plan: &Plan, track: Track, place: Place) -> u32 {
        match (track, place) {
            (Track::Drive, Place::Host | Place::P2p(_)) if plan.is_staged() => self.copying_lanes(),
            (Track::Drive, _) => self.drive_lanes,
            (Track::Checked, _) if plan.is_checked_from_drive() => {
                self.lanes(track, place).min(CHECKED_DRIVE_LANES)
            }
            (Track::Cached | Track::Checked, _) => self.lanes(track, place),
        }
    }

    /// The ring of each lane that serves a track and a place.
    pub fn ring(&self, track: Track, place: Place) -> RingSize {
        let drive_share = self.pinned_bytes / DRIVE_SHARE;
        let bytes = match (track, place) {
            (_, Place::Host | Place::P2p(_)) => self.staging_bytes,
            (Track::Drive, Place::Gpu(_)) => drive_share,
            // Restores do not run beside loads: they have as much for themselves.
            (Track::Cached | Track::Checked, Place::Gpu(_)) => self.pinned_bytes - drive_share,
        };
        let depth = self.depth as usize;
        let (slot_bytes, most) = match track {
            Track::Drive if !matches!(place, Place::Gpu(_)) => (
                self.chunk_bytes,
                depth + (depth / SPARE_SHARE).max(SPARE_MIN),
            ),
            Track::Drive => (self.chunk_bytes, depth * 2),
            Track::Cached => match place {
                // Into host memory nothing is staged; this is for copies from file to file.
                Place::Host | Place::P2p(_) => (self.chunk_bytes, CACHED_SLOTS_MAX),
                Place::Gpu(_) => (self.gpu_chunk_bytes, CACHED_SLOTS_MAX),
            },
            // Cut again for the portions that come.
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
        // Portions need one to be read into and one to be unpacked into.
        let least = if track == Track::Checked { 2 } else { 1 };
        RingSize {
            slots: usize::try_from(slots)
                .unwrap_or(usize::MAX)
                .clamp(least, most),
            slot_bytes: usize::try_from(slot_bytes).unwrap_or(usize::MAX),
        }
    }

    /// The most that a chunk through the page cache has.
    pub(crate) fn cached_chunk_bytes(&self, place: Place) -> u64 {
        match place {
            Place::Host | Place::P2p(_) => self.cached_chunk_bytes,
            Place::Gpu(_) => self.gpu_chunk_bytes,
        }
    }

    /// An engine with the faults and the trace that are set.
    pub(crate) fn wrap(&self, engine: Box<dyn Engine>) -> Box<dyn Engine> {
        let engine = match self.faults {
            Some(faults) => Box::new(Faulty::new(engine, faults)),
            None => engine,
        };
        match &self.trace {
            Some(trace) => Box::new(Traced::new(engine, trace.clone())),
            None => engine,
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
    fn lanes_that_check_have_two_slots_however_little_memory_there_is_and_however_long_portions_are()
     {
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
            assert_eq!(
                (ring.cut(1 << 20).slots, ring.cut(1 << 20).slot_bytes),
                (2, 1 << 20)
            );
        }
    }

    #[test]
    fn pinned_memory_too_small_for_a_gpu_s_lanes_is_refused_with_the_figure_and_only_there() {
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
