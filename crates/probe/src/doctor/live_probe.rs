//! A real transfer into GPU memory, by cuFile where it can be had, to see which way it takes.

use std::{path::Path, sync::Arc};

use serde::Serialize;
use straightway_core::{
    Choice, Extent, Place, Reason, Receipt, Result, Route, receipt::RouteBytes,
};
use straightway_io::{Executor, File, GdsUse, Region, Settings};
use straightway_sys::cuda::Driver;

use super::{
    sample::{largest_file, write_sample},
    way::Way,
};

/// How much is moved: enough for cuFile's counters to move, and soon over.
const BYTES: u64 = 16 << 20;

/// A transfer from the path into GPU memory, as it went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LiveProbe {
    /// Which bytes took which route, and why.
    pub routes: Vec<RouteBytes>,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<&Receipt> for LiveProbe {
    fn from(receipt: &Receipt) -> Self {
        Self {
            routes: receipt.routes.clone(),
            seconds: receipt.seconds,
            error: None,
        }
    }
}

impl LiveProbe {
    /// The way that all bytes are proven to have gone by, straight into GPU memory.
    pub fn proof(&self) -> Option<Way> {
        let (first, rest) = self.routes.split_first()?;
        let way = match (first.route, first.reason) {
            (Route::Direct, Reason::ProvenNvidiaFs) => Way::NvidiaFs,
            (Route::Direct, Reason::ProvenP2pdma) => Way::P2pDma,
            _ => return None,
        };
        let is_same =
            |other: &RouteBytes| (other.route, other.reason) == (first.route, first.reason);
        let is_whole = self.error.is_none() && self.bytes() > 0 && rest.iter().all(is_same);
        is_whole.then_some(way)
    }

    /// How much was moved.
    pub(super) fn bytes(&self) -> u64 {
        self.routes.iter().map(|part| part.bytes).sum()
    }
}

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
    let moves = vec![Extent::new(0, bytes).into()];
    executor
        .read(vec![file], moves, &region, Choice::Auto)?
        .wait()
}
