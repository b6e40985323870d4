//! The making of jobs: what is known of the files is found out, and the transfer is planned.

use std::{sync::Arc, time::Instant};

use straightway_core::{
    Choice, Delivery, Direction, Extent, Move, Object, Place, Plan, Policy, Portion, Result,
    Survey, Transfer,
};
use straightway_sys::{File, Region, residency};

use super::Job;
use crate::{inspect::Inspect, settings::Settings};

impl Job {
    /// Reads extents of `files` into `region`.
    pub fn read(
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        Self::with_region(Direction::In, files, moves, region, choice, settings)
    }

    /// The plan of a read into a region that is not there yet: its place, which begins on a page, and
    /// its length. What GPUDirect Storage could do is not asked.
    pub fn foresee(
        files: &[Arc<File>],
        moves: Vec<Move>,
        (place, region_bytes): (Place, u64),
        choice: Choice,
        settings: &Settings,
    ) -> Result<Plan> {
        let transfer = Transfer::new(Direction::In, objects(files), moves, region_bytes)?;
        let surveys = survey(files, &transfer, choice);
        Plan::new(
            &transfer,
            &surveys,
            &[],
            &policy(Direction::In, choice, (place, 0), settings),
        )
    }

    /// Writes parts of `region` to extents of `files`, which are new: what no move names is zero.
    pub fn write(
        region: &Arc<Region>,
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        Self::with_region(Direction::Out, files, moves, region, choice, settings)
    }

    /// Copies extents of each file to the same place in its twin, which is new.
    pub fn relay(
        files: Vec<Arc<File>>,
        twins: Vec<Arc<File>>,
        extents: Vec<(u32, Extent)>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        assert_eq!(files.len(), twins.len(), "each file has one twin");
        let start = Instant::now();
        let in_place = |(object, extent): (u32, Extent)| Move {
            object,
            extent,
            at: extent.offset,
        };
        let moves = extents.into_iter().map(in_place).collect();
        let transfer = Transfer::new(Direction::Across, objects(&files), moves, 0)?;
        let surveys = survey(&files, &transfer, choice);
        let onward: Vec<_> = twins.iter().map(|f| f.survey()).collect();
        let policy = Policy::new(choice, settings.chunk_bytes);
        let plan = Plan::new(&transfer, &surveys, &onward, &policy)?;
        Ok(Self {
            twins,
            ..Self::new((Direction::Across, choice), plan, &policy, files, start)
        })
    }

    /// Reads portions of `files` and has each of them inspected before anything of it goes to `regions`.
    /// `deliveries` says what goes where: those of the first portion, then those of the second, and so on.
    pub fn check(
        files: Vec<Arc<File>>,
        portions: Vec<Portion>,
        deliveries: Vec<Delivery>,
        regions: Vec<Arc<Region>>,
        inspect: Arc<dyn Inspect>,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let mut hulls = vec![None; files.len()];
        for portion in &portions {
            if let Some(hull) = hulls.get_mut(portion.object as usize) {
                widen(hull, portion.extent);
            }
        }
        let surveys = surveys(&files, hulls, residency::resident_by_sample);
        let region_bytes: Vec<_> = regions.iter().map(|r| r.bytes()).collect();
        let plan = Plan::of_portions(
            &objects(&files),
            &surveys,
            portions,
            deliveries,
            &region_bytes,
        )?;
        let policy = Policy::new(Choice::Auto, settings.chunk_bytes);
        let new = Self::new((Direction::In, Choice::Auto), plan, &policy, files, start);
        Ok(Self {
            regions: regions.into(),
            inspect: Some(inspect),
            ..new
        })
    }

    fn with_region(
        direction: Direction,
        files: Vec<Arc<File>>,
        moves: Vec<Move>,
        region: &Arc<Region>,
        choice: Choice,
        settings: &Settings,
    ) -> Result<Self> {
        let start = Instant::now();
        let transfer = Transfer::new(direction, objects(&files), moves, region.bytes())?;
        let mut surveys: Vec<_> = match direction {
            Direction::Out => files.iter().map(|f| f.survey()).collect(),
            Direction::In | Direction::Across => survey(&files, &transfer, choice),
        };
        let mut warnings = Vec::new();
        let wanted = (direction.leg(), choice);
        let gds = &settings.gds;
        let pass = gds.survey(&files, &mut surveys, region, wanted, &mut warnings)?;
        let span = (region.place(), region.address());
        let policy = policy(direction, choice, span, settings);
        let plan = Plan::new(&transfer, &surveys, &[], &policy)?;
        Ok(Self {
            regions: [Arc::clone(region)].into(),
            pass,
            warnings,
            ..Self::new((direction, choice), plan, &policy, files, start)
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

fn objects(files: &[Arc<File>]) -> Vec<Object> {
    files.iter().map(|f| f.object()).collect()
}

/// Finds out which bytes are in the page cache, where that can matter.
pub(crate) fn survey(files: &[Arc<File>], transfer: &Transfer, choice: Choice) -> Vec<Survey> {
    let mut hulls: Vec<Option<Extent>> = vec![None; files.len()];
    if choice == Choice::Auto {
        for m in transfer.moves() {
            widen(&mut hulls[m.object as usize], m.extent);
        }
    }
    // A read says itself what was not there after all; across, the kernel reads for us.
    surveys(
        files,
        hulls,
        match transfer.direction() {
            Direction::In => residency::resident_by_sample,
            Direction::Out | Direction::Across => residency::resident,
        },
    )
}

/// Makes a hull take in an extent.
fn widen(hull: &mut Option<Extent>, extent: Extent) {
    let known = hull.unwrap_or(extent);
    let start = known.offset.min(extent.offset);
    *hull = Some(Extent::between(start, known.end().max(extent.end())));
}

/// What is known of each file, and what of its hull is resident where O_DIRECT is the other way.
fn surveys(
    files: &[Arc<File>],
    hulls: Vec<Option<Extent>>,
    resident: impl Fn(&File, Extent) -> Vec<Extent>,
) -> Vec<Survey> {
    let one = |(file, hull): (&Arc<File>, Option<Extent>)| {
        let mut survey = file.survey();
        if let (Ok(_), Some(hull)) = (survey.usable(), hull) {
            survey.resident = resident(file, hull);
        }
        survey
    };
    files.iter().zip(hulls).map(one).collect()
}
