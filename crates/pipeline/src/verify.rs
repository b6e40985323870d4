//! Whether a copy is what it is a copy of: both are read and compared, the copy around the page
//! cache where that is possible, so that it is the drive that answers.

use std::sync::Arc;

use straightway_core::{Choice, Error, Extent, Kind, Move, Result, Route};
use straightway_io::{Executor, File, Job, Progress, Region};

use crate::errand::Errand;

/// How much of each file is compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// Compares every copy with its original; an error names the first byte that differs.
pub fn verify(executor: &Executor, errand: &Errand, progress: &Arc<Progress>) -> Result<()> {
    let mut regions = [Region::host(WINDOW_BYTES)?, Region::host(WINDOW_BYTES)?].map(Arc::new);
    for pair in &errand.pairs {
        let source = Arc::new(File::open(&pair.source)?);
        let target = Arc::new(File::open(&pair.target)?);
        let differs = |at: u64| {
            let message = format!("byte {at} differs from {}", pair.source.display());
            Error::new(Kind::Corrupt, "verify", pair.target.display(), message)
                .with_hint("copy it again; if it differs again, suspect the drive or the memory")
        };
        if source.bytes() != target.bytes() {
            return Err(differs(source.bytes().min(target.bytes())));
        }
        let around = match target.alignment() {
            Some(_) => Choice::Only(Route::Direct),
            None => Choice::Auto,
        };
        let mut at = 0;
        while at < source.bytes() {
            let extent = Extent::new(at, WINDOW_BYTES.min(source.bytes() - at));
            read(
                executor,
                &source,
                extent,
                &regions[0],
                Choice::Auto,
                progress,
            )?;
            read(executor, &target, extent, &regions[1], around, progress)?;
            let bytes = usize::try_from(extent.bytes).expect("a window fits into memory");
            let [left, right] = regions.each_mut().map(|region| {
                &Arc::get_mut(region)
                    .expect("no transfer is running")
                    .as_slice()[..bytes]
            });
            // The whole is compared at memory speed; the place only where there is one.
            if left != right {
                let first = left
                    .iter()
                    .zip(right)
                    .position(|(a, b)| a != b)
                    .unwrap_or(0);
                return Err(differs(at + first as u64));
            }
            at = extent.end();
        }
    }
    Ok(())
}

fn read(
    executor: &Executor,
    file: &Arc<File>,
    extent: Extent,
    region: &Arc<Region>,
    choice: Choice,
    progress: &Arc<Progress>,
) -> Result<()> {
    let moves = vec![Move {
        object: 0,
        extent,
        at: 0,
    }];
    let job = Job::read(
        vec![Arc::clone(file)],
        moves,
        region,
        choice,
        executor.settings(),
    )?;
    executor.run(job.with_progress(progress)).map(drop)
}
