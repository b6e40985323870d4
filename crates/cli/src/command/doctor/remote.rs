//! `straightway doctor URI` for stores that have no doctor of their own: whether an object can be read, how fast, and
//! what the connections see.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Choice, Error, Extent, Kind, Move, Rate, Receipt, Result, Uri};
use straightway_io::{
    Executor, Handle, Objects, Region, Settings, Store,
    store::{Location, Missing, Page, Registry, open_one},
};
use straightway_net::suited;
use straightway_s3::doctor::{Check, State, connections};

/// Reads of one byte whose median is the latency.
const LATENCY_READS: usize = 7;

/// The most that is read.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// An object of this length tells something about speed.
const SAMPLE_BYTES_MIN: u64 = 2 << 20;

/// Where the object is looked for that is read.
const FIRST_PAGE: Page = Page {
    after: None,
    names_max: 1000,
};

/// Reads the object that is named, or the largest in the folder that is.
pub(super) fn examine(stores: &Registry, uri: &Uri) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Err((name, error)) = look(stores, uri, &mut checks) {
        checks.push(Check {
            name,
            state: State::Wrong,
            seen: error.to_string(),
            mend: error.hint().map(str::to_owned),
        });
    }
    checks
}

/// A check that failed, by its name.
type Failed = (&'static str, Error);

fn look(stores: &Registry, uri: &Uri, checks: &mut Vec<Check>) -> Result<(), Failed> {
    let (store, object) = find(stores, uri).map_err(|error| ("access", error))?;
    let found = object.object();
    checks.push(fine("access", format!("{} can be opened", found.name)));
    if found.bytes == 0 {
        checks.push(too_small());
        return Ok(());
    }
    checks.push(latency(&object).map_err(|error| ("latency", error))?);
    let bytes = found.bytes.min(SAMPLE_BYTES_MAX);
    if bytes < SAMPLE_BYTES_MIN {
        checks.push(too_small());
        return Ok(());
    }
    let receipt = read(&store, &object, bytes).map_err(|error| ("throughput", error))?;
    let (rate, bound) = (Rate(receipt.rate_bytes_per_s), receipt.bound_by);
    checks.push(fine("throughput", format!("{rate}, bound by {bound}")));
    checks.extend(receipt.sockets.as_ref().map(connections));
    Ok(())
}

fn fine(name: &'static str, seen: String) -> Check {
    Check {
        name,
        state: State::Fine,
        seen,
        mend: None,
    }
}

fn too_small() -> Check {
    Check {
        name: "throughput",
        state: State::Note,
        seen: "the object is too small to measure with".to_owned(),
        mend: Some("name an object of 64 MiB or more".to_owned()),
    }
}

/// The object that is named, or the largest on the first page of the folder that is.
fn find(stores: &Registry, uri: &Uri) -> Result<(Arc<dyn Store>, Arc<dyn Handle>)> {
    let at = Location::from(stores.find(uri)?);
    let refused = match open_one(&*at.store, at.name.as_os_str()) {
        Ok(object) => return Ok((at.store, object)),
        Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::Invalid) => return Err(error),
        Err(error) => error,
    };
    let Ok(page) = at.below(Missing::Refuse).and_then(|inside| {
        let page = inside.list(&FIRST_PAGE)?;
        Ok((inside, page))
    }) else {
        return Err(refused);
    };
    let (inside, page) = page;
    let largest = page.objects.into_iter().max_by_key(|object| object.bytes);
    let Some(named) = largest else {
        return Err(refused);
    };
    let object = open_one(&*inside, &named.name)?;
    Ok((inside, object))
}

/// How long a read of one byte takes.
fn latency(object: &Arc<dyn Handle>) -> Result<Check> {
    let mut times = Vec::new();
    // The first one makes the connection.
    for number in 0..=LATENCY_READS {
        let start = Instant::now();
        object.read_exact_at(0, &mut [0])?;
        if number > 0 {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, worst) = (ms(times[times.len() / 2]), ms(times[times.len() - 1]));
    let seen = format!("first byte after {median:.1} ms, at worst {worst:.1} ms");
    Ok(fine("latency", seen))
}

fn read(store: &Arc<dyn Store>, object: &Arc<dyn Handle>, bytes: u64) -> Result<Receipt> {
    let tuning = store.tuning();
    let executor = Executor::new(Settings {
        chunk_bytes: (bytes / 16).clamp(1 << 20, tuning.chunk_bytes) & !0xfff,
        ..suited(Settings::default())
    })?;
    let region = Arc::new(Region::host(bytes)?);
    region.populate();
    let moves = vec![Move {
        object: 0,
        extent: Extent::new(0, bytes),
        at: 0,
    }];
    let objects = Objects::new(Arc::clone(store), vec![Arc::clone(object)]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()
}
