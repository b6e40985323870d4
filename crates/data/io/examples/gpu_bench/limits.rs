//! The machine's limits: pinned copies, the raw disk, memory.

use std::sync::Arc;

use straightway_core::{Choice, Result, Route};
use straightway_io::{Executor, File, Settings, limit};
use straightway_sys::cuda::CopyDirection;

use crate::{Bench, disk, row::Row};

/// The faster of pinned copies of 4 MiB and of 64 MiB in one direction.
pub(crate) fn pinned_copy(bench: &Bench, direction: CopyDirection) -> Result<Row> {
    let name = match direction {
        CopyDirection::ToDevice => "pinned host→GPU copy",
        CopyDirection::ToHost => "pinned GPU→host copy",
    };
    let by = |chunk: usize| -> Result<Row> {
        let rates = limit::pinned_copy(&bench.region, direction, chunk, bench.args.rounds)?;
        let rates = rates.into_iter().map(|rate| rate / 1e9).collect();
        Ok(Row::new(&format!("{name} by {} MiB", chunk >> 20), rates, "GB/s"))
    };
    let (small, large) = (by(4 << 20)?, by(64 << 20)?);
    let mut best = if small.median() > large.median() { small } else { large };
    name.clone_into(&mut best.work);
    Ok(best)
}

/// The settings with the fastest raw disk I/O, by one try of each.
pub(crate) fn best_raw(bench: &Bench, file: Option<&Arc<File>>) -> Result<Settings> {
    let word = if file.is_some() { "read" } else { "write" };
    let mut best: Option<(f64, Settings)> = None;
    for (chunk_bytes, depth) in [(1 << 20, 16), (1 << 20, 64), (4 << 20, 16)] {
        let settings = Settings {
            chunk_bytes,
            depth,
            staging_bytes: 256 << 20,
            ..bench.args.settings()
        };
        let seconds = raw(bench, &Executor::new(settings.clone())?, file)?;
        let rate = bench.host.bytes() as f64 / seconds / 1e9;
        let chunk_mib = chunk_bytes >> 20;
        eprintln!("raw {word}, {chunk_mib} MiB × {depth} deep: {rate:.2} GB/s");
        if best.as_ref().is_none_or(|(known, _)| rate > *known) {
            best = Some((rate, settings));
        }
    }
    Ok(best.expect("several were tried").1)
}

/// The seconds of one raw read of `file` into host memory, or of one raw write from host memory with a sync.
pub(crate) fn raw(bench: &Bench, executor: &Executor, file: Option<&Arc<File>>) -> Result<f64> {
    let choice = Choice::Only(Route::Direct);
    if let Some(file) = file {
        let moves = disk::whole(file);
        return disk::read(executor, file, moves, &bench.host, choice).map(|(seconds, _)| seconds);
    }
    let path = bench.args.disk.join("straightway-bench-raw");
    let outcome = disk::write(executor, &bench.host, &path, choice);
    let _ = std::fs::remove_file(path);
    outcome.map(|(seconds, _)| seconds)
}

/// The fastest parallel write of the same bytes from host memory to tmpfs.
pub(crate) fn tmpfs_write(bench: &Bench) -> Result<Row> {
    let path = bench.args.tmpfs.join("straightway-bench-host");
    let mut best: Option<Row> = None;
    for cached_lanes in [4, 8, 12, 16] {
        let settings = Settings {
            cached_lanes,
            ..bench.args.settings()
        };
        let executor = Executor::new(settings)?;
        let round = |_| disk::write(&executor, &bench.host, &path, Choice::Auto).map(|(s, _)| s);
        let seconds: Vec<f64> = (0..bench.args.rounds).map(round).collect::<Result<_>>()?;
        let name = format!("host→tmpfs by {cached_lanes} lanes");
        let row = Row::rate(&name, bench.host.bytes(), &seconds);
        if best.as_ref().is_none_or(|b| row.median() > b.median()) {
            best = Some(row);
        }
    }
    let _ = std::fs::remove_file(path);
    Ok(best.expect("several were tried"))
}
