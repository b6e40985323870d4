//! How much of a selection is in the page cache.
//!
//! Ranks of one machine that need the same file ask this: a rank that waited for another one's read finds out whether
//! the bytes are there now.

use straightway_core::{Extent, Result};
use straightway_sys::residency::resident;

use super::{Model, Selection};

impl Model {
    /// The number of bytes of a selection that are in the page cache, in windows that are at least half cached. Objects
    /// that are not files have none.
    pub fn cached_bytes(&self, selection: &Selection) -> Result<u64> {
        let extents = selection.picks().iter().flat_map(|pick| {
            let tensor = pick.of(self);
            pick.extents(tensor).map(|extent| (tensor.file, extent))
        });
        let mut cached = 0;
        let mut runs: Vec<(u32, Extent)> = Vec::new();
        for (file, extent) in extents {
            match runs.last_mut() {
                Some((last, run)) if *last == file && run.end() == extent.offset => run.bytes += extent.bytes,
                _ => runs.push((file, extent)),
            }
        }
        for of_file in runs.chunk_by(|(a, _), (b, _)| a == b) {
            let shard = &self.shards[of_file[0].0 as usize];
            if shard.location().path().is_none() {
                continue;
            }
            let file = shard.file()?;
            for (_, run) in of_file {
                let pages = resident(&file, *run);
                cached += pages.iter().map(|page| page.intersection(*run).bytes).sum::<u64>();
            }
        }
        Ok(cached)
    }
}
