//! The copy stage of a lane, between the slots of its ring and the regions.
//!
//! Like an engine it has two operations: start a copy, and poll for finished ones. A copy owns its slot, so a slot is
//! filled again only after its copy. Copies into host memory are made on the lane's own thread, when it has nothing
//! better to do ([`HostStage`]). Copies into a GPU are made by the device in parallel to the lane ([`DeviceStage`]).

mod device;
mod host;

pub(crate) use device::DeviceStage;
pub(crate) use host::HostStage;

use std::{fmt, sync::Arc};

use straightway_core::{Error, Result};
use straightway_sys::{
    Region, Slot,
    cuda::{CopyDirection, RegionSpan},
};

/// The regions of a job. A copy in flight holds them.
pub(crate) type Regions = Arc<[Arc<Region>]>;

/// Copies between slots and regions.
pub(crate) trait Stage: fmt::Debug + Send {
    /// Allocates a ring: `count` slots of `bytes` each, or fewer if memory is short.
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>>;

    /// Allocates one more slot, or none if memory is short.
    fn slot(&self, bytes: usize) -> Result<Option<Slot>> {
        self.ring(1, bytes).map(|mut slots| slots.pop())
    }

    /// Whether memory for a slot could not be had once.
    fn is_short(&self) -> bool {
        false
    }

    /// A slot of at least `bytes` that another lane does not need at the moment, if there is one.
    fn idle_slot(&self, bytes: usize) -> Option<Slot> {
        let _ = bytes;
        None
    }

    /// Takes back slots that the lane does not need at the moment. Returns those that the lane has to keep.
    fn keep(&self, slots: Vec<Slot>) -> Vec<Slot> {
        slots
    }

    /// Starts a copy between its slot and `regions`. `poll` returns it, even if it could not be started.
    fn start(&mut self, copy: Copy, regions: &Regions, region_spans: &[RegionSpan]);

    /// Appends finished copies to `done`. If `wait` is set and there are any in flight, waits for the oldest, or makes
    /// it.
    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool);

    /// Whether copies are made by `poll` itself, and only with `wait`.
    fn copies_on_poll(&self) -> bool;

    /// The number of copies that were started and not yet returned by `poll`.
    fn in_flight(&self) -> usize;
}

const _: [&dyn Stage; 0] = [];

/// A copy to be made.
#[derive(Debug)]
pub(crate) struct Copy {
    /// The tag of its flight.
    pub(crate) tag: u32,
    /// The slot, which the copy owns until it is done.
    pub(crate) slot: Slot,
    /// The direction. For host memory the region takes the role of the device.
    pub(crate) direction: CopyDirection,
}

/// A finished copy.
#[derive(Debug)]
pub(crate) struct Copied {
    /// The tag of its flight.
    pub(crate) tag: u32,
    /// The slot; `None` only with an error, where the device may still be using it.
    pub(crate) slot: Option<Slot>,
    /// Success or error.
    pub(crate) outcome: Result<(), Error>,
}

impl Copied {
    /// A successful copy.
    fn whole(tag: u32, slot: Slot) -> Self {
        Self {
            tag,
            slot: Some(slot),
            outcome: Ok(()),
        }
    }
}
