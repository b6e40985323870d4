//! Copies into memory: the sources are read and discarded, which measures what a program that loads them would wait for.

use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Extent, Move, Place, Receipt, survey::whole_pages};
use straightway_io::{
    Ask, Executor, Handle, Objects, Progress, Region,
    store::{Location, Named},
};

use super::Args;

/// Reads the sources into memory.
pub(crate) fn read(
    args: &Args,
    sources: &[Location],
    place: Place,
    executor: &Executor,
    progress: &Arc<Progress>,
) -> anyhow::Result<Receipt> {
    if args.verify {
        let message = "memory is not read back";
        return Err(Error::new(ErrorKind::Invalid, "verify", place, message)
            .with_hint("leave out --verify, or copy to a file")
            .into());
    }
    let store = Arc::clone(&sources[0].store);
    if let Some(other) = sources.iter().find(|s| !Arc::ptr_eq(&s.store, &store)) {
        let message = "it is in another store than the first source";
        return Err(other
            .error(ErrorKind::Invalid, "read", message)
            .with_hint("read from one store at a time")
            .into());
    }
    // In one call, so that a store on a network requests all of them at once.
    let names: Vec<_> = sources.iter().map(|s| Named::new(&s.name)).collect();
    let handles = store.open(&names)?;
    // Each file begins on a page: otherwise a file of an odd size would misalign the next ones for DMA.
    let mut at = 0;
    let whole = |(object, handle): (u32, &Arc<dyn Handle>)| {
        let extent = Extent::new(0, handle.object().bytes);
        let start = at;
        at += whole_pages(extent.bytes);
        Move {
            object,
            extent,
            at: start,
        }
    };
    let moves: Vec<_> = (0..).zip(&handles).map(whole).collect();
    let region = Arc::new(Region::at(place, at)?);
    region.populate();
    let _watch = args.watch(progress, moves.iter().map(|m| m.extent.bytes).sum(), None);
    let objects = Objects::new(store, handles);
    let ask = Ask::new(args.route, progress);
    Ok(executor.read(objects, moves, &region, ask)?.wait()?)
}
