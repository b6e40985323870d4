//! The benchmarks, each compared with its limit.

use std::sync::Arc;

use straightway_core::{Choice, Extent, Leg, Move, Receipt, Result, random::Seed};
use straightway_io::{Executor, File, GdsUse, Settings};
use straightway_sys::cuda::CopyDirection;

use crate::{Bench, disk, limits, pattern, row::Row, start};

/// The number and length of the extents of the scattered load.
const EXTENTS: u64 = 100_000;
const EXTENT_BYTES: u64 = 64 << 10;

/// Runs all requested benchmarks, limits first.
pub(crate) fn all(bench: &mut Bench) -> Result<Vec<Row>> {
    let to_device = limits::pinned_copy(bench, CopyDirection::ToDevice)?;
    let mut rows = vec![to_device.clone(), limits::pinned_copy(bench, CopyDirection::ToHost)?];
    if bench.args.wants("start") {
        rows.extend(start::measure(bench)?);
    }
    let path = bench.args.disk.join("straightway-bench-8g");
    let file = disk::file(&bench.executor, &bench.host, &path)?;
    if bench.args.wants("page cache") {
        disk::warm(&bench.executor, &file, &bench.host)?;
        let sequential = warm(bench, &file, "page cache → GPU")?.against(&to_device, 0.93);
        rows.push(sequential.clone());
        rows.extend(scattered(bench, &file, &sequential)?);
    }
    if bench.args.wants("tmpfs → GPU") {
        let path = bench.args.tmpfs.join("straightway-bench-8g");
        let file = disk::file(&bench.executor, &bench.host, &path)?;
        rows.push(warm(bench, &file, "tmpfs → GPU")?.against(&to_device, 0.93));
        let _ = std::fs::remove_file(path);
    }
    if bench.args.wants("GPU → tmpfs") {
        rows.extend(to_tmpfs(bench)?);
    }
    if bench.args.wants("cold") {
        rows.extend(cold(bench, &file)?);
    }
    if bench.args.wants("GPU → disk") {
        rows.extend(to_disk(bench)?);
    }
    if bench.args.wants("cuFile") {
        match through_cufile(bench, &file) {
            Ok(row) => rows.push(row),
            // Its absence is a result too.
            Err(error) => eprintln!("cuFile: {error} ({})", error.hint().unwrap_or("no hint")),
        }
    }
    Ok(rows)
}

/// Loads the whole file in each round, and checks the bytes.
fn warm(bench: &mut Bench, file: &Arc<File>, work: &str) -> Result<Row> {
    let mut seconds = Vec::new();
    let mut last = None;
    for _ in 0..bench.args.rounds {
        let (s, receipt) = load(bench, file, disk::whole(file))?;
        seconds.push(s);
        last = Some(receipt);
    }
    pattern::check_whole(&mut bench.region, work)?;
    let row = Row::rate(work, file.bytes(), &seconds);
    Ok(with_receipt(row, last))
}

/// Loads moves of the file into the GPU once.
fn load(bench: &Bench, file: &Arc<File>, moves: Vec<Move>) -> Result<(f64, Receipt)> {
    disk::read(&bench.executor, file, moves, &bench.region, Choice::Auto)
}

fn with_receipt(row: Row, receipt: Option<Receipt>) -> Row {
    match receipt {
        None => row,
        Some(receipt) => {
            eprintln!("{receipt}");
            row.with(receipt)
        }
    }
}

/// Many small random extents of the file, adjacent in the region, and then scattered there too.
fn scattered(bench: &mut Bench, file: &Arc<File>, sequential: &Row) -> Result<Vec<Row>> {
    let count = EXTENTS.min(bench.region.bytes() / EXTENT_BYTES);
    let mut rng = Seed::default().rng();
    let mut places: Vec<u64> = (0..count).collect();
    let gathered = places.clone();
    rng.shuffle(&mut places);
    let offsets: Vec<u64> = (0..count).map(|_| rng.below(file.bytes() - EXTENT_BYTES)).collect();
    let mut rows = Vec::new();
    for (work, places) in [
        ("random 64 KiB extents, page cache → GPU", gathered),
        ("the same, scattered in the region too", places),
    ] {
        let moves = places.iter().zip(&offsets).map(|(place, offset)| Move {
            object: 0,
            extent: Extent::new(*offset, EXTENT_BYTES),
            at: place * EXTENT_BYTES,
        });
        let moves: Vec<_> = moves.collect();
        let mut seconds = Vec::new();
        let mut last = None;
        for _ in 0..bench.args.rounds {
            let (s, receipt) = load(bench, file, moves.clone())?;
            seconds.push(s);
            last = Some(receipt);
        }
        pattern::check_moves(&mut bench.region, &moves, work)?;
        let row = Row::rate(work, count * EXTENT_BYTES, &seconds).against(sequential, 0.7);
        rows.push(with_receipt(row, last));
    }
    Ok(rows)
}

/// Reads from the disk into host memory and into the GPU, alternating.
fn cold(bench: &mut Bench, file: &Arc<File>) -> Result<Vec<Row>> {
    disk::drop_caches()?;
    let best = Executor::new(limits::best_raw(bench, Some(file))?)?;
    let (mut raw, mut seconds, mut cpu, mut last) = (Vec::new(), Vec::new(), Vec::new(), None);
    for _ in 0..bench.args.rounds {
        disk::drop_caches()?;
        raw.push(limits::raw(bench, &best, Some(file))?);
        disk::drop_caches()?;
        let (s, receipt) = load(bench, file, disk::whole(file))?;
        seconds.push(s);
        cpu.push(receipt.cpu_s_per_gb);
        last = Some(receipt);
    }
    let work = "cold disk → GPU";
    pattern::check_whole(&mut bench.region, work)?;
    let raw = Row::rate("raw O_DIRECT read", file.bytes(), &raw);
    let row = Row::rate(work, file.bytes(), &seconds).against(&raw, 0.97);
    Ok(vec![
        raw,
        with_receipt(row, last),
        Row::new("cold disk → GPU, CPU seconds per GB", cpu, "s/GB").at_most(0.15),
    ])
}

/// Writes from host memory and from the GPU to the disk, synced, alternating.
fn to_disk(bench: &mut Bench) -> Result<Vec<Row>> {
    fill_region(bench)?;
    let best = Executor::new(limits::best_raw(bench, None)?)?;
    let path = bench.args.disk.join("straightway-bench-gpu");
    let (mut raw, mut seconds, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..bench.args.rounds {
        raw.push(limits::raw(bench, &best, None)?);
        let (s, receipt) = disk::write(&bench.executor, &bench.region, &path, Choice::Auto)?;
        seconds.push(s);
        last = Some(receipt);
    }
    check_file(bench, &path)?;
    let bytes = bench.region.bytes();
    let raw = Row::rate("raw O_DIRECT write, synced", bytes, &raw);
    let row = Row::rate("GPU → disk, synced", bytes, &seconds).against(&raw, 0.97);
    Ok(vec![raw, with_receipt(row, last)])
}

fn to_tmpfs(bench: &mut Bench) -> Result<Vec<Row>> {
    fill_region(bench)?;
    let limit = limits::tmpfs_write(bench)?;
    let path = bench.args.tmpfs.join("straightway-bench-gpu");
    let (mut seconds, mut last) = (Vec::new(), None);
    for _ in 0..bench.args.rounds {
        let (s, receipt) = disk::write(&bench.executor, &bench.region, &path, Choice::Auto)?;
        seconds.push(s);
        last = Some(receipt);
    }
    check_file(bench, &path)?;
    let row = Row::rate("GPU → tmpfs", bench.region.bytes(), &seconds).against(&limit, 0.9);
    Ok(vec![limit, with_receipt(row, last)])
}

/// Fills the GPU's region with the pattern, through tmpfs.
fn fill_region(bench: &mut Bench) -> Result<()> {
    let path = bench.args.tmpfs.join("straightway-bench-fill");
    let file = disk::file(&bench.executor, &bench.host, &path)?;
    load(bench, &file, disk::whole(&file))?;
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Reads a file that was written from the GPU back into host memory, checks it and removes it.
fn check_file(bench: &mut Bench, path: &std::path::Path) -> Result<()> {
    let file = Arc::new(File::open(path)?);
    let moves = disk::whole(&file);
    disk::read(&bench.executor, &file, moves, &bench.host, Choice::Auto)?;
    pattern::check_whole(&mut bench.host, &path.display().to_string())?;
    let _ = std::fs::remove_file(path);
    Ok(())
}

/// Loads everything by cuFile, direct or not.
fn through_cufile(bench: &mut Bench, file: &Arc<File>) -> Result<Row> {
    if bench.args.make_udev {
        let record = disk::make_udev_record(file.path())?;
        eprintln!("wrote {}", record.display());
    }
    let settings = Settings {
        gds: GdsUse::Force.into(),
        ..bench.args.settings()
    };
    let executor = Executor::new(settings)?;
    let (mut seconds, mut last) = (Vec::new(), None);
    for _ in 0..bench.args.rounds {
        disk::drop_caches()?;
        let moves = disk::whole(file);
        let (s, receipt) = disk::read(&executor, file, moves, &bench.region, Choice::Auto)?;
        seconds.push(s);
        last = Some(receipt);
    }
    let work = "cold disk → GPU by cuFile";
    pattern::check_whole(&mut bench.region, work)?;
    let how = last.as_ref().map_or_else(String::new, |receipt: &Receipt| {
        let reads = receipt.routes.iter().filter(|r| r.leg == Leg::Read);
        let most = reads.max_by_key(|r| r.bytes);
        most.map_or_else(String::new, |r| format!(", {}: {}", r.route, r.reason))
    });
    let row = Row::rate(&format!("{work}{how}"), file.bytes(), &seconds);
    Ok(with_receipt(row, last))
}
