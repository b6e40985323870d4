//! The memory for the rings of crews, and which crews share it.

use std::{collections::HashMap, sync::Arc};

use straightway_core::Place;
use straightway_sys::{RingSpace, cuda::Context};

use crate::{
    settings::{RingSize, Settings},
    track::Track,
};

/// Whether the slots of a ring are made one by one, and given back between jobs: pinning takes time, a lane can begin
/// with one slot, and loads and restores use the same slots in turn.
pub(super) fn is_by_slot(track: Track, place: Place) -> bool {
    track != Track::Drive && matches!(place, Place::Gpu(_))
}

/// The memory for the rings of the lanes of a GPU. A drive's lanes have their own: their slots are shorter.
#[derive(Debug, Default)]
pub(crate) struct RingSpaces(HashMap<Place, (Option<Context>, Arc<RingSpace>)>);

impl RingSpaces {
    /// The memory for the rings of a crew. Slots of a context that was reset are not pinned any more, so that each
    /// context has its own.
    pub(super) fn of(
        &mut self,
        track: Track,
        place: Place,
        context: Option<&Context>,
        settings: &Settings,
    ) -> Arc<RingSpace> {
        let make = |track| {
            let RingSize { slots, slot_bytes } = settings.ring(track, place);
            let lanes = settings.lanes(track, place) as usize;
            let parts = if is_by_slot(track, place) { slots } else { 1 };
            Arc::new(RingSpace::new(lanes, parts, (slots * slot_bytes) as u64))
        };
        match place {
            Place::Host | Place::P2p(_) => Arc::default(),
            Place::Gpu(_) if !is_by_slot(track, place) => make(track),
            Place::Gpu(_) => {
                let is_known = |own: &Option<Context>| match (own, context) {
                    (Some(own), Some(context)) => own.is_same(context),
                    (own, context) => own.is_none() && context.is_none(),
                };
                if !self.0.get(&place).is_some_and(|(own, _)| is_known(own)) {
                    self.0.insert(place, (context.cloned(), make(Track::Cached)));
                }
                Arc::clone(&self.0[&place].1)
            }
        }
    }
}
