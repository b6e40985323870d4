//! What a caller asks of a job beside what goes where.

use std::sync::Arc;

use straightway_core::{Choice, Delivery, Portion};
use straightway_sys::Region;

use crate::{inspect::Inspect, objects::Objects, progress::Progress};

/// How a job is to run. A [`Choice`] alone asks for that route.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which route its bytes are to take. What is inspected takes the straightest.
    pub choice: Choice,
    /// Counts its bytes as they arrive, and can stop it. It may serve several jobs.
    pub progress: Arc<Progress>,
    /// Whether what it writes is made durable when it ends. If not, a later job that writes to the same objects does it:
    /// a sync covers all of an object.
    pub syncs: bool,
}

impl Ask {
    /// A route, and what to count on.
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

/// A read whose portions are inspected before anything of them goes to a region.
#[derive(Debug)]
pub struct Checked {
    /// What is read.
    pub from: Objects,
    /// Which parts of it.
    pub portions: Vec<Portion>,
    /// What goes where: the deliveries of the first portion, then those of the second, and so on.
    pub deliveries: Vec<Delivery>,
    /// The regions that deliveries name.
    pub to: Vec<Arc<Region>>,
    /// What looks at each portion.
    pub inspect: Arc<dyn Inspect>,
}
