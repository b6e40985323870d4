//! Verifies copies: a copy and its original are both read and compared.
//!
//! The bytes of the copy have to come from the drive. They are read by O_DIRECT; where that goes through the page cache,
//! they are evicted from it first. Pages that are cached after that were read from the drive. Pages that could not be
//! evicted show nothing about the drive, and a warning says so.

use std::{sync::Arc, time::Instant};

use straightway_core::{
    Bytes, Choice, Direction, ErrorKind, Extent, Receipt, Result, Route,
    compare::first_difference,
    receipt::{Verified, VerifyMethod},
};
use straightway_io::{Ask, Executor, File, Objects, Progress, Region, store::Location};
use straightway_sys::residency;

use crate::job::CopyJob;

/// Bytes of each file that are compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// The result of a comparison without a difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// What was compared, and how long it took.
    pub verified: Verified,
    /// A warning, if bytes were compared that did not come from the drive.
    pub warning: Option<String>,
}

impl Verification {
    /// Enters it into the receipt of the copy.
    pub fn enter(self, receipt: &mut Receipt) {
        receipt.verified = Some(self.verified);
        receipt.warnings.extend(self.warning);
    }
}

/// Compares every copy with its original. An error names the first byte that differs.
pub fn verify(executor: &Executor, job: &CopyJob, progress: &Arc<Progress>) -> Result<Verification> {
    let start = Instant::now();
    let mut verified = Verified {
        method: VerifyMethod::ReadBack,
        objects: 0,
        bytes: 0,
        seconds: 0.0,
    };
    tracing::info!("verifying: sources and copies are read again and compared");
    let mut cached = CachedCopies::default();
    let mut regions = [Region::host(WINDOW_BYTES)?, Region::host(WINDOW_BYTES)?].map(Arc::new);
    for pair in &job.pairs {
        let copy = job.target(pair);
        let open = |at: &Location| Ok(Objects::new(Arc::clone(&at.store), vec![at.open()?]));
        let (source, target) = (open(&pair.source)?, open(&copy)?);
        let length = |objects: &Objects| objects.handles()[0].object().bytes;
        let bytes = length(&source);
        let differs = |at: u64| {
            let message = format!("byte {at} differs from {}", pair.source.describe());
            copy.error(ErrorKind::Corrupt, "verify", message)
                .with_hint("copy it again; if it differs again, suspect the drive or the memory")
        };
        if bytes != length(&target) {
            return Err(differs(bytes.min(length(&target))));
        }
        let survey = target.handles()[0].survey(None, Direction::In)?;
        let around = match survey.usable() {
            // A socket has no page cache to bypass.
            Ok(_) if survey.socket.is_none() => Choice::Only(Route::Direct),
            _ => {
                if let Some(file) = target.handles()[0].file() {
                    cached.evict(file)?;
                }
                Choice::Auto
            }
        };
        let mut at = 0;
        while at < bytes {
            let extent = Extent::new(at, WINDOW_BYTES.min(bytes - at));
            let files = [(&source, Choice::Auto), (&target, around)];
            for ((file, choice), region) in files.into_iter().zip(&regions) {
                let (whole, ask) = (vec![extent.into()], Ask::new(choice, progress));
                executor.read(file.clone(), whole, region, ask)?.wait()?;
            }
            let bytes = usize::try_from(extent.bytes).expect("a window fits into memory");
            let [left, right] = regions
                .each_mut()
                .map(|region| &Arc::get_mut(region).expect("no transfer is running").as_slice()[..bytes]);
            if let Some(first) = first_difference(left, right) {
                return Err(differs(at + first));
            }
            at = extent.end();
        }
        verified.objects += 1;
        verified.bytes += bytes;
    }
    verified.seconds = start.elapsed().as_secs_f64();
    Ok(Verification {
        verified,
        warning: cached.warning(),
    })
}

/// The copies that stayed in the page cache.
#[derive(Debug, Default)]
struct CachedCopies {
    files: usize,
    bytes: u64,
    /// The path of the first one, and why it stayed there.
    first: Option<(String, &'static str)>,
}

impl CachedCopies {
    /// Evicts a copy from the page cache, and adds what stays there.
    fn evict(&mut self, file: &File) -> Result<()> {
        file.evict()?;
        let (bytes, why) = match residency::resident_bytes(file) {
            Some(0) => return Ok(()),
            Some(bytes) if file.is_in_memory() => (bytes, "their file system is in memory"),
            Some(bytes) => (bytes, "the kernel did not evict them"),
            None => (u64::MAX, "the kernel does not say whether it evicted them"),
        };
        self.files += 1;
        self.bytes += bytes.min(file.bytes());
        self.first
            .get_or_insert_with(|| (file.path().display().to_string(), why));
        Ok(())
    }

    fn warning(self) -> Option<String> {
        let Self { files, bytes, first } = self;
        let (path, why) = first?;
        let bytes = Bytes(bytes);
        let more = match files - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!(
            "{bytes} of {path}{more} were compared in the page cache and not on the drive: {why}"
        ))
    }
}
