//! The settings that a user demands, in place of those that suit the storage.

use straightway_core::{Alignment, PciAddress, Rate, extent::down};

use super::{DriveEngine, Settings};

/// The settings that a user demands. Those that are `None` stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// The largest I/O.
    pub chunk_bytes: Option<u64>,
    /// I/Os in flight on each lane, reads and writes.
    pub depth: Option<u32>,
    /// Lanes for the drive or the network.
    pub lanes: Option<u32>,
    /// The memory of the rings of one crew in host memory, over all its lanes: [`Settings::staging_bytes`].
    pub staging_bytes: Option<u64>,
    /// The rate limit of jobs without a share of their own.
    pub rate_max: Option<Rate>,
    /// The engine for the drive.
    pub engine: Option<DriveEngine>,
    /// The device whose BAR memory holds the ring of file-to-file copies: [`Settings::through`].
    pub through: Option<PciAddress>,
}

impl Demand {
    /// Replaces the demanded values in `usual`.
    pub fn over(self, usual: Settings) -> Settings {
        // A ring smaller than one chunk per lane makes chunks smaller, unless their size is demanded.
        let lanes = self.lanes.unwrap_or(usual.drive_lanes);
        let staging_bytes = self.staging_bytes.unwrap_or(usual.staging_bytes);
        let share = staging_bytes / u64::from(lanes.max(1));
        let room = down(share, Alignment::PAGE_BYTES).max(Alignment::PAGE_BYTES);
        let chunk = |usual: u64| self.chunk_bytes.unwrap_or(usual);
        Settings {
            chunk_bytes: chunk(usual.chunk_bytes.min(room)),
            depth: self.depth.unwrap_or(usual.depth),
            write_depth: self.depth.unwrap_or(usual.write_depth),
            cached_chunk_bytes: chunk(usual.cached_chunk_bytes),
            request_bytes_max: chunk(usual.request_bytes_max),
            drive_lanes: lanes,
            ring_lanes: self.lanes.unwrap_or(usual.ring_lanes),
            staging_bytes,
            rate_max: self.rate_max.or(usual.rate_max),
            engine: self.engine.unwrap_or(usual.engine),
            through: self.through.or(usual.through),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Tuning;

    /// Settings for a network, where a demand has to win too.
    fn network() -> Settings {
        let web = Tuning {
            chunk_bytes: 8 << 20,
            depth: 16,
        };
        web.applied_to(Settings::default(), [])
    }

    #[test]
    fn what_is_demanded_replaces_the_settings_of_drives_and_networks() {
        let demand = Demand {
            chunk_bytes: Some(256 << 10),
            depth: Some(3),
            lanes: Some(2),
            staging_bytes: Some(32 << 20),
            rate_max: Some(Rate(1e6)),
            engine: Some(DriveEngine::Pool),
            through: None,
        };
        for usual in [Settings::default(), network()] {
            let settings = demand.over(usual);
            assert_eq!(settings.chunk_bytes, 256 << 10);
            assert_eq!(settings.cached_chunk_bytes, 256 << 10);
            assert_eq!(settings.request_bytes_max, 256 << 10);
            assert_eq!((settings.depth, settings.write_depth), (3, 3));
            assert_eq!((settings.drive_lanes, settings.ring_lanes), (2, 2));
            assert_eq!(settings.staging_bytes, 32 << 20);
            assert_eq!(settings.rate_max, Some(Rate(1e6)));
            assert_eq!(settings.engine, DriveEngine::Pool);
        }
    }

    #[test]
    fn what_is_not_demanded_stays() {
        for usual in [Settings::default(), network()] {
            let settings = Demand::default().over(usual);
            let figures = |s: &Settings| {
                let chunks = (s.chunk_bytes, s.cached_chunk_bytes, s.request_bytes_max);
                let lanes = (s.drive_lanes, s.ring_lanes);
                (chunks, lanes, s.depth, s.write_depth, s.staging_bytes)
            };
            assert_eq!(figures(&settings), figures(&usual));
            assert_eq!((settings.rate_max, settings.engine), (None, usual.engine));
        }
    }

    #[test]
    fn a_small_ring_makes_chunks_smaller_unless_their_size_is_demanded() {
        let small = Demand {
            staging_bytes: Some(1 << 20),
            lanes: Some(4),
            ..Demand::default()
        };
        let settings = small.over(Settings::default());
        assert_eq!(settings.chunk_bytes, 256 << 10);
        settings.check().unwrap();
        let fixed = Demand {
            chunk_bytes: Some(1 << 20),
            ..small
        };
        assert!(fixed.over(Settings::default()).check().is_err());
    }
}
