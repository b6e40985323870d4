//! A real transfer into GPU memory, by cuFile if available, to see which path it takes.

use std::{path::Path, sync::Arc};

use serde::Serialize;
use straightway_core::{Choice, Extent, Place, Reason, Receipt, Result, Route, receipt::RouteBytes};
use straightway_io::{Executor, File, GdsUse, Region, Settings};
use straightway_sys::cuda::Driver;

use super::{
    cufile_path::CufilePath,
    sample::{largest_file, write_sample},
};

/// The bytes to transfer: enough for cuFile's counters to change, and quickly done.
const BYTES: u64 = 16 << 20;

/// The result of a transfer from the path into GPU memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveProbe {
    /// The bytes of each route, with the reason for it.
    pub routes: Vec<RouteBytes>,
    /// The duration.
    pub seconds: f64,
    /// The receipt of the transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// The error, if the transfer failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<&Receipt> for LiveProbe {
    fn from(receipt: &Receipt) -> Self {
        Self {
            routes: receipt.routes.clone(),
            seconds: receipt.seconds,
            receipt: Some(receipt.clone()),
            error: None,
        }
    }
}

impl LiveProbe {
    /// The direct path that all bytes are proven to have taken.
    pub fn proof(&self) -> Option<CufilePath> {
        let (first, rest) = self.routes.split_first()?;
        let way = match (first.route, first.reason) {
            (Route::Direct, Reason::ProvenNvidiaFs) => CufilePath::NvidiaFs,
            (Route::Direct, Reason::ProvenP2pdma) => CufilePath::P2pDma,
            _ => return None,
        };
        let is_same = |other: &RouteBytes| (other.route, other.reason) == (first.route, first.reason);
        let is_whole = self.error.is_none() && self.bytes() > 0 && rest.iter().all(is_same);
        is_whole.then_some(way)
    }

    /// The bytes transferred.
    pub(super) fn bytes(&self) -> u64 {
        self.routes.iter().map(|part| part.bytes).sum()
    }
}

impl LiveProbe {
    /// Reads the file or, if `path` is a folder, a temporary file in it, into the first GPU; `None` without a GPU.
    pub(super) fn measure(path: &Path) -> Option<Self> {
        Driver::load().ok().filter(|d| d.device_count().is_ok_and(|n| n > 0))?;
        if !path.is_dir() {
            return Some(Self::of(path));
        }
        Some(match (write_sample(path), largest_file(path)) {
            (Ok(sample), _) => Self::of(sample.path()),
            (Err(_), Some(file)) => Self::of(&file),
            (Err(error), None) => Self::failed(&error),
        })
    }

    /// Transfers by cuFile on any of its paths. If cuFile fails, transfers by the ring and reports cuFile's error
    /// with it.
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
        gds,
        ..Settings::default()
    })?;
    let file = Arc::new(File::open(path)?);
    // Bytes in the page cache would be read from there, which says nothing about the drive.
    file.evict()?;
    // Whole pages: a partial page always takes the ring, and would make the answer ambiguous.
    let bytes = straightway_core::extent::down(file.bytes().min(BYTES), 4096);
    let region = Arc::new(Region::at(Place::Gpu(0), bytes)?);
    let moves = vec![Extent::new(0, bytes).into()];
    executor.read(vec![file], moves, &region, Choice::Auto)?.wait()
}
