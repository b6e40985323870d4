//! The tuning options: set by the user, else from this machine's profile, else the defaults.

use straightway_core::{Bytes, Rate, Result};
use straightway_io::{
    Executor,
    settings::{Demand, DriveEngine, LANES_MAX},
    store::Location,
};
use straightway_stores::{DriveFacts, Session, TransferSpec};
use straightway_sys::uring::DEPTH_MAX;

use super::words::{Word, one_of, whole};
use crate::section::Section;

const ENGINES: [Word<DriveEngine>; 3] = [
    (
        "auto",
        DriveEngine::Auto,
        "io_uring, or a thread pool if it is not permitted",
    ),
    ("io-uring", DriveEngine::Ring, "io_uring, or an error"),
    ("pool", DriveEngine::Pool, "A pool of threads"),
];

/// Tuning options of transfers.
pub(crate) type Tuning = Section<TuningFlags>;

/// The options of [`Tuning`].
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tuning")]
pub(crate) struct TuningFlags {
    /// The largest I/O, such as 256KiB or 4MiB [default: as `bench` measured this drive, else 1 MiB; over a network
    /// 8 MiB].
    #[arg(long, value_name = "SIZE")]
    chunk: Option<Bytes>,

    /// I/Os in flight on each lane [default: as `bench` measured this drive, else 16; up to 64 for small objects over a
    /// network].
    #[arg(long, value_name = "N", value_parser = whole(1..=DEPTH_MAX))]
    depth: Option<u32>,

    /// Lanes to the drive [default: 1, or 2 if they also copy between the ring and memory].
    #[arg(long, value_name = "N", value_parser = whole(1..=LANES_MAX))]
    lanes: Option<u32>,

    /// Memory for the ring, over all lanes [default: 64 MiB; over a network 128 MiB].
    #[arg(long, value_name = "SIZE")]
    staging: Option<Bytes>,

    /// At most this many bytes a second, such as 500MB/s.
    #[arg(long, value_name = "RATE")]
    limit: Option<Rate>,

    /// The I/O engine.
    #[arg(long, value_parser = one_of(&ENGINES), default_value = "auto")]
    engine: DriveEngine,
}

impl TuningFlags {
    /// The settings that the user demands.
    pub(crate) fn demand(&self) -> Demand {
        Demand {
            chunk_bytes: self.chunk.map(|chunk| chunk.0),
            depth: self.depth,
            lanes: self.lanes,
            staging_bytes: self.staging.map(|staging| staging.0),
            rate_max: self.limit,
            engine: Some(self.engine),
            through: None,
        }
    }

    /// The rate limit.
    pub(crate) fn limit(&self) -> Option<Rate> {
        self.limit
    }

    /// The executor of transfers between these locations.
    pub(crate) fn executor(&self, session: &Session, ends: &[&Location]) -> Result<Executor> {
        self.executor_by(DriveFacts::Known, session, ends)
    }

    /// The executor of transfers between these locations that are mostly writes.
    pub(crate) fn write_executor(&self, session: &Session, ends: &[&Location]) -> Result<Executor> {
        self.executor_by(DriveFacts::Unused, session, ends)
    }

    fn executor_by(&self, drive: DriveFacts, session: &Session, ends: &[&Location]) -> Result<Executor> {
        session.executor_for(TransferSpec {
            ends: ends.to_vec(),
            demand: self.demand(),
            drive,
            ..TransferSpec::default()
        })
    }
}
