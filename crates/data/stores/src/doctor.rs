//! The doctor of URIs: whether a bucket or an object can be read, how fast, and the state of the connections. S3 has
//! checks of its own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Choice, Error, ErrorKind, Extent, Rate, Receipt, Result, Scheme, Seconds, Uri};
use straightway_io::{
    Executor, Handle, Objects, Region, Settings, Store,
    store::{ListPage, Location, Missing, Registry, open_one},
};
use straightway_net::Remote;
use straightway_s3::doctor::connections;

pub use straightway_s3::doctor::{CheckState, StoreCheck};

use crate::{
    options::StoreOptions,
    registry::{Configuration, environment, registry},
};

/// The number of one-byte reads whose median is the latency.
const LATENCY_READS: usize = 7;

/// The maximum number of bytes to read.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// The minimum size of an object to measure throughput with.
const SAMPLE_BYTES_MIN: u64 = 2 << 20;

/// The page of names in which an object to read is searched.
const FIRST_PAGE: ListPage = ListPage {
    after: None,
    names_max: 1000,
};

/// Examines the named bucket, or the named object, or the largest one in the named folder. With `writes`, whether a
/// bucket can be written to. `hint` words the hint of an error for the user.
///
/// # Errors
///
/// If there is no such store. All other errors are checks.
pub fn examine(
    options: &StoreOptions,
    uri: &Uri,
    writes: bool,
    hint: impl Fn(&Error) -> Option<String>,
) -> Result<Vec<StoreCheck>> {
    if uri.scheme() == Scheme::S3 {
        let bucket = Configuration::new(options.clone(), environment()).bucket(uri.authority())?;
        return Ok(straightway_s3::doctor::examine(&bucket, uri.name(), writes));
    }
    let mut checks = Vec::new();
    if let Err((name, error)) = run_checks(&registry(options, environment()), uri, &mut checks) {
        checks.push(StoreCheck {
            name,
            state: CheckState::Wrong,
            seen: error.to_string(),
            mend: hint(&error),
        });
    }
    Ok(checks)
}

/// A check that failed, by its name.
type Failed = (&'static str, Error);

fn run_checks(stores: &Registry, uri: &Uri, checks: &mut Vec<StoreCheck>) -> Result<(), Failed> {
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

fn fine(name: &'static str, seen: String) -> StoreCheck {
    StoreCheck {
        name,
        state: CheckState::Fine,
        seen,
        mend: None,
    }
}

fn too_small() -> StoreCheck {
    StoreCheck {
        name: "throughput",
        state: CheckState::Note,
        seen: "the object is too small to measure with".to_owned(),
        mend: Some("name an object of 64 MiB or more".to_owned()),
    }
}

/// The named object, or the largest one on the first page of the named folder.
fn find(stores: &Registry, uri: &Uri) -> Result<(Arc<dyn Store>, Arc<dyn Handle>)> {
    let at = Location::from(stores.find(uri)?);
    let refused = match open_one(&*at.store, at.name.as_os_str()) {
        Ok(object) => return Ok((at.store, object)),
        // A service may deny an object that does not exist.
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid
            ) =>
        {
            return Err(error);
        }
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

/// Measures the latency of a one-byte read.
fn latency(object: &Arc<dyn Handle>) -> Result<StoreCheck> {
    // The first bytes of an object on a web server are in memory since it was opened. This check reads one byte again.
    let is_kept = Remote::of(object).is_some();
    let mut times = Vec::new();
    // The first read opens the connection and is not counted.
    for number in 0..=LATENCY_READS {
        let start = Instant::now();
        if is_kept {
            object.check_unchanged()?;
        } else {
            object.read_exact_at(0, &mut [0])?;
        }
        if number > 0 {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    let shown = |time: Duration| Seconds(time.as_secs_f64());
    let (median, worst) = (shown(times[times.len() / 2]), shown(times[times.len() - 1]));
    let seen = format!("first byte after {median}, at worst {worst}");
    Ok(fine("latency", seen))
}

fn read(store: &Arc<dyn Store>, object: &Arc<dyn Handle>, bytes: u64) -> Result<Receipt> {
    let tuning = store.facts().tuning.unwrap_or_default();
    let executor = Executor::new(Settings {
        chunk_bytes: (bytes / 16).clamp(1 << 20, tuning.chunk_bytes) & !0xfff,
        ..tuning.applied_to(Settings::default(), [])
    })?;
    let region = Arc::new(Region::host(bytes)?);
    region.populate();
    let moves = vec![Extent::new(0, bytes).into()];
    let objects = Objects::new(Arc::clone(store), vec![Arc::clone(object)]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()
}
