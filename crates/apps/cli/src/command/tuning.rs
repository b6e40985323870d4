//! The tuning options: set by the user, else from this machine's profile, else the defaults.

use clap::ValueEnum;
use straightway_core::{Bytes, Choice, Rate, Route};
use straightway_io::{
    Peers, Settings,
    settings::{Demand, DriveEngine},
    store::{Location, Medium},
};
use straightway_probe::{learned::Learned, profile::DriveTuning};

/// The file with proofs of peer-to-peer DMA, kept until the next boot. Only root can use memory in a BAR.
const PEER_PROOFS: &str = "/run/straightway/p2p-proofs";

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
    /// The settings for transfers between these locations. The sizes of the objects matter over a network.
    pub(crate) fn settings<'a>(
        &self,
        ends: impl IntoIterator<Item = &'a Location>,
        sizes: impl IntoIterator<Item = u64>,
    ) -> anyhow::Result<Settings> {
        let usual = Medium::of(ends).settings(sizes, |path| {
            Ok(Settings {
                learning: Learned::of(path),
                ..DriveTuning::settings(DriveTuning::of(path)?)
            })
        })?;
        Ok(self.over(usual))
    }

    /// The settings for transfers between these locations that are mostly writes. The profile has no data about those.
    pub(crate) fn write_settings<'a>(&self, ends: impl IntoIterator<Item = &'a Location>) -> anyhow::Result<Settings> {
        let usual = Medium::of(ends).settings([], |_| Ok(Settings::default()))?;
        Ok(self.over(usual))
    }

    /// The options of the user on top of `usual`.
    fn over(&self, usual: Settings) -> Settings {
        let demand = Demand {
            chunk_bytes: self.chunk.map(|chunk| chunk.0),
            depth: self.depth,
            lanes: self.lanes,
            staging_bytes: self.staging.map(|staging| staging.0),
            rate_max: self.limit,
            engine: Some(match self.engine {
                EngineChoice::Auto => DriveEngine::Auto,
                EngineChoice::IoUring => DriveEngine::Ring,
                EngineChoice::Pool => DriveEngine::Pool,
            }),
        };
        Settings {
            peers: Peers::kept_in(PEER_PROOFS.into()),
            ..demand.over(usual)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::registry;

    /// The settings for transfers between these names, with a depth that the user may have set.
    fn settings(names: &[&str], depth: Option<u32>) -> Settings {
        let options = [
            ("endpoint_url", "http://127.0.0.1:1"),
            ("region", "nowhere"),
            ("anonymous", "true"),
        ];
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let stores = registry(&options.map(own)).unwrap();
        let ends = names.iter().map(|name| stores.locate(name).unwrap());
        let ends: Vec<_> = ends.collect();
        let tuning = Tuning {
            chunk: None,
            depth,
            lanes: None,
            staging: None,
            limit: None,
            engine: EngineChoice::Auto,
        };
        tuning.write_settings(&ends).unwrap()
    }

    #[test]
    fn every_store_on_a_network_gets_the_settings_for_a_network() {
        let nvme = "nvme-tcp://127.0.0.1/nqn.2026-11.straightway:models";
        for names in [
            &["s3://bucket/key"][..],
            &["http://127.0.0.1:1/file"],
            &[nvme],
            &["/a/file", "s3://bucket/key"],
            &["s3://bucket/key", "/a/file"],
            &[nvme, "s3://bucket/key"],
        ] {
            let chosen = settings(names, None);
            assert_eq!((chosen.chunk_bytes, chosen.depth), (8 << 20, 16), "{names:?}");
            assert_eq!(chosen.staging_bytes, 128 << 20, "{names:?}");
            assert_eq!(settings(names, Some(3)).depth, 3, "{names:?}");
        }
    }

    #[test]
    fn files_get_the_settings_for_a_drive() {
        let usual = Settings::default();
        let chosen = settings(&["/a/file", "/b/file"], None);
        assert_eq!(
            (chosen.chunk_bytes, chosen.depth, chosen.staging_bytes),
            (usual.chunk_bytes, usual.depth, usual.staging_bytes)
        );
        assert_eq!(settings(&["/a/file"], Some(3)).depth, 3);
    }
}
