//! Verifies copies and loads. A copy and its original are both read and compared; the copy bypasses the page cache
//! where possible, so that its bytes come from the drive. Loaded weights are compared with their files, read again by
//! another route.

use std::sync::Arc;

use straightway_core::{Choice, Direction, Error, ErrorKind, Extent, Leg, Move, Result, Route};
use straightway_io::{Ask, Executor, File, Objects, Progress, Region, store::Location};

use crate::{
    copy_job::CopyJob,
    weights::{Layout, Loaded, Loader, Model, Shard},
};

/// Bytes of each file that are compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// Compares every copy with its original. An error names the first byte that differs.
pub fn verify(executor: &Executor, job: &CopyJob, progress: &Arc<Progress>) -> Result<()> {
    let mut regions = [Region::host(WINDOW_BYTES)?, Region::host(WINDOW_BYTES)?].map(Arc::new);
    for pair in &job.pairs {
        let copy = job.target(pair);
        let open = |at: &Location| Ok(Objects::new(Arc::clone(&at.store), vec![at.open()?]));
        let (source, target) = (open(&pair.source)?, open(&copy)?);
        let length = |objects: &Objects| objects.handles()[0].object().bytes;
        let bytes = length(&source);
        let differs = |at: u64| {
            let message = format!("byte {at} differs from {}", pair.source.describe());
            copy.error(ErrorKind::Corrupt, "verify", message)
                .with_hint("copy it again; if it differs again, suspect the drive or the memory")
        };
        if bytes != length(&target) {
            return Err(differs(bytes.min(length(&target))));
        }
        let survey = copy.store.survey(target.handles(), &[None], Direction::In)?;
        let around = match survey[0].usable() {
            // A socket has no page cache to bypass.
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
            let [left, right] = regions
                .each_mut()
                .map(|region| &Arc::get_mut(region).expect("no transfer is running").as_slice()[..bytes]);
            if let Some(first) = first_difference(left, right) {
                return Err(differs(at + first));
            }
            at = extent.end();
        }
    }
    Ok(())
}

/// Compares loaded weights with their files, read again by another route where there is one. An error names the file
/// and the first byte that differs. `layout` is the one they were loaded with.
pub fn verify_loaded(loader: &Loader, model: &Model, layout: &Layout, weights: &mut Loaded) -> Result<()> {
    let was_cached = weights.receipt.bytes_by(Leg::Read, Route::Buffered) > 0;
    let Some(memory) = Arc::get_mut(&mut weights.region) else {
        let message = "its region is in use elsewhere";
        let path = model.path.display();
        return Err(Error::new(ErrorKind::Invalid, "verify", path, message));
    };
    let mut again = Arc::new(Region::host(WINDOW_BYTES)?);
    let mut there = Vec::new();
    for moves in layout.moves.chunk_by(|a, b| a.object == b.object) {
        let shard = &model.shards[moves[0].object as usize];
        let objects = Shard::open_all(std::slice::from_ref(shard))?;
        // An object that is not a file has only one route, and is read by it again.
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
                    let hint = "load it again; if it differs again, suspect the drive or the memory";
                    let error = shard.location().error(ErrorKind::Corrupt, "verify", message);
                    return Err(error.with_hint(hint));
                }
            }
        }
    }
    Ok(())
}

/// Groups the moves of one file so that each group fits into a window. Longer moves are split. They are in the order of
/// the region.
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

/// The index of the first byte that differs, if any.
fn first_difference(left: &[u8], right: &[u8]) -> Option<u64> {
    // The slices are compared at memory speed; the index is searched for only if they differ.
    if left == right {
        return None;
    }
    let place = left.iter().zip(right).position(|(a, b)| a != b);
    Some(place.unwrap_or(left.len().min(right.len())) as u64)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a window fits into memory")
}
