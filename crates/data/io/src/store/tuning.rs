//! The chunk size and queue depth that suit a store on a network, and the executor settings that follow from them.

use crate::settings::Settings;

/// The most threads that receive. One thread receives about 3 GB/s without TLS and less than half of that with TLS.
const LANES_MAX: u32 = 4;

/// The largest queue depth of a lane, used for small requests.
const DEPTH_MAX: u64 = 64;

/// The smallest slot size.
const CHUNK_BYTES_MIN: u64 = 64 << 10;

/// The chunk size and queue depth that suit a store. The larger of two has the larger chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tuning {
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// I/Os in flight on each lane.
    pub depth: u32,
}

impl Default for Tuning {
    /// The values for a drive.
    fn default() -> Self {
        let Settings { chunk_bytes, depth, .. } = Settings::default();
        Self { chunk_bytes, depth }
    }
}

impl Tuning {
    /// Adapts executor settings to transfers with a store on a network. `sizes` are those of the objects, where they
    /// are known. If most bytes are in small objects, slots are smaller and the queue is deeper: each request costs a
    /// round trip, whatever its size.
    #[must_use]
    pub fn applied_to(self, usual: Settings, sizes: impl IntoIterator<Item = u64>) -> Settings {
        let lanes = usual.cached_lanes.clamp(1, LANES_MAX);
        let queue_bytes = self.chunk_bytes * u64::from(self.depth);
        let staging_bytes = usual.staging_bytes.max(queue_bytes);
        let chunk_bytes = self.slot_bytes(sizes);
        let depth = staging_bytes / u64::from(lanes) / chunk_bytes;
        let depth = depth.min(DEPTH_MAX).max(u64::from(self.depth));
        // Writes of all lanes together have one queue in flight. Several ranks often write to one service at once. With
        // more parts in flight each of them waits longer, and none is stored sooner.
        let write_depth = queue_bytes / u64::from(lanes) / chunk_bytes;
        let write_depth = write_depth.clamp(1, usual.write_depth.into());
        Settings {
            chunk_bytes,
            depth: u32::try_from(depth).expect("it was bounded"),
            write_depth: u32::try_from(write_depth).expect("it was bounded"),
            drive_lanes: lanes,
            ring_lanes: lanes,
            staging_bytes,
            // The drive lanes of a GPU get a quarter of it.
            pinned_bytes: usual.pinned_bytes.max(4 * queue_bytes),
            ..usual
        }
    }

    /// The byte-weighted mean object size, rounded up to a power of two within bounds.
    fn slot_bytes(self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let (mut sum, mut squares) = (0_u128, 0_u128);
        for size in sizes.into_iter().map(u128::from) {
            sum += size;
            squares = squares.saturating_add(size * size);
        }
        let Some(mean) = squares.checked_div(sum) else {
            return self.chunk_bytes;
        };
        let mean = mean.min(u128::from(self.chunk_bytes));
        let mean = u64::try_from(mean).expect("it was bounded");
        mean.next_power_of_two().max(CHUNK_BYTES_MIN).min(self.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tuning of web servers.
    const WEB: Tuning = Tuning {
        chunk_bytes: 8 << 20,
        depth: 16,
    };

    fn usual() -> Settings {
        Settings {
            cached_lanes: 2,
            ..Settings::default()
        }
    }

    #[test]
    fn small_objects_get_small_slots_and_a_deeper_queue() {
        let settings = |sizes: &[u64]| WEB.applied_to(usual(), sizes.iter().copied());
        let figures = |sizes: &[u64]| (settings(sizes).chunk_bytes, settings(sizes).depth);
        let large = figures(&[]);
        assert_eq!(large, (8 << 20, 16));
        assert_eq!(settings(&[]).write_depth, 8);
        assert_eq!(settings(&[64 << 10]).write_depth, usual().write_depth);
        assert_eq!(figures(&[5 << 30]), large);
        assert_eq!(figures(&[0, 0]), large);
        let small = vec![64 << 10; 50_000];
        assert_eq!(figures(&small), (64 << 10, 64));
        assert_eq!(figures(&[1; 9]), (64 << 10, 64));
        // In the first case most bytes are in the large object, in the second in the small ones.
        let with = |one: u64| figures(&[small.as_slice(), &[one]].concat());
        assert_eq!(with(1 << 40), large);
        assert_eq!(with(8 << 20), (128 << 10, 64));
        assert_eq!(figures(&[u64::MAX; 3]), large);
        for size in [0, 1, 65_537, 3 << 20, 9 << 20] {
            settings(&[size]).check().unwrap();
        }
    }

    #[test]
    fn a_store_determines_chunks_and_depth_even_beyond_the_usual_bounds() {
        for tuning in [
            Tuning::default(),
            Tuning {
                chunk_bytes: 16 << 10,
                depth: 128,
            },
        ] {
            let settings = tuning.applied_to(usual(), []);
            settings.check().unwrap();
            assert_eq!(settings.chunk_bytes, tuning.chunk_bytes);
            assert!(settings.depth >= tuning.depth);
        }
    }
}
