//! How the executor is set up: lanes, depth, chunk size, memory, engine.

use straightway_core::{Alignment, Bytes, Error, Kind, Policy, Rate, Result};
use straightway_sys::uring::DEPTH_MAX;

use crate::{
    engine::{Engine, cached::Cached, pool::Pool, ring::Ring},
    wrapper::{
        faulty::{Faults, Faulty},
        throttled::Throttled,
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

/// How the executor is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Lanes that go to the drive. One keeps a drive busy; more help where there are several.
    pub drive_lanes: u32,
    /// Lanes that copy out of the page cache: one for each core.
    pub cached_lanes: u32,
    /// I/Os in flight on each drive lane.
    pub depth: u32,
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// Memory of all rings together.
    pub staging_bytes: u64,
    /// Which engine goes to the drive.
    pub engine: DriveEngine,
    /// A limit on all lanes to the drive together, and one on all to the page cache.
    pub rate_max: Option<Rate>,
    /// Failures to inject.
    pub faults: Option<Faults>,
    /// Where to keep a list of all I/Os.
    pub trace: Option<Trace>,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            drive_lanes: 1,
            cached_lanes: u32::try_from(cores).unwrap_or(1).min(LANES_MAX),
            depth: 16,
            chunk_bytes: 1 << 20,
            staging_bytes: 64 << 20,
            engine: DriveEngine::Auto,
            rate_max: None,
            faults: None,
            trace: None,
        }
    }
}

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
            ("page-cache lanes:", self.cached_lanes),
        ] {
            if !lanes.contains(&count) {
                return refuse(
                    what,
                    count.to_string(),
                    format!("1 to {LANES_MAX} are allowed"),
                );
            }
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return refuse(
                "depth",
                self.depth.to_string(),
                format!("1 to {DEPTH_MAX} is allowed"),
            );
        }
        let page = Alignment::PAGE_BYTES;
        let most = Policy::CHUNK_BYTES_MAX;
        if !(page..=most).contains(&self.chunk_bytes) || !self.chunk_bytes.is_multiple_of(page) {
            let allowed = format!("a multiple of 4 KiB up to {} is meant", Bytes(most));
            return refuse("chunks of", Bytes(self.chunk_bytes).to_string(), allowed);
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
        if self
            .rate_max
            .is_some_and(|rate| !(rate.0.is_finite() && rate.0 >= 1.0))
        {
            return refuse(
                "a rate limit of",
                self.rate_max.unwrap_or(Rate(0.0)).to_string(),
                "at least 1 B/s is meant".to_owned(),
            );
        }
        Ok(())
    }

    /// How many slots each drive lane's ring has.
    pub fn slots_per_lane(&self) -> usize {
        let slots = self.staging_bytes / u64::from(self.drive_lanes) / self.chunk_bytes;
        usize::try_from(slots)
            .unwrap_or(usize::MAX)
            .min(self.depth as usize * 2)
    }

    /// The engine of one drive lane.
    pub(crate) fn drive_engine(&self) -> Result<Box<dyn Engine>> {
        let engine: Box<dyn Engine> = match self.engine {
            DriveEngine::Ring => Box::new(Ring::new(self.depth)?),
            DriveEngine::Pool => Box::new(Pool::new(self.depth)?),
            DriveEngine::Auto => match Ring::new(self.depth) {
                Ok(ring) => Box::new(ring),
                Err(error) if error.kind() == Kind::Unsupported => {
                    tracing::warn!(%error, "using the thread pool instead");
                    Box::new(Pool::new(self.depth)?)
                }
                Err(error) => return Err(error),
            },
        };
        let lanes = f64::from(self.drive_lanes);
        let engine = match self.rate_max {
            Some(rate) => Box::new(Throttled::new(engine, Rate(rate.0 / lanes))),
            None => engine,
        };
        Ok(self.wrap(engine))
    }

    /// The engine of one page-cache lane.
    pub(crate) fn cached_engine(&self) -> Box<dyn Engine> {
        let engine: Box<dyn Engine> = Box::new(Cached::default());
        let lanes = f64::from(self.cached_lanes);
        self.wrap(match self.rate_max {
            Some(rate) => Box::new(Throttled::new(engine, Rate(rate.0 / lanes))),
            None => engine,
        })
    }

    fn wrap(&self, engine: Box<dyn Engine>) -> Box<dyn Engine> {
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
