//! `straightway bench URI`: measures an object on a network, by request size and requests in flight.

use std::{process::ExitCode, sync::Arc};

use serde_json::json;
use straightway_core::{Bytes, Choice, Extent, Move, Rate, Receipt, Seconds, Uri};
use straightway_io::{Executor, Handle, Objects, Region, Settings, Store, store::open_one};
use straightway_report::{Cell, Column, Page, Table, Unit};
use straightway_stores::Session;

use super::Args;
use crate::command::bar::points_bar;

/// The default request sizes and requests in flight.
const BLOCKS: [Bytes; 3] = [Bytes(1 << 20), Bytes(8 << 20), Bytes(32 << 20)];
const DEPTHS: [u32; 4] = [1, 4, 16, 32];

/// Reads the object at every point, and reports the median of each.
pub(super) fn run(args: &Args, uri: &Uri) -> anyhow::Result<ExitCode> {
    let (store, name) = args.store.stores(&Session::new())?.find(uri)?;
    let object = open_one(&*store, &name)?;
    let bytes = object.object().bytes.min(args.size.0);
    anyhow::ensure!(bytes > 0, "cannot measure {uri}: it is empty");
    let (blocks, depths) = (or_else(&args.block, &BLOCKS), or_else(&args.depth, &DEPTHS));
    let bar = points_bar(blocks.len() * depths.len());
    let columns = [
        Column::new("request", Unit::Bytes),
        Column::new("in flight", Unit::Count),
        Column::new("rate", Unit::Rate),
        Column::new("cpu per GB", Unit::Seconds),
        Column::new("p50", Unit::Seconds),
        Column::new("p99", Unit::Seconds),
        Column::text("bound by"),
    ];
    let mut table = Table::new("", columns);
    let mut points = Vec::new();
    for &block in blocks {
        for &depth in depths {
            let receipt = measure(args, &store, &object, bytes, (block.0, depth))?;
            let p = receipt.latency.storage;
            table.push([
                Cell::from(block),
                depth.into(),
                Rate(receipt.rate_bytes_per_s).into(),
                Seconds(receipt.cpu_s_per_gb).into(),
                Seconds(p.p50_us / 1e6).into(),
                Seconds(p.p99_us / 1e6).into(),
                receipt.bound_by.to_string().into(),
            ]);
            points.push(json!({ "request_bytes": block.0, "in_flight": depth, "receipt": receipt }));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let json = json!({ "uri": uri.to_string(), "bytes": bytes, "points": points });
    let page = Page::new(format!("{uri}, {} of it, to {}", Bytes(bytes), args.device.in_words()));
    args.output.write(&page.section("Reads", [table.into()]), &json)?;
    Ok(ExitCode::SUCCESS)
}

fn or_else<'a, T>(given: &'a [T], usual: &'a [T]) -> &'a [T] {
    if given.is_empty() { usual } else { given }
}

/// The median run of one point.
fn measure(
    args: &Args,
    store: &Arc<dyn Store>,
    object: &Arc<dyn Handle>,
    bytes: u64,
    (chunk_bytes, depth): (u64, u32),
) -> anyhow::Result<Receipt> {
    let usual = store
        .facts()
        .tuning
        .unwrap_or_default()
        .applied_to(Settings::default(), []);
    let lanes = args.lanes.unwrap_or(usual.drive_lanes);
    let settings = Settings {
        chunk_bytes,
        depth,
        drive_lanes: lanes,
        ring_lanes: lanes,
        ..usual
    };
    settings.check()?;
    let executor = Executor::new(settings)?;
    let region = Arc::new(Region::at(args.device, bytes)?);
    region.populate();
    let mut receipts = Vec::new();
    for _ in 0..args.runs.max(1) {
        let objects = Objects::new(Arc::clone(store), vec![Arc::clone(object)]);
        let whole = Move::from(Extent::new(0, bytes));
        receipts.push(executor.read(objects, vec![whole], &region, Choice::Auto)?.wait()?);
    }
    receipts.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(receipts.swap_remove(receipts.len() / 2))
}
