//! What a batch did, and what it was worth.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::Serialize;
use straightway_core::{
    Bytes, Rate, Seconds,
    receipt::{Percentiles, RouteBytes},
};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "straightway.kv/1";

/// Why a chunk was not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissReason {
    /// Nobody stored it, as far as this process knows.
    NeverStored,
    /// It was stored, and its slot was given to another chunk.
    Evicted,
    /// Its bytes do not match their checksum or tag, or cannot be read.
    Damaged,
    /// Its key is stored in another namespace only.
    OtherConfiguration,
    /// It is encrypted with another key, or one of both is not encrypted.
    WrongKey,
}

/// What became of a chunk of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was loaded.
    Hit,
    /// It was not loaded. Its memory is as it was.
    Miss(MissReason),
    /// It was stored.
    Stored,
    /// It was there already.
    Present,
    /// It was not stored: every slot is in use by other stores, or the write failed.
    NotStored,
}

/// The number of misses by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Misses {
    /// [`MissReason::NeverStored`].
    pub never_stored: u64,
    /// [`MissReason::Evicted`].
    pub evicted: u64,
    /// [`MissReason::Damaged`].
    pub damaged: u64,
    /// [`MissReason::OtherConfiguration`].
    pub other_configuration: u64,
    /// [`MissReason::WrongKey`].
    pub wrong_key: u64,
}

impl Misses {
    /// Adds one.
    pub(crate) fn add(&mut self, reason: MissReason) {
        *match reason {
            MissReason::NeverStored => &mut self.never_stored,
            MissReason::Evicted => &mut self.evicted,
            MissReason::Damaged => &mut self.damaged,
            MissReason::OtherConfiguration => &mut self.other_configuration,
            MissReason::WrongKey => &mut self.wrong_key,
        } += 1;
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        self.never_stored + self.evicted + self.damaged + self.other_configuration + self.wrong_key
    }
}

/// What it costs to compute a chunk instead of loading it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefill {
    /// The tokens of a chunk.
    pub tokens_per_chunk: f64,
    /// The rate at which the model computes the cache of tokens.
    pub tokens_per_s: f64,
}

/// Whether a batch loads or stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchKind {
    /// It loads.
    Load,
    /// It stores.
    Store,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvReceipt {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Whether it loaded or stored.
    pub operation: BatchKind,
    /// The chunks of the batch.
    pub chunks: u64,
    /// Chunks that were loaded.
    pub hits: u64,
    /// Chunks that were not, by reason.
    pub misses: Misses,
    /// Chunks that were stored.
    pub stored: u64,
    /// Chunks that were there already.
    pub present: u64,
    /// Chunks that could not be stored.
    pub not_stored: u64,
    /// Bytes of the chunks that were loaded or stored.
    pub bytes: u64,
    /// From the call to the end of the batch.
    pub seconds: f64,
    /// `bytes` divided by `seconds`.
    pub rate_bytes_per_s: f64,
    /// Bytes by route and reason, as in the receipt of a transfer.
    pub routes: Vec<RouteBytes>,
    /// The latency of the drive, for each chunk. Of several jobs, that of the slowest.
    pub latency: Percentiles,
    /// Whether the chunks are encrypted.
    pub encrypted: bool,
    /// The seconds that computing the hits would have taken, less the seconds of the batch; `None` if no prefill rate
    /// was given. It is negative if computing is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_saved: Option<f64>,
    /// Unexpected events, one sentence each.
    pub warnings: Vec<String>,
}

impl fmt::Display for KvReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, seconds) = (Bytes(self.bytes), Seconds(self.seconds));
        let rate = Rate(self.rate_bytes_per_s);
        let Misses {
            never_stored,
            evicted,
            damaged,
            other_configuration,
            wrong_key,
        } = self.misses;
        match self.operation {
            BatchKind::Load => {
                writeln!(
                    f,
                    "{} of {} chunks, {bytes} in {seconds} ({rate})",
                    self.hits, self.chunks
                )?;
                let reasons = [
                    (never_stored, "never stored"),
                    (evicted, "evicted"),
                    (damaged, "damaged"),
                    (other_configuration, "of another configuration"),
                    (wrong_key, "with another key"),
                ];
                for (count, reason) in reasons.into_iter().filter(|(count, _)| *count > 0) {
                    writeln!(f, "  missing: {count} {reason}")?;
                }
            }
            BatchKind::Store => {
                writeln!(
                    f,
                    "{} of {} chunks, {bytes} in {seconds} ({rate})",
                    self.stored, self.chunks
                )?;
                for (count, what) in [
                    (self.present, "were there already"),
                    (self.not_stored, "could not be stored"),
                ] {
                    if count > 0 {
                        writeln!(f, "  {count} {what}")?;
                    }
                }
            }
        }
        for part in &self.routes {
            writeln!(f, "  {}: {} ({})", part.route, Bytes(part.bytes), part.reason)?;
        }
        if let Some(saved) = self.seconds_saved {
            writeln!(f, "  saved {saved:.3} s of computing")?;
        }
        self.warnings
            .iter()
            .try_for_each(|warning| writeln!(f, "  warning: {warning}"))
    }
}

/// Counters of a running process, since it opened the tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvCounts {
    /// Keys that were looked up, by lookups and loads.
    pub lookups: u64,
    /// Chunks that were loaded.
    pub hits: u64,
    /// Chunks that were not loaded, by reason.
    pub misses: Misses,
    /// Chunks that were stored.
    pub stored: u64,
    /// Chunks that could not be stored.
    pub not_stored: u64,
    /// Chunks that this process evicted.
    pub evicted: u64,
    /// Bytes that were loaded.
    pub loaded_bytes: u64,
    /// Bytes that were stored.
    pub stored_bytes: u64,
}

/// The counters, while they count.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) evicted: AtomicU64,
    batches: straightway_core::Lock<KvCounts>,
}

impl Counters {
    /// Adds a batch.
    pub(crate) fn add(&self, receipt: &KvReceipt) {
        let mut all = self.batches.lock();
        all.hits += receipt.hits;
        all.stored += receipt.stored;
        all.not_stored += receipt.not_stored;
        let (mine, more) = (&mut all.misses, &receipt.misses);
        mine.never_stored += more.never_stored;
        mine.evicted += more.evicted;
        mine.damaged += more.damaged;
        mine.other_configuration += more.other_configuration;
        mine.wrong_key += more.wrong_key;
        match receipt.operation {
            BatchKind::Load => all.loaded_bytes += receipt.bytes,
            BatchKind::Store => all.stored_bytes += receipt.bytes,
        }
    }

    pub(crate) fn counts(&self) -> KvCounts {
        KvCounts {
            lookups: self.lookups.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            ..*self.batches.lock()
        }
    }
}
