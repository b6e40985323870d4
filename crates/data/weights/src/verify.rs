//! Verifies loads: loaded weights are compared with their files, which are read again by another route.

use std::{sync::Arc, time::Instant};

use straightway_core::{
    Choice, Error, ErrorKind, Extent, Leg, Move, Result, Route,
    compare::first_difference,
    receipt::{Verified, VerifyMethod},
};
use straightway_io::{Ask, File, Region};

use crate::{Layout, Loaded, Loader, Model, Shard};

/// Bytes of each file that are compared at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// Compares loaded weights with their files, read again by another route where there is one. An error names the file
/// and the first byte that differs. The receipt says what was compared. `layout` is the one they were loaded with.
pub fn verify_loaded(loader: &Loader, model: &Model, layout: &Layout, weights: &mut Loaded) -> Result<()> {
    let start = Instant::now();
    let mut verified = Verified {
        method: VerifyMethod::ReadAgain,
        objects: 0,
        bytes: 0,
        seconds: 0.0,
    };
    tracing::info!("verifying: every byte is read again by another route and compared");
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
        verified.objects += 1;
        verified.bytes += moves.iter().map(|m| m.extent.bytes).sum::<u64>();
    }
    verified.seconds = start.elapsed().as_secs_f64();
    weights.receipt.verified = Some(verified);
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

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a window fits into memory")
}
