//! Planning: surveys the objects of a transfer and makes a job.

use std::sync::Arc;

use straightway_core::{
    Alignment, Choice, Direction, Extent, Leg, Move, Place, Plan, Policy, Result, Route, Survey, Transfer,
};
use straightway_sys::{File, Region};

use super::Job;
use crate::{
    ask::{Ask, Checked},
    direct_path::DirectPath,
    handle::Handle,
    learning::Method,
    objects::Objects,
    opening::Opening,
    parts::Outfit,
    peer::{FirstExtent, only_files},
    scattered::Scattered,
    settings::Settings,
    store::pair::Pair,
};

/// The plan of a read into a region of this place and length.
pub(crate) fn plan_read(
    objects: &Objects,
    moves: Vec<Move>,
    (place, region_bytes): (Place, u64),
    choice: Choice,
    settings: &Settings,
) -> Result<Plan> {
    let transfer = Transfer::new(Direction::In, objects.list(), moves, region_bytes)?;
    let surveys = survey(objects, &transfer, choice)?;
    let policy = policy(Direction::In, choice, (place, 0), settings);
    Plan::new(&transfer, &surveys, &[], &policy)
}

impl Job {
    /// Copies extents of each object to the same place in its twin.
    pub(crate) fn relay(
        objects: &Objects,
        twins: Objects,
        moves: Vec<Move>,
        ask: Ask,
        outfit: &Outfit,
    ) -> Result<Self> {
        let settings = &outfit.settings;
        assert_eq!(
            objects.handles().len(),
            twins.handles().len(),
            "each object has one twin"
        );
        let opening = Opening::now();
        let transfer = Transfer::new(Direction::Across, objects.list(), moves, 0)?;
        let (mut surveys, mut onward) = (survey(objects, &transfer, ask.choice)?, unread(&twins)?);
        let is_in_memory =
            ask.choice == Choice::Auto && settings.through.is_none() && is_in_one_memory(objects, &twins);
        let chunk_bytes = if is_in_memory {
            // Its chunks need no slot of the ring.
            settings.cached_chunk_bytes
        } else {
            settings.chunk_bytes
        };
        let mut policy = Policy::new(ask.choice, chunk_bytes);
        if let Some(provider) = settings.through {
            // The user asked for it explicitly, so any other route is an error.
            policy.choice = Choice::Only(Route::Direct);
            policy.place = Place::P2p(provider);
            let firsts = firsts(&transfer);
            for (objects, surveys, leg) in [(objects, &mut surveys, Leg::Read), (&twins, &mut onward, Leg::Write)] {
                let files = || objects.files().map_err(|_| only_files(&objects.name()));
                let how = (leg, policy.choice);
                let peers = &outfit.parts.peers;
                peers.survey(provider, files, (surveys, &firsts), how, &mut Vec::new())?;
            }
        }
        let plan = Plan::new(&transfer, &surveys, &onward, &policy)?;
        let store = Pair::of(objects.store(), twins.store());
        let objects = Objects::new(store, objects.handles().to_vec());
        Ok(Self {
            twins: Some(twins),
            direct_path: settings.through.map(|_| DirectPath::Compared),
            in_memory: is_in_memory.then_some(Method::Calls),
            through: settings.through,
            ..Self::new(Direction::Across, ask, plan, objects, opening)
        })
    }

    /// Reads portions of objects and inspects each of them.
    pub(crate) fn check(checked: Checked, ask: Ask) -> Result<Self> {
        let opening = Opening::now();
        let (objects, portions) = (checked.from, checked.portions);
        let mut hulls = vec![None; objects.handles().len()];
        for portion in &portions {
            if let Some(hull) = hulls.get_mut(portion.object as usize) {
                widen(hull, portion.extent);
            }
        }
        let surveys = objects.survey(&hulls, Direction::In)?;
        let bytes: Vec<_> = checked.to.iter().map(|r| r.bytes()).collect();
        let list = objects.list();
        let plan = Plan::of_portions(&list, &surveys, portions, checked.deliveries, &bytes)?;
        Ok(Self {
            regions: checked.to.into(),
            inspect: Some(checked.inspect),
            ..Self::new(Direction::In, ask, plan, objects, opening)
        })
    }

    /// Reads into several regions of a GPU that act as one, or writes from them.
    pub(crate) fn scattered(
        direction: Direction,
        objects: Objects,
        moves: Vec<Move>,
        whole: &Arc<Scattered>,
        ask: Ask,
        settings: &Settings,
    ) -> Result<Self> {
        let (opening, choice) = (Opening::now(), ask.choice);
        let transfer = Transfer::new(direction, objects.list(), moves, whole.bytes())?;
        let surveys = surveyed(direction, &objects, &transfer, choice)?;
        let place = whole.regions()[0].place();
        let policy = policy(direction, choice, (place, 0), settings);
        let plan = Plan::new(&transfer, &surveys, &[], &policy)?;
        Ok(Self {
            regions: Arc::clone(whole.shared_regions()),
            scattered: Some(Arc::clone(whole)),
            in_memory: written_in_memory(direction, &objects, choice),
            ..Self::new(direction, ask, plan, objects, opening)
        })
    }

    /// Reads into a region, or writes from one.
    pub(crate) fn with_region(
        direction: Direction,
        objects: Objects,
        moves: Vec<Move>,
        region: &Arc<Region>,
        ask: Ask,
        outfit: &Outfit,
    ) -> Result<Self> {
        let (opening, choice) = (Opening::now(), ask.choice);
        let transfer = Transfer::new(direction, objects.list(), moves, region.bytes())?;
        let mut surveys = surveyed(direction, &objects, &transfer, choice)?;
        let mut warnings = Vec::new();
        let wanted = (direction.leg(), choice);
        let files = || objects.files();
        let firsts = match (region.place(), direction) {
            (Place::Host, _) => Vec::new(),
            (Place::Gpu(_), _) | (Place::P2p(_), Direction::Out) => own_blocks(&transfer, &surveys),
            (Place::P2p(_), Direction::In | Direction::Across) => firsts(&transfer),
        };
        let all = (&mut surveys[..], &firsts[..]);
        let (gds, peers) = (&outfit.gds, &outfit.parts.peers);
        let (is_compared, session) = if let Place::P2p(provider) = region.place() {
            let is_compared = peers.survey(provider, files, all, wanted, &mut warnings)?;
            (is_compared, None)
        } else {
            let session = gds.survey(files, all, region, wanted, &mut warnings)?;
            (false, session)
        };
        let span = (region.place(), region.address());
        let policy = Policy {
            keeps_edges: ask.keeps_edges,
            ..policy(direction, choice, span, &outfit.settings)
        };
        let mut plan = Plan::new(&transfer, &surveys, &[], &policy)?;
        // A job without direct chunks, such as one of small extents only, needs no registration and proves nothing.
        let is_direct = plan.drive().iter().any(|c| c.route == Route::Direct);
        let mut direct_path = (is_compared && is_direct).then_some(DirectPath::Compared);
        if let Some(session) = session.filter(|_| is_direct) {
            let lease = gds.lease(session, &mut surveys, region, choice, &mut warnings)?;
            if lease.is_none() {
                plan = Plan::new(&transfer, &surveys, &[], &policy)?;
            }
            direct_path = lease.map(DirectPath::CuFile);
        }
        Ok(Self {
            regions: [Arc::clone(region)].into(),
            direct_path,
            warnings,
            in_memory: written_in_memory(direction, &objects, choice),
            ..Self::new(direction, ask, plan, objects, opening)
        })
    }
}

/// Moves of extents to the same offset on the other side.
pub(crate) fn in_place(extents: Vec<(u32, Extent)>) -> Vec<Move> {
    let in_place = |(object, extent): (u32, Extent)| Move {
        object,
        extent,
        at: extent.offset,
    };
    extents.into_iter().map(in_place).collect()
}

/// The surveys of objects that are written or read.
fn surveyed(direction: Direction, objects: &Objects, transfer: &Transfer, choice: Choice) -> Result<Vec<Survey>> {
    match direction {
        Direction::Out => unread(objects),
        Direction::In | Direction::Across => survey(objects, transfer, choice),
    }
}

/// The default method of writing to a file system in memory; `None` for all other work.
fn written_in_memory(direction: Direction, objects: &Objects, choice: Choice) -> Option<Method> {
    let is_asked = direction == Direction::Out && choice == Choice::Auto;
    (is_asked && is_in_memory(objects)).then_some(Method::Calls)
}

/// Whether all objects are files of a file system in memory.
pub(crate) fn is_in_memory(objects: &Objects) -> bool {
    let is_one = |handle: &Arc<dyn Handle>| handle.file().is_some_and(File::is_in_memory);
    !objects.handles().is_empty() && objects.handles().iter().all(is_one)
}

/// Whether objects and their twins are files of one file system in memory: the kernel can copy between them.
pub(crate) fn is_in_one_memory(objects: &Objects, twins: &Objects) -> bool {
    let device = |handle: &Arc<dyn Handle>| handle.file().and_then(|file| file.device().ok());
    let handles = || objects.handles().iter().chain(twins.handles());
    is_in_memory(objects)
        && is_in_memory(twins)
        && handles().all(|handle| device(handle) == device(&objects.handles()[0]))
}

/// The first extent that a transfer moves of each object.
fn firsts(transfer: &Transfer) -> Vec<FirstExtent> {
    let mut firsts = vec![None; transfer.objects().len()];
    for m in transfer.moves().iter().filter(|m| !m.extent.is_empty()) {
        let first: &mut FirstExtent = &mut firsts[m.object as usize];
        if first.is_none_or(|known| m.extent.offset < known.offset) {
            *first = Some(m.extent);
        }
    }
    firsts
}

/// For each object, the first whole block inside a move, if there is one. Test transfers move only that: a write must
/// not change bytes of other transfers, and without such a block nothing is direct.
fn own_blocks(transfer: &Transfer, surveys: &[Survey]) -> Vec<FirstExtent> {
    let mut blocks = vec![None; transfer.objects().len()];
    for m in transfer.moves() {
        let object = m.object as usize;
        let Some(alignment) = surveys[object].direct else {
            continue;
        };
        let block_bytes = alignment.block_bytes().max(Alignment::PAGE_BYTES);
        let whole = m.extent.interior(block_bytes);
        if blocks[object].is_none() && !whole.is_empty() {
            blocks[object] = Some(Extent::new(whole.offset, block_bytes));
        }
    }
    blocks
}

/// The planning policy of a transfer with a region.
fn policy(direction: Direction, choice: Choice, (place, region_address): (Place, u64), settings: &Settings) -> Policy {
    Policy {
        place,
        region_address,
        // Only reads: where reads through the ring were a quarter faster, writes were a sixth slower.
        ring_first: settings.ring_first && direction == Direction::In,
        cached_chunk_bytes: settings.cached_chunk_bytes(place),
        request_bytes_max: settings.request_bytes_max,
        ..Policy::new(choice, settings.chunk_bytes)
    }
}

/// The surveys of objects that are read, with their cached bytes where those can matter.
fn survey(objects: &Objects, transfer: &Transfer, choice: Choice) -> Result<Vec<Survey>> {
    let mut hulls: Vec<Option<Extent>> = vec![None; objects.handles().len()];
    if choice == Choice::Auto {
        for m in transfer.moves() {
            widen(&mut hulls[m.object as usize], m.extent);
        }
    }
    objects.survey(&hulls, transfer.direction())
}

/// The surveys of objects that are only written.
fn unread(objects: &Objects) -> Result<Vec<Survey>> {
    let hulls = vec![None; objects.handles().len()];
    objects.survey(&hulls, Direction::Out)
}

/// Extends a hull to include an extent.
fn widen(hull: &mut Option<Extent>, extent: Extent) {
    let known = hull.unwrap_or(extent);
    let start = known.offset.min(extent.offset);
    *hull = Some(Extent::between(start, known.end().max(extent.end())));
}
