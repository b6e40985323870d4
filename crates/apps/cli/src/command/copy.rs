//! `straightway copy`: copies files and folders by the most direct route, with a receipt.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use straightway_copy::{Copier, CopyJob, verify::verify};
use straightway_core::{
    Choice, Error, ErrorKind, Extent, Move, PciAddress, Place, Receipt, Route, survey::whole_pages,
};
use straightway_io::{
    Ask, Executor, Handle, Objects, Progress, Region, ReportFile,
    settings::Demand,
    store::{Location, Named, is_same_file},
    wrapper::traced::Trace,
};
use straightway_stores::{Session, TransferSpec};

use super::{
    output::print_receipt,
    stores::{CacheArgs, StoreArgs},
    tuning::Tuning,
    watch::Watch,
    words::one_of,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to copy: files and folders, or objects by URI.
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<PathBuf>,

    /// The target: a file, a folder, a URI, or memory: `host:`, `cuda:0`, `p2p:0000:04:00.0`.
    #[arg(value_name = "DST")]
    target: PathBuf,

    /// The route of the bytes.
    #[arg(long, value_parser = one_of(&Choice::WORDS), default_value = "auto")]
    route: Choice,

    /// Copy through memory in a BAR of a PCI device, such as `p2p:0000:04:00.0`: drives move the bytes by peer-to-peer
    /// DMA, and no byte goes through host memory. Fails if that is not possible.
    #[arg(long, value_name = "MEMORY", value_parser = through)]
    through: Option<PciAddress>,

    /// Overwrite the block device that is the target. Blocks after the end of the file keep their contents; the rest of
    /// the last block becomes zero. After an error the device is partly overwritten.
    #[arg(long, conflicts_with = "verify")]
    to_device: bool,

    /// Read every copy back from the drive and compare it.
    #[arg(long)]
    verify: bool,

    /// Write the receipt as JSON.
    #[arg(long)]
    json: bool,

    /// Write every I/O to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    #[command(flatten)]
    tuning: Tuning,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    cache: CacheArgs,
}

impl Args {
    /// The memory that the target names, if it names any. A file of that name is `./cuda:0`.
    fn memory(&self) -> Option<Place> {
        self.target.to_str()?.parse().ok()
    }

    /// Checks that the options fit together.
    fn check(&self, work: &Work) -> Result<(), Error> {
        let is_copy = matches!(work, Work::Copy(_));
        let is_direct = matches!(self.route, Choice::Auto | Choice::Only(Route::Direct));
        if self.through.is_some() && !(is_copy && is_direct) {
            let message = "it applies only to copies from file to file by the direct route";
            return Err(Error::new(ErrorKind::Invalid, "use", "--through", message));
        }
        if self.to_device && !is_copy {
            let message = "it is not a block device";
            return Err(Error::new(
                ErrorKind::Invalid,
                "overwrite",
                self.target.display(),
                message,
            ));
        }
        Ok(())
    }

    /// Checks that the trace does not overwrite a file that is copied.
    fn check_trace(&self, work: &Work) -> Result<(), Error> {
        let Some(trace) = &self.trace else {
            return Ok(());
        };
        if let Work::Copy(job) = work {
            return job.check_apart(trace);
        }
        if !self.sources.iter().any(|source| is_same_file(trace, source)) {
            return Ok(());
        }
        let message = "it is being read";
        let target = trace.display();
        Err(Error::new(ErrorKind::Invalid, "write to", target, message))
    }
}

/// Parses the device of memory in a BAR.
fn through(text: &str) -> Result<PciAddress, Error> {
    match text.parse()? {
        Place::P2p(address) => Ok(address),
        Place::Host | Place::Gpu(_) => {
            let message = "copies go through memory in a BAR, such as p2p:0000:04:00.0";
            Err(Error::new(ErrorKind::Invalid, "copy through", text, message))
        }
    }
}

/// The beginning of every trace.
const TRACE_MARK: &str = "{\"path\":";

/// The work of a copy.
enum Work {
    /// Reads the sources into memory.
    Read(Place),
    /// Copies the sources to other files.
    Copy(CopyJob),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let session = Session::new();
    let stores = args.store.stores_through(&args.cache, &session)?;
    let sources = args.sources.iter().map(|source| stores.locate(source));
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let work = match args.memory() {
        Some(place) => Work::Read(place),
        None if args.to_device => Work::Copy(CopyJob::onto_device(&sources, &stores.locate(&args.target)?)?),
        None => Work::Copy(CopyJob::new(&sources, &stores.locate(&args.target)?)?),
    };
    args.check(&work)?;
    args.check_trace(&work)?;
    let trace = args.trace.as_ref().map(|_| Trace::default());
    // Opened first, so that a trace that cannot be written fails before the work and not after it.
    let trace_file = match &args.trace {
        Some(path) => Some(ReportFile::begin(path, TRACE_MARK)?),
        None => None,
    };
    let (target, sizes) = match &work {
        Work::Read(_) => (None, Vec::new()),
        Work::Copy(job) => {
            let sizes = job.pairs.iter().map(|pair| pair.bytes);
            (Some(&job.base), sizes.collect())
        }
    };
    let executor = session.executor_for(TransferSpec {
        ends: sources.iter().chain(target).collect(),
        sizes,
        demand: Demand {
            through: args.through,
            ..args.tuning.demand()
        },
        trace: trace.clone(),
        ..TransferSpec::default()
    })?;
    let outcome = match &work {
        Work::Read(place) => read(args, &sources, *place, &executor, &progress),
        Work::Copy(job) => copy(args, job, &executor, &progress),
    };
    // Written after an error too: then it is needed most.
    if let (Some(file), Some(trace)) = (trace_file, &trace) {
        file.finish(&trace_text(trace))?;
    }
    let receipt = outcome?;
    print_receipt(&receipt, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn copy(args: &Args, job: &CopyJob, executor: &Executor, progress: &Arc<Progress>) -> anyhow::Result<Receipt> {
    let passes = if args.verify { 3 } else { 1 };
    let _watch = Watch::begin(progress, job.bytes() * passes, Some(&job.base));
    let copier = Copier {
        executor,
        choice: args.route,
        progress: Arc::clone(progress),
    };
    let mut receipt = copier.run(job)?;
    if args.verify {
        receipt.warnings.extend(verify(executor, job, progress)?);
    }
    Ok(receipt)
}

/// Reads the sources into memory.
fn read(
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
    let _watch = Watch::begin(progress, moves.iter().map(|m| m.extent.bytes).sum(), None);
    let objects = Objects::new(store, handles);
    let ask = Ask::new(args.route, progress);
    Ok(executor.read(objects, moves, &region, ask)?.wait()?)
}

/// A trace as JSON, one object per line.
fn trace_text(trace: &Trace) -> String {
    let mut text = String::new();
    for e in trace.take() {
        let line = serde_json::json!({
            "path": e.path,
            "op": format!("{:?}", e.op).to_lowercase(),
            "by": format!("{:?}", e.by),
            "offset": e.offset,
            "bytes": e.bytes,
            "submitted_s": e.submitted.as_secs_f64(),
            "took_us": e.took.as_secs_f64() * 1e6,
            "moved": e.moved.as_ref().ok(),
            "error": e.moved.as_ref().err(),
        });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text
}
