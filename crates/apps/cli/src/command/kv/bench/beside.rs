//! Loads beside stores: how much longer a load takes while others store.

use std::{sync::Arc, time::Instant};

use serde::Serialize;
use straightway_core::Result;
use straightway_io::Region;
use straightway_kv::{ChunkAt, KvNamespace, Tier};

use super::key;

/// Loads that are measured.
const LOADS: u64 = 200;

/// Batches of stores beside a load.
const STORES: u64 = 8;

/// Chunks whose stores begin at this number, which no load wants.
const FRESH: u64 = 1 << 40;

/// The seconds of loads.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    pub(super) alone_s: Vec<f64>,
    pub(super) beside_s: Vec<f64>,
}

/// Loads `chunks` chunks again and again, alternating alone and beside stores of as many bytes.
pub(super) fn measure(tier: &Tier, namespace: KvNamespace, chunks: u64, source: &Arc<Region>) -> Result<Beside> {
    let chunk_bytes = tier.geometry().chunk_bytes();
    let target = Arc::new(Region::host(chunks * chunk_bytes)?);
    let at = |first: u64, region: &Arc<Region>| -> Vec<ChunkAt> {
        let chunk = |number: u64| ChunkAt::whole(key(first + number), region, number * chunk_bytes, chunk_bytes);
        (0..chunks).map(chunk).collect()
    };
    let wanted = at(0, &target);
    let mut measured = Beside {
        alone_s: Vec::new(),
        beside_s: Vec::new(),
    };
    for round in 0..LOADS {
        let is_beside = round % 2 == 1;
        let fresh = |number: u64| FRESH + (round * STORES + number) * chunks;
        let stores = (0..if is_beside { STORES } else { 0 })
            .map(|number| tier.store(namespace, &at(fresh(number), source)))
            .collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        tier.load(namespace, &wanted, None)?.wait()?;
        let seconds = begun.elapsed().as_secs_f64();
        if is_beside {
            measured.beside_s.push(seconds);
        } else {
            measured.alone_s.push(seconds);
        }
        for store in stores {
            store.wait()?;
        }
    }
    Ok(measured)
}
