//! The features of a service for writes, each probed once per bucket.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use straightway_core::{Error, Result};

/// The known features of a service for writes.
#[derive(Debug, Default)]
pub(crate) struct WriteSupport {
    /// Whether it rejects checksums of written data.
    refuses_sums: AtomicBool,
    /// Set once a probe has shown that a conditional put has exactly one winner.
    has_one_winner: OnceLock<()>,
    /// Whether it rejects data that does not match its checksum.
    compares_sums: OnceLock<bool>,
    /// Whether it rejects a copy of another version than the named one.
    copies_versions: OnceLock<bool>,
}

impl WriteSupport {
    /// Whether checksums are sent.
    pub(crate) fn takes_sums(&self) -> bool {
        !self.refuses_sums.load(Ordering::Relaxed)
    }

    /// Records that the service does not implement checksums.
    pub(crate) fn refuse_sums(&self) {
        self.refuses_sums.store(true, Ordering::Relaxed);
    }

    /// Whether it compares checksums. `probe` tests it.
    pub(crate) fn compares_sums(&self, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
        known_or_probed(&self.compares_sums, probe)
    }

    /// Whether it copies only the named version. `probe` tests it.
    pub(crate) fn copies_versions(&self, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
        known_or_probed(&self.copies_versions, probe)
    }

    /// Runs `probe`, which fails unless a conditional put has one winner. Not repeated after a success.
    pub(crate) fn prove_one_winner(&self, probe: impl FnOnce() -> Result<(), Error>) -> Result<()> {
        if self.has_one_winner.get().is_none() {
            probe()?;
            let _ = self.has_one_winner.set(());
        }
        Ok(())
    }
}

/// The known value, or that of `probe`. A probe that failed is repeated on the next call.
fn known_or_probed(known: &OnceLock<bool>, probe: impl FnOnce() -> Result<bool>) -> Result<bool> {
    if let Some(known) = known.get() {
        return Ok(*known);
    }
    let found = probe()?;
    Ok(*known.get_or_init(|| found))
}
