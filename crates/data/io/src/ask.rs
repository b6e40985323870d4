//! The options of a job: route, progress and sync.

use std::sync::Arc;

use straightway_core::{Choice, Delivery, Portion};
use straightway_sys::Region;

use crate::{inspect::Inspect, objects::Objects, progress::Progress};

/// The options of a job. A [`Choice`] alone converts to one with that route.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The route of its bytes. Checked reads ignore it and take the best route.
    pub choice: Choice,
    /// Counts its bytes as they arrive, and can stop it. Several jobs may share it.
    pub progress: Arc<Progress>,
    /// Whether the job syncs what it writes when it ends. If not, a later job that writes to the same objects has to: a
    /// sync covers all of an object.
    pub syncs: bool,
}

impl Ask {
    /// Options with a route and a progress.
    pub fn new(choice: Choice, progress: &Arc<Progress>) -> Self {
        Self {
            choice,
            progress: Arc::clone(progress),
            syncs: true,
        }
    }
}

impl From<Choice> for Ask {
    fn from(choice: Choice) -> Self {
        Self::new(choice, &Arc::default())
    }
}

/// A read whose portions are inspected before any byte of them goes to a region.
#[derive(Debug)]
pub struct Checked {
    /// The objects to read.
    pub from: Objects,
    /// The parts of them to read.
    pub portions: Vec<Portion>,
    /// The destinations: the deliveries of the first portion, then those of the second, and so on.
    pub deliveries: Vec<Delivery>,
    /// The regions that the deliveries refer to.
    pub to: Vec<Arc<Region>>,
    /// The inspector of each portion.
    pub inspect: Arc<dyn Inspect>,
}
