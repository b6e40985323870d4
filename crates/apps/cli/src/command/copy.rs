//! `straightway copy`: copies files and folders by the most direct route, with a receipt.

mod dry_run;
mod memory;
mod stream;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use straightway_copy::{Copier, CopyJob, CopyOptions, LinkChoice, Sources, verify::verify};
use straightway_core::{Bytes, Choice, Error, ErrorKind, PciAddress, Place, Receipt, Route};
use straightway_io::{
    Progress, ReportFile,
    settings::Demand,
    store::{Location, Registry, is_same_file},
    wrapper::traced::Trace,
};
use straightway_stores::{Session, TransferSpec};
use stream::STREAM;

use super::{
    output::{print_receipt, say},
    stores::{CacheArgs, StoreArgs},
    tuning::Tuning,
    watch::Watch,
    words::one_of,
};

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command")]
pub(crate) struct Args {
    /// What to copy: files and folders, objects by URI, patterns such as `'s3://models/llama/*.json'`, or `-` for
    /// standard input.
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<PathBuf>,

    /// The target: a file, a folder, a URI, `-` for standard output, or memory: `host:`, `cuda:0`, `p2p:0000:04:00.0`.
    #[arg(value_name = "DST")]
    target: PathBuf,

    /// What becomes of symbolic links inside folders. Links that are named themselves are followed.
    #[arg(long, value_parser = one_of(&LinkChoice::WORDS), default_value = "auto")]
    links: LinkChoice,

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

    /// Read every copy back from the drive and compare it. The receipt says how many bytes were compared.
    #[arg(long)]
    verify: bool,

    /// With `-` as the source and a bucket as the target: the most bytes that may come [default: 312 GiB].
    #[arg(long, value_name = "SIZE")]
    expected_size: Option<Bytes>,

    /// List what would be copied, and write nothing.
    #[arg(short = 'n', long, conflicts_with_all = ["verify", "to_device", "trace"])]
    dry_run: bool,

    /// Write no receipt and no progress. Warnings and errors are still written to stderr.
    #[arg(short, long, conflicts_with_all = ["json", "dry_run"])]
    quiet: bool,

    /// Accepted, as in `cp`: folders are always copied with everything in them.
    #[arg(short, long)]
    recursive: bool,

    /// Accepted, as in `cp`: a copy always replaces a file of the same name.
    #[arg(short, long, visible_alias = "overwrite")]
    force: bool,

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
    fn memory(&self) -> Result<Option<Place>, Error> {
        let name = self.target.as_os_str();
        let place = Place::of_target(name)?;
        let is_word = !name.as_encoded_bytes().contains(&b':');
        if let Some(place) = place.filter(|_| is_word && self.target.symlink_metadata().is_ok()) {
            let name = self.target.display();
            let message = format!("a file or folder has that name, and it is also a name of memory, {place}");
            return Err(Error::new(ErrorKind::Invalid, "copy to", &name, message)
                .with_hint(format!("write ./{name} or {place}")));
        }
        Ok(place)
    }

    /// What to do, and the sources.
    fn work(&self, stores: &Registry) -> Result<(Work, Vec<Location>), Error> {
        if self.sources.iter().any(|source| source.as_os_str() == STREAM) {
            return self.work_of_input(stores);
        }
        let sources = Sources::find(stores, &self.sources)?;
        if self.target.as_os_str() == STREAM {
            self.check_stream()?;
            if sources.found.len() > 1 {
                let message = "it takes one file or object";
                return Err(Error::new(ErrorKind::Invalid, "copy to", "standard output", message));
            }
            return Ok((Work::Send, sources.found));
        }
        let options = CopyOptions {
            links: self.links,
            into_folder: sources.has_pattern,
        };
        let target = || stores.locate(&self.target);
        let work = match self.memory()? {
            Some(place) => Work::Read(place),
            None if self.to_device => Work::Copy(CopyJob::onto_device(&sources.found, &target()?)?),
            None => Work::Copy(CopyJob::with(&sources.found, &target()?, options)?),
        };
        Ok((work, sources.found))
    }

    /// The work of a copy from standard input.
    fn work_of_input(&self, stores: &Registry) -> Result<(Work, Vec<Location>), Error> {
        self.check_stream()?;
        let refuse = |message: &str| Err(Error::new(ErrorKind::Invalid, "copy", "standard input", message));
        if self.sources.len() > 1 {
            return refuse("it has to be the only source");
        }
        if self.target.as_os_str() == STREAM || self.memory()?.is_some() {
            return refuse("the target has to be a file or an object");
        }
        let target = stores.locate(&self.target)?;
        stream::check_target(self, &target)?;
        Ok((Work::Receive(target), Vec::new()))
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

    /// Watches a transfer, with a progress bar unless the user wants none.
    fn watch(&self, progress: &Arc<Progress>, bytes: u64, written: Option<&Location>) -> Watch {
        if self.quiet {
            Watch::hidden(progress, written)
        } else {
            Watch::begin(progress, bytes, written)
        }
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
    /// Copies standard input to a file or object.
    Receive(Location),
    /// Copies the source to standard output.
    Send,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let progress = Arc::new(Progress::default());
    let session = Session::new();
    let stores = if args.dry_run {
        // A cache would be created.
        args.store.stores(&session)?
    } else {
        args.store.stores_through(&args.cache, &session)?
    };
    let (work, sources) = args.work(&stores)?;
    args.check(&work)?;
    args.check_trace(&work)?;
    if args.dry_run {
        dry_run::print_work(&work, &sources, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let trace = args.trace.as_ref().map(|_| Trace::default());
    // Opened first, so that a trace that cannot be written fails before the work and not after it.
    let trace_file = match &args.trace {
        Some(path) => Some(ReportFile::begin(path, TRACE_MARK)?),
        None => None,
    };
    let (target, sizes) = match &work {
        Work::Read(_) | Work::Send => (None, Vec::new()),
        Work::Receive(target) => (Some(target), Vec::new()),
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
    let copier = Copier {
        executor: &executor,
        choice: args.route,
        progress: Arc::clone(&progress),
    };
    let outcome = match &work {
        Work::Send => return stream::send(args, &copier, &sources[0]),
        Work::Receive(target) => stream::receive(args, &copier, target).map_err(Into::into),
        Work::Read(place) => memory::read(args, &sources, *place, &executor, &progress),
        Work::Copy(job) => copy(args, job, &copier),
    };
    // Written after an error too: then it is needed most.
    if let (Some(file), Some(trace)) = (trace_file, &trace) {
        file.finish(&trace_text(trace))?;
    }
    let receipt = outcome?;
    if args.quiet {
        receipt
            .warnings
            .iter()
            .for_each(|warning| say(&format!("warning: {warning}")));
    } else {
        print_receipt(&receipt, args.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn copy(args: &Args, job: &CopyJob, copier: &Copier<'_>) -> anyhow::Result<Receipt> {
    let passes = if args.verify { 3 } else { 1 };
    let _watch = args.watch(&copier.progress, job.bytes() * passes, Some(&job.base));
    let mut receipt = copier.run(job)?;
    if args.verify {
        verify(copier.executor, job, &copier.progress)?.enter(&mut receipt);
    }
    Ok(receipt)
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
