//! Page cache and tmpfs → GPU with many sizes, to find the knee.

use std::sync::Arc;

use straightway_core::{Bytes, Choice, Result};
use straightway_io::{Executor, Region, Settings};
use straightway_sys::cuda::Context;

use crate::{Args, disk, pattern, row::Row};

/// Tries every combination of lanes, chunk and ring depth, on the disk's page cache and on tmpfs.
pub(crate) fn run(args: &Args, context: &Context) -> Result<()> {
    let region = Arc::new(Region::device(context, args.size.0)?);
    let mut host = Region::host(args.size.0)?;
    pattern::fill(host.as_mut_slice(), 0);
    let host = Arc::new(host);
    let plain = Executor::new(args.settings())?;
    let mut rows = Vec::new();
    for (name, folder) in [("page cache", &args.disk), ("tmpfs", &args.tmpfs)] {
        let path = folder.join("straightway-bench-8g");
        let file = disk::file(&plain, &host, &path)?;
        disk::warm(&plain, &file, &host)?;
        for lanes in [6, 8, 12, 16] {
            for chunk_mib in [1, 2, 4, 8] {
                for slots in [2, 4] {
                    let chunk = chunk_mib << 20;
                    // The drive lanes have a quarter of the pinned memory.
                    let pinned = slots * u64::from(lanes) * chunk * 4 / 3;
                    let settings = Settings {
                        gpu_lanes: lanes,
                        gpu_chunk_bytes: chunk,
                        pinned_bytes: pinned.max(16 << 20),
                        ..args.settings()
                    };
                    let executor = Executor::new(settings)?;
                    executor.prepare(&region)?;
                    let round = |_| {
                        let moves = disk::whole(&file);
                        disk::read(&executor, &file, moves, &region, Choice::Auto).map(|(s, _)| s)
                    };
                    let seconds: Vec<f64> = (0..3).map(round).collect::<Result<_>>()?;
                    let chunk = Bytes(chunk);
                    let work = format!("{name}, {lanes} lanes × {chunk} × {slots} deep");
                    rows.push(Row::rate(&work, args.size.0, &seconds));
                }
            }
        }
    }
    rows.sort_by(|a, b| b.median().total_cmp(&a.median()));
    println!("{}", crate::row::table(&rows));
    let _ = std::fs::remove_file(args.tmpfs.join("straightway-bench-8g"));
    Ok(())
}
