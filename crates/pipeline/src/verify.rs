//! Whether bytes arrived as they are: a copy and its original are both read and compared, the copy
//! around the page cache where that is possible, so that it is the drive that answers; what was
//! loaded into memory is compared with its file, read again by another route.

use std::sync::Arc;

use straightway_core::{Choice, Direction, Error, Extent, Kind, Leg, Move, Result, Route};
use straightway_io::{Ask, Executor, File, Objects, Progress, Region, store::Location};

use crate::{
    errand::Errand,
    weights::{Layout, Loaded, Loader, Model, Shard},
};

/// How much of each file is compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// Compares every copy with its original; an error names the first byte that differs.
pub fn verify(executor: &Executor, errand: &Errand, progress: &Arc<Progress>) -> Result<()> {
    let mut regions = [Region::host(WINDOW_BYTES)?, Region::host(WINDOW_BYTES)?].map(Arc::new);
    for pair in &errand.pairs {
        let copy = errand.target(pair);
        let open = |at: &Location| Ok(Objects::new(Arc::clone(&at.store), vec![at.open()?]));
        let (source, target) = (open(&pair.source)?, open(&copy)?);
        let length = |objects: &Objects| objects.handles()[0].object().bytes;
        let bytes = length(&source);
        let differs = |at: u64| {
            let message = format!("byte {at} differs from {}", pair.source.describe());
            copy.error(Kind::Corrupt, "verify", message)
                .with_hint("copy it again; if it differs again, suspect the drive or the memory")
        };
        if bytes != length(&target) {
            return Err(differs(bytes.min(length(&target))));
        }
        let survey = copy
            .store
            .survey(target.handles(), &[None], Direction::In)?;
        let around = match survey[0].usable() {
            // What comes over a socket has no page cache to go around.
            Ok(_) if survey[0].socket.is_none() => Choice::Only(Route::Direct),
            _ => Choice::Auto,
        };
        let mut at = 0;
        while at < bytes {
            let extent = Extent::new(at, WINDOW_BYTES.min(bytes - at));
            let files = [(&source, Choice::Auto), (&target, around)];
            for ((file, choice), region) in files.into_iter().zip(&regions) {
                let (whole, ask) = (vec![extent.into()], Ask::new(choice, progress));
                executor.read(file.clone(), whole, region, ask)?.wait()?;
            }
            let bytes = usize::try_from(extent.bytes).expect("a window fits into memory");
            let [left, right] = regions.each_mut().map(|region| {
                &Arc::get_mut(region)
                    .expect("no transfer is running")
                    .as_slice()[..bytes]
            });
            if let Some(first) = first_difference(left, right) {
                return Err(differs(at + first));
            }
            at = extent.end();
        }
    }
    Ok(())
}

/// Compares weights in memory with their files, read again by another route where there is one; an
/// error names the file and the first byte that differs. `layout` is the one they were loaded by.
pub fn verify_loaded(
    loader: &Loader,
    model: &Model,
    layout: &Layout,
    weights: &mut Loaded,
) -> Result<()> {
    let was_cached = weights.receipt.bytes_by(Leg::Read, Route::Buffered) > 0;
    let Some(memory) = Arc::get_mut(&mut weights.region) else {
        let message = "somebody else holds its region";
        let path = model.path.display();
        return Err(Error::new(Kind::Invalid, "verify", path, message));
    };
    let mut again = Arc::new(Region::host(WINDOW_BYTES)?);
    let mut there = Vec::new();
    for moves in layout.moves.chunk_by(|a, b| a.object == b.object) {
        let shard = &model.shards[moves[0].object as usize];
        let objects = Shard::open_all(std::slice::from_ref(shard))?;
        // What is not a file has one way, and is asked for once more.
        let file = objects.handles()[0].file();
        let other_way = match file.and_then(File::alignment) {
            Some(_) if was_cached => Choice::Only(Route::Staged),
            Some(_) => Choice::Only(Route::Buffered),
            None => Choice::Auto,
        };
        for window in windows(moves) {
            let start = window[0].at;
            let end = window.iter().map(|m| m.at + m.extent.bytes).max();
            there.resize(index(end.unwrap_or(start) - start), 0);
            memory.read_at(start, &mut there)?;
            let at = |m: &Move| m.at - start;
            let moved = window.iter().map(|m| Move { at: at(m), ..*m }).collect();
            let ask = Ask::new(other_way, &loader.progress);
            let ticket = loader.executor.read(objects.clone(), moved, &again, ask)?;
            ticket.wait()?;
            let seen = Arc::get_mut(&mut again).expect("no transfer is running");
            for m in &window {
                let place = index(at(m))..index(at(m) + m.extent.bytes);
                let differs = first_difference(&seen.as_slice()[place.clone()], &there[place]);
                if let Some(first) = differs {
                    let byte = m.extent.offset + first;
                    let message = format!("byte {byte} differs when it is read by another route");
                    let hint =
                        "load it again; if it differs again, suspect the drive or the memory";
                    let error = shard.location().error(Kind::Corrupt, "verify", message);
                    return Err(error.with_hint(hint));
                }
            }
        }
    }
    Ok(())
}

/// Moves of one file as groups that fit into a window, those that are longer cut. They are in the
/// order of the region.
fn windows(moves: &[Move]) -> Vec<Vec<Move>> {
    let mut groups: Vec<Vec<Move>> = Vec::new();
    for m in moves {
        let mut done = 0;
        while done < m.extent.bytes {
            let bytes = (m.extent.bytes - done).min(WINDOW_BYTES);
            let part = Move {
                object: 0,
                extent: Extent::new(m.extent.offset + done, bytes),
                at: m.at + done,
            };
            let fits = |group: &&mut Vec<Move>| part.at + bytes - group[0].at <= WINDOW_BYTES;
            match groups.last_mut().filter(fits) {
                Some(group) => group.push(part),
                None => groups.push(vec![part]),
            }
            done += bytes;
        }
    }
    groups
}

/// The first byte that differs, if one does.
fn first_difference(left: &[u8], right: &[u8]) -> Option<u64> {
    // The whole is compared at memory speed; the place is looked for only where there is one.
    if left == right {
        return None;
    }
    let place = left.iter().zip(right).position(|(a, b)| a != b);
    Some(place.unwrap_or(left.len().min(right.len())) as u64)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a window fits into memory")
}
