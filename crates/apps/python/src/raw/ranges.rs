//! Ranges of a file as objects of type `bytes`, read by one job into memory of our own.

use std::sync::Arc;

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use straightway_core::{Choice, Extent, Move, Place, Result};
use straightway_io::{Ask, Objects, Region, resident::SmallRead};

use super::{call::Target, trace, transfer::Running};
use crate::{error::OrRaise, receipt::Receipt};

/// Reads ranges, each `(offset, bytes)`, which lie inside the file.
pub(crate) fn read_bytes<'py>(
    py: Python<'py>,
    target: &Target,
    choice: Choice,
    ranges: &[(u64, u64)],
) -> PyResult<(Vec<Bound<'py, PyBytes>>, Receipt)> {
    let (mut moves, mut bytes) = (Vec::with_capacity(ranges.len()), 0_u64);
    for (offset, length) in ranges {
        moves.push(Move {
            object: 0,
            extent: Extent::new(*offset, *length),
            at: bytes,
        });
        let all = bytes.checked_add(*length);
        bytes = all.ok_or_else(|| PyValueError::new_err("the ranges are too long"))?;
    }
    let traces = trace::current(py)?;
    let (mut region, outcome) = py.detach(|| begin(target, choice, moves, bytes)).or_raise()?;
    let running = match outcome {
        Begun::Ended(receipt) => Running::ended(*receipt, traces),
        Begun::Job(ticket) => Running::new(vec![(ticket, 0.0)], None, bytes, traces),
    };
    running.wait(py)?;
    let receipt = running.result(py)?;
    let region = Arc::get_mut(&mut region).ok_or_else(|| PyRuntimeError::new_err("its memory is still in use"))?;
    let (content, mut at) = (region.as_slice(), 0);
    let cut = |(_, length): &(u64, u64)| {
        let length = usize::try_from(*length).unwrap_or(usize::MAX);
        let part = &content[at..at + length];
        at += length;
        PyBytes::new(py, part)
    };
    Ok((ranges.iter().map(cut).collect(), Receipt(receipt)))
}

/// A read that was begun.
enum Begun {
    Ended(Box<straightway_core::Receipt>),
    Job(straightway_io::Ticket),
}

/// Reads into new memory: at once, if all bytes are in the page cache, or by a job.
fn begin(target: &Target, choice: Choice, moves: Vec<Move>, bytes: u64) -> Result<(Arc<Region>, Begun)> {
    let region = Arc::new(Region::at(Place::Host, bytes)?);
    let executor = &target.executor;
    if executor.suits_resident(&*target.handle, choice, moves.iter().map(|m| m.extent)) {
        let small = |m: &Move| SmallRead {
            extent: m.extent,
            to: Arc::clone(&region),
            at: m.at,
        };
        let reads: Vec<_> = moves.iter().map(small).collect();
        if let Some(outcome) = executor.read_resident(&target.handle, choice, &reads) {
            return Ok((region, Begun::Ended(Box::new(outcome?))));
        }
    }
    let objects = Objects::new(Arc::clone(&target.store), vec![Arc::clone(&target.handle)]);
    let ticket = executor.read(objects, moves, &region, Ask::from(choice))?;
    Ok((region, Begun::Job(ticket)))
}
