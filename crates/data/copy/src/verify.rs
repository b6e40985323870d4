//! Verifies copies: a copy and its original are both read and compared. The copy bypasses the page cache where possible,
//! so that its bytes come from the drive.

use std::sync::Arc;

use straightway_core::{Choice, Direction, ErrorKind, Extent, Result, Route, compare::first_difference};
use straightway_io::{Ask, Executor, Objects, Progress, Region, store::Location};

use crate::job::CopyJob;

/// Bytes of each file that are compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// Compares every copy with its original. An error names the first byte that differs.
pub fn verify(executor: &Executor, job: &CopyJob, progress: &Arc<Progress>) -> Result<()> {
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
        let survey = copy.store.survey(target.handles(), &[None], Direction::In)?;
        let around = match survey[0].usable() {
            // A socket has no page cache to bypass.
            Ok(_) if survey[0].socket.is_none() => Choice::Only(Route::Direct),
            _ => Choice::Auto,
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
    }
    Ok(())
}
