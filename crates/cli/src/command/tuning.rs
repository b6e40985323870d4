//! The tuning options: set by the user, else from this machine's profile, else the defaults.

use std::path::Path;

use clap::ValueEnum;
use straightway_core::{Alignment, Bytes, Choice, Rate, Route, Scheme, Uri, extent::down};
use straightway_io::{Peers, Settings, settings::DriveEngine};
use straightway_net::{suited, suited_for};
use straightway_probe::{learned::Learned, profile};

/// The file with proofs of peer-to-peer DMA, kept until the next boot. Only root can use memory in a BAR.
const PEER_PROOFS: &str = "/run/straightway/p2p-proofs";

/// Chunks are whole pages.
const PAGE_BYTES: u64 = Alignment::PAGE_BYTES;

/// The route of the bytes.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum RouteChoice {
    /// The most direct route that the machine allows, chosen for each extent.
    #[default]
    Auto,
    /// By O_DIRECT, or an error.
    Direct,
    /// By O_DIRECT through the ring, or an error.
    Staged,
    /// Through the page cache.
    Buffered,
}

impl From<RouteChoice> for Choice {
    fn from(choice: RouteChoice) -> Self {
        match choice {
            RouteChoice::Auto => Self::Auto,
            RouteChoice::Direct => Self::Only(Route::Direct),
            RouteChoice::Staged => Self::Only(Route::Staged),
            RouteChoice::Buffered => Self::Only(Route::Buffered),
        }
    }
}

/// The I/O engine.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum EngineChoice {
    /// io_uring, or a thread pool if it is not permitted.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// A pool of threads.
    Pool,
}

/// Whether a path is a URI of a store on a network.
pub(crate) fn is_remote(path: &Path) -> bool {
    Uri::parse(path).is_ok_and(|uri| uri.scheme() != Scheme::Path)
}

/// Tuning options of transfers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tuning")]
pub(crate) struct Tuning {
    /// The largest I/O, such as 256KiB or 4MiB [default: from the profile, else 1 MiB; over a network 8 MiB].
    #[arg(long, value_name = "SIZE")]
    chunk: Option<Bytes>,

    /// I/Os in flight on each lane [default: from the profile, else 16; up to 64 for small objects over a network].
    #[arg(long, value_name = "N")]
    depth: Option<u32>,

    /// Lanes to the drive [default: 1, or 2 if they also copy between the ring and memory].
    #[arg(long, value_name = "N")]
    lanes: Option<u32>,

    /// Memory for the ring, over all lanes [default: 64 MiB; over a network 128 MiB].
    #[arg(long, value_name = "SIZE")]
    staging: Option<Bytes>,

    /// At most this many bytes a second, such as 500MB/s.
    #[arg(long, value_name = "RATE")]
    limit: Option<Rate>,

    /// The I/O engine.
    #[arg(long, value_enum, default_value_t)]
    engine: EngineChoice,
}

impl Tuning {
    /// The settings for transfers with `path`.
    pub(crate) fn settings(&self, path: &Path) -> anyhow::Result<Settings> {
        self.settings_for(path, [])
    }

    /// The same, for objects of these sizes, which matter over a network.
    pub(crate) fn settings_for(
        &self,
        path: &Path,
        sizes: impl IntoIterator<Item = u64>,
    ) -> anyhow::Result<Settings> {
        // Only local drives have a profile.
        if is_remote(path) {
            return Ok(self.over(suited_for(Settings::default(), sizes)));
        }
        let known = profile::DriveTuning::of(path)?;
        let settings = self.over(profile::DriveTuning::settings(known));
        // A chunk size that the user gave is used as it is; what is learned may choose another.
        let learning = self.chunk.is_none().then(|| Learned::of(path)).flatten();
        Ok(Settings {
            learning,
            ..settings
        })
    }

    /// The settings for transfers with these paths that are mostly writes. The profile has no data about those.
    pub(crate) fn write_settings(&self, paths: &[&Path]) -> Settings {
        let usual = Settings::default();
        let is_over_network = paths.iter().any(|path| is_remote(path));
        self.over(if is_over_network {
            suited(usual)
        } else {
            usual
        })
    }

    /// The options of the user on top of `usual`.
    fn over(&self, usual: Settings) -> Settings {
        // A ring smaller than one chunk per lane makes chunks smaller, unless their size was given.
        let lanes = self.lanes.unwrap_or(usual.drive_lanes);
        let staging = self
            .staging
            .map_or(usual.staging_bytes, |staging| staging.0);
        let share = staging / u64::from(lanes.max(1));
        let room = down(share, PAGE_BYTES).max(PAGE_BYTES);
        let chunk = |usual| self.chunk.map_or(usual, |chunk| chunk.0);
        Settings {
            chunk_bytes: chunk(usual.chunk_bytes.min(room)),
            depth: self.depth.unwrap_or(usual.depth),
            write_depth: self.depth.unwrap_or(usual.write_depth),
            cached_chunk_bytes: chunk(usual.cached_chunk_bytes),
            request_bytes_max: chunk(usual.request_bytes_max),
            drive_lanes: lanes,
            ring_lanes: self.lanes.unwrap_or(usual.ring_lanes),
            staging_bytes: staging,
            rate_max: self.limit,
            peers: Peers::kept_in(PEER_PROOFS.into()),
            engine: match self.engine {
                EngineChoice::Auto => DriveEngine::Auto,
                EngineChoice::IoUring => DriveEngine::Ring,
                EngineChoice::Pool => DriveEngine::Pool,
            },
            ..usual
        }
    }
}
