//! What is known of how a service writes: found out once, and kept for the bucket.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use straightway_core::{Error, Result};

/// What is known of how a service writes.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    /// Whether it refuses a checksum with what is written.
    refuses_sums: AtomicBool,
    /// Whether its conditional put has one winner.
    has_one_winner: OnceLock<()>,
    /// Whether it refuses what does not have the checksum that was sent with it.
    compares_sums: OnceLock<bool>,
    /// Whether it refuses to copy another version than the one that is named.
    copies_versions: OnceLock<bool>,
}

impl Habits {
    /// Whether checksums are sent.
    pub(crate) fn takes_sums(&self) -> bool {
        !self.refuses_sums.load(Ordering::Relaxed)
    }

    /// Notes that the service does not implement checksums.
    pub(crate) fn refuse_sums(&self) {
        self.refuses_sums.store(true, Ordering::Relaxed);
    }

    /// Whether it compares checksums, which `probe` finds out.
    pub(crate) fn compares_sums(&self, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
        found_out(&self.compares_sums, probe)
    }

    /// Whether it copies the version that is named and no other, which `probe` finds out.
    pub(crate) fn copies_versions(&self, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
        found_out(&self.copies_versions, probe)
    }

    /// Proves by `probe` that a conditional put has one winner, unless that is known. A failure is asked for again.
    pub(crate) fn prove_one_winner(&self, probe: impl FnOnce() -> Result<(), Error>) -> Result<()> {
        if self.has_one_winner.get().is_none() {
            probe()?;
            let _ = self.has_one_winner.set(());
        }
        Ok(())
    }
}

/// What is known, or what `probe` finds out. A failure is asked for again.
fn found_out(known: &OnceLock<bool>, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
    if let Some(known) = known.get() {
        return Ok(*known);
    }
    let found = probe()?;
    Ok(*known.get_or_init(|| found))
}
