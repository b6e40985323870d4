//! A real transfer into GPU memory, by cuFile where it can be had, to see which way it takes.

use std::{path::Path, sync::Arc};

use straightway_core::{Choice, Extent, Move, Place, Receipt, Result};
use straightway_io::{Executor, File, GdsUse, Job, Region, Settings};
use straightway_sys::cuda::Driver;

use super::live::{LiveProbe, largest_file, write_sample};

/// How much is moved: enough for cuFile's counters to move, and soon over.
const BYTES: u64 = 16 << 20;

impl LiveProbe {
    /// Reads the file, or one written for the purpose where `path` is a folder, into the first GPU.
    /// `None` where there is no GPU to read into.
    pub(super) fn measure(path: &Path) -> Option<Self> {
        Driver::load()
            .ok()
            .filter(|d| d.device_count().is_ok_and(|n| n > 0))?;
        if !path.is_dir() {
            return Some(Self::of(path));
        }
        Some(match (write_sample(path), largest_file(path)) {
            (Ok(sample), _) => Self::of(sample.path()),
            (Err(_), Some(file)) => Self::of(&file),
            (Err(error), None) => Self::failed(&error),
        })
    }

    /// By cuFile, whatever way it takes; where it takes the file not at all, by the ring, and what
    /// cuFile said stands beside it.
    fn of(path: &Path) -> Self {
        let by_cufile = match transfer(path, GdsUse::Force) {
            Ok(receipt) => return Self::from(&receipt),
            Err(error) => error,
        };
        match transfer(path, GdsUse::Off) {
            Ok(staged) => Self {
                error: Some(by_cufile.to_string()),
                ..Self::from(&staged)
            },
            Err(error) => Self::failed(&error),
        }
    }

    fn failed(error: &straightway_core::Error) -> Self {
        Self {
            error: Some(error.to_string()),
            ..Self::default()
        }
    }
}

fn transfer(path: &Path, gds: GdsUse) -> Result<Receipt> {
    let executor = Executor::new(Settings {
        gds: gds.into(),
        ..Settings::default()
    })?;
    let file = Arc::new(File::open(path)?);
    // What is in the page cache would be taken from there, and say nothing about the drive.
    file.evict()?;
    // Whole pages: a ragged end takes the ring by design, and would only blur the answer.
    let bytes = straightway_core::extent::down(file.bytes().min(BYTES), 4096);
    let region = Arc::new(Region::at(Place::Gpu(0), bytes)?);
    let moves = vec![Move {
        object: 0,
        extent: Extent::new(0, bytes),
        at: 0,
    }];
    let settings = executor.settings();
    executor.run(Job::read(
        vec![file],
        moves,
        &region,
        Choice::Auto,
        settings,
    )?)
}
