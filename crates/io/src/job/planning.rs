//! The making of jobs: what is known of the objects is found out, and the transfer is planned.

use std::{sync::Arc, time::Instant};

use straightway_core::{
    Choice, Delivery, Direction, Extent, Move, Place, Plan, Policy, Portion, Result, Survey,
    Transfer,
};
use straightway_sys::Region;

use super::Job;
use crate::{inspect::Inspect, objects::Objects, settings::Settings, store::pair::Pair};

impl Job {
    /// Reads extents of objects into `region`.
    pub fn read(
        objects: impl Into<Objects>,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let objects = objects.into();
        Self::with_region(Direction::In, objects, moves, region, choice, settings)
    }

    /// The plan of a read into a region that is not there yet: its place, which begins on a page, and
    /// its length. What GPUDirect Storage could do is not asked.
    pub fn foresee(
        objects: impl Into<Objects>,
        moves: Vec<Move>,
        (place, region_bytes): (Place, u64),
        choice: Choice,
        settings: &Settings,
    ) -> Result<Plan> {
        let objects = objects.into();
        let transfer = Transfer::new(Direction::In, objects.list(), moves, region_bytes)?;
        let surveys = survey(&objects, &transfer, choice)?;
        Plan::new(
            &transfer,
            &surveys,
            &[],
            &policy(Direction::In, choice, (place, 0), settings),
        )
    }

    /// Writes parts of `region` to extents of objects, which are new: what no move names is zero.
    pub fn write(
        region: &Arc<Region>,
        objects: impl Into<Objects>,
        moves: Vec<Move>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let objects = objects.into();
        Self::with_region(Direction::Out, objects, moves, region, choice, settings)
    }

    /// Copies extents of each object to the same place in its twin, which is new and may be in a store of another family.
    pub fn relay(
        objects: impl Into<Objects>,
        twins: impl Into<Objects>,
        extents: Vec<(u32, Extent)>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let (objects, twins) = (objects.into(), twins.into());
        assert_eq!(
            objects.handles().len(),
            twins.handles().len(),
            "each object has one twin"
        );
        let start = Instant::now();
        let in_place = |(object, extent): (u32, Extent)| Move {
            object,
            extent,
            at: extent.offset,
        };
        let moves = extents.into_iter().map(in_place).collect();
        let transfer = Transfer::new(Direction::Across, objects.list(), moves, 0)?;
        let surveys = survey(&objects, &transfer, choice)?;
        let onward = unread(&twins)?;
        let policy = Policy::new(choice, settings.chunk_bytes);
        let plan = Plan::new(&transfer, &surveys, &onward, &policy)?;
        let store = Pair::of(objects.store(), twins.store());
        let objects = Objects::new(store, objects.handles().to_vec());
        Ok(Self {
            twins: Some(twins),
            ..Self::new((Direction::Across, choice), plan, &policy, objects, start)
        })
    }

    /// Reads portions of objects and has each of them inspected before anything of it goes to `regions`.
    /// `deliveries` says what goes where: those of the first portion, then those of the second, and so on.
    pub fn check(
        objects: impl Into<Objects>,
        portions: Vec<Portion>,
        deliveries: Vec<Delivery>,
        regions: Vec<Arc<Region>>,
        inspect: Arc<dyn Inspect>,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let objects = objects.into();
        let mut hulls = vec![None; objects.handles().len()];
        for portion in &portions {
            if let Some(hull) = hulls.get_mut(portion.object as usize) {
                widen(hull, portion.extent);
            }
        }
        let store = objects.store();
        let surveys = store.survey(objects.handles(), &hulls, Direction::In)?;
        let region_bytes: Vec<_> = regions.iter().map(|r| r.bytes()).collect();
        let plan = Plan::of_portions(
            &objects.list(),
            &surveys,
            portions,
            deliveries,
            &region_bytes,
        )?;
        let policy = Policy::new(Choice::Auto, settings.chunk_bytes);
        let auto = (Direction::In, Choice::Auto);
        Ok(Self {
            regions: regions.into(),
            inspect: Some(inspect),
            ..Self::new(auto, plan, &policy, objects, start)
        })
    }

    fn with_region(
        direction: Direction,
        objects: Objects,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let transfer = Transfer::new(direction, objects.list(), moves, region.bytes())?;
        let mut surveys = match direction {
            Direction::Out => unread(&objects)?,
            Direction::In | Direction::Across => survey(&objects, &transfer, choice)?,
        };
        let mut warnings = Vec::new();
        let wanted = (direction.leg(), choice);
        let gds = &settings.gds;
        let pass = gds.survey(
            || objects.files(),
            &mut surveys,
            region,
            wanted,
            &mut warnings,
        )?;
        let span = (region.place(), region.address());
        let policy = policy(direction, choice, span, settings);
        let plan = Plan::new(&transfer, &surveys, &[], &policy)?;
        Ok(Self {
            regions: [Arc::clone(region)].into(),
            pass,
            warnings,
            ..Self::new((direction, choice), plan, &policy, objects, start)
        })
    }
}

/// How a transfer with a region is cut.
fn policy(
    direction: Direction,
    choice: Choice,
    (place, region_address): (Place, u64),
    settings: &Settings,
) -> Policy {
    Policy {
        place,
        region_address,
        // A write takes its bytes from memory that is there already: where reads were a quarter faster by the ring,
        // writes were a sixth slower.
        ring_first: settings.ring_first && direction == Direction::In,
        cached_chunk_bytes: settings.cached_chunk_bytes(place),
        ..Policy::new(choice, settings.chunk_bytes)
    }
}

/// What is known of objects that are read, and what of them is cached where that can matter.
fn survey(objects: &Objects, transfer: &Transfer, choice: Choice) -> Result<Vec<Survey>> {
    let mut hulls: Vec<Option<Extent>> = vec![None; objects.handles().len()];
    if choice == Choice::Auto {
        for m in transfer.moves() {
            widen(&mut hulls[m.object as usize], m.extent);
        }
    }
    let (store, direction) = (objects.store(), transfer.direction());
    store.survey(objects.handles(), &hulls, direction)
}

/// What is known of objects that nobody reads.
fn unread(objects: &Objects) -> Result<Vec<Survey>> {
    let hulls = vec![None; objects.handles().len()];
    objects
        .store()
        .survey(objects.handles(), &hulls, Direction::Out)
}

/// Makes a hull take in an extent.
fn widen(hull: &mut Option<Extent>, extent: Extent) {
    let known = hull.unwrap_or(extent);
    let start = known.offset.min(extent.offset);
    *hull = Some(Extent::between(start, known.end().max(extent.end())));
}
