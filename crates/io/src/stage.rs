//! The copy stage of a lane: between the slots of its ring and the regions.
//!
//! Like an engine it has two verbs: a copy is started, and taken when it is done. It owns the slot
//! meanwhile, so a slot is filled again only after its copy. Into host memory the lane makes it with
//! its own hands, when it has nothing better to do ([`HostStage`]); into a GPU the device makes it,
//! beside whatever the lane does next ([`DeviceStage`]).

mod device;
mod host;

pub(crate) use device::DeviceStage;
pub(crate) use host::HostStage;

use std::{fmt, sync::Arc};

use straightway_core::{Error, Result};
use straightway_sys::{
    Region, Slot,
    cuda::{Direction, Landing},
};

/// The regions of a job. A copy in flight holds them.
pub(crate) type Regions = Arc<[Arc<Region>]>;

/// Copies between slots and regions.
pub(crate) trait Stage: fmt::Debug + Send {
    /// A ring that it can copy with: `count` slots of `bytes` each, or fewer where memory is short.
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>>;

    /// One slot more, or none where memory is short.
    fn slot(&self, bytes: usize) -> Result<Option<Slot>> {
        self.ring(1, bytes).map(|mut slots| slots.pop())
    }

    /// Starts a copy between its slot and `regions`. It comes back by `poll`, even if it could not be started.
    fn start(&mut self, copy: Copy, regions: &Regions, landings: &[Landing]);

    /// Appends the copies that are done to `done`. Where `wait` is set and there are any under way,
    /// waits for the oldest, or makes it.
    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool);

    /// Whether copies are made only while they are waited for.
    fn is_by_hand(&self) -> bool;

    /// How many copies were started and have not been taken.
    fn in_flight(&self) -> usize;
}

const _: [&dyn Stage; 0] = [];

/// A copy to be made.
#[derive(Debug)]
pub(crate) struct Copy {
    /// The flight it is part of.
    pub(crate) tag: u32,
    /// The slot, which the copy owns until it is done.
    pub(crate) slot: Slot,
    /// Which way; for host memory the region is what the device is for a GPU.
    pub(crate) direction: Direction,
}

/// A copy that is over.
#[derive(Debug)]
pub(crate) struct Copied {
    /// The flight it was part of.
    pub(crate) tag: u32,
    /// The slot; `None` only with an error, where the device may still be using it.
    pub(crate) slot: Option<Slot>,
    /// How it went.
    pub(crate) outcome: Result<(), Error>,
}

impl Copied {
    /// A copy that went well.
    fn whole(tag: u32, slot: Slot) -> Self {
        Self {
            tag,
            slot: Some(slot),
            outcome: Ok(()),
        }
    }
}
