//! Executor settings for transfers over a network.

use straightway_io::Settings;

use crate::engine::TUNING;

/// The memory of the staging rings: 16 requests of 8 MiB.
const STAGING_BYTES: u64 = 128 << 20;

/// The most threads that receive. One thread receives about 3 GB/s without TLS and less than half of that with TLS.
const LANES_MAX: u32 = 4;

/// The largest queue depth of a lane, used for small requests.
const DEPTH_MAX: u64 = 64;

/// The bytes of writes in flight on all lanes: 16 parts of 8 MiB. Several ranks often write to one service at once. With
/// more parts in flight each of them waits longer, and none is stored sooner.
const WRITING_BYTES: u64 = 128 << 20;

/// The smallest slot size.
const CHUNK_BYTES_MIN: u64 = 64 << 10;

/// Adapts executor settings to transfers over a network.
#[must_use]
pub fn suited(usual: Settings) -> Settings {
    suited_for(usual, [])
}

/// The same for objects of these sizes. If most bytes are in small objects, slots are smaller and the queue is deeper:
/// each request costs a round trip, whatever its size.
#[must_use]
pub fn suited_for(usual: Settings, sizes: impl IntoIterator<Item = u64>) -> Settings {
    let lanes = usual.cached_lanes.clamp(1, LANES_MAX);
    let staging_bytes = usual.staging_bytes.max(STAGING_BYTES);
    let chunk_bytes = chunk_bytes(sizes);
    let depth = staging_bytes / u64::from(lanes) / chunk_bytes;
    let depth = depth.clamp(TUNING.depth.into(), DEPTH_MAX);
    let write_depth = WRITING_BYTES / u64::from(lanes) / chunk_bytes;
    let write_depth = write_depth.clamp(1, usual.write_depth.into());
    Settings {
        chunk_bytes,
        depth: u32::try_from(depth).expect("it was bounded"),
        write_depth: u32::try_from(write_depth).expect("it was bounded"),
        drive_lanes: lanes,
        ring_lanes: lanes,
        staging_bytes,
        // The drive lanes of a GPU get a quarter of it.
        pinned_bytes: usual.pinned_bytes.max(4 * STAGING_BYTES),
        ..usual
    }
}

/// The byte-weighted mean object size, rounded up to a power of two within bounds.
fn chunk_bytes(sizes: impl IntoIterator<Item = u64>) -> u64 {
    let (mut sum, mut squares) = (0_u128, 0_u128);
    for size in sizes.into_iter().map(u128::from) {
        sum += size;
        squares = squares.saturating_add(size * size);
    }
    let Some(mean) = squares.checked_div(sum) else {
        return TUNING.chunk_bytes;
    };
    let most = u128::from(TUNING.chunk_bytes);
    let mean = u64::try_from(mean.min(most)).expect("it was bounded");
    mean.next_power_of_two()
        .clamp(CHUNK_BYTES_MIN, TUNING.chunk_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_get_small_slots_and_a_deeper_queue() {
        let usual = || Settings {
            cached_lanes: 2,
            ..Settings::default()
        };
        let sizes = |settings: &Settings| (settings.chunk_bytes, settings.depth);
        let large = sizes(&suited(usual()));
        assert_eq!(large, (8 << 20, 16));
        assert_eq!(suited(usual()).write_depth, 8);
        assert_eq!(
            suited_for(usual(), [64 << 10]).write_depth,
            usual().write_depth
        );
        assert_eq!(sizes(&suited_for(usual(), [5 << 30])), large);
        assert_eq!(sizes(&suited_for(usual(), [0, 0])), large);
        let small = || vec![64 << 10; 50_000];
        assert_eq!(sizes(&suited_for(usual(), small())), (64 << 10, 64));
        assert_eq!(sizes(&suited_for(usual(), [1; 9])), (64 << 10, 64));
        // In the first case most bytes are in the large object, in the second in the small ones.
        let with = |one: u64| suited_for(usual(), small().into_iter().chain([one]));
        assert_eq!(sizes(&with(1 << 40)), large);
        assert_eq!(sizes(&with(8 << 20)), (128 << 10, 64));
        assert_eq!(sizes(&suited_for(usual(), [u64::MAX; 3])), large);
        for size in [0, 1, 65_537, 3 << 20, 9 << 20] {
            suited_for(usual(), [size]).check().unwrap();
        }
    }
}
