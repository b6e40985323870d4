//! `straightway doctor`: whether bytes can go straight into GPU memory, and if not, why not.

mod remote;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use indicatif::ProgressBar;
use straightway_core::{Scheme, Uri};
use straightway_probe::doctor::{self, Diagnosis, Measured, Request, Style, Verdict};
use straightway_s3::doctor::{Check, State};
use straightway_sys::root::Root;

use super::{
    output::{print, print_coloured, print_json, terminal},
    stores::Reach,
};

/// Columns to wrap at: wide enough for most commands, narrow enough to read.
const WIDTH: usize = 100;

/// Say whether bytes can go straight into GPU memory and, if not, what is in the way.
///
/// Looks at the driver and platform, the fabric, and the file system and drives of PATH, then makes
/// a real transfer. What is wrong comes first, with the command that mends it. Exits with 0 where
/// direct is proven, 1 where it is not, 2 on an error. Of a bucket it says whether it can be read, how fast, and what
/// limits that; with --write, whether saves and copies to it are safe. Of other objects by URI it says whether they can be
/// read, how fast, and what the connections see: round trips, retransmits and stalls. With --verbose the checks that
/// passed or do not apply are shown, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or folder whose bytes are to reach the GPU [default: the current folder], or a URI: `s3://BUCKET[/KEY]`,
    /// `nvme-tcp://HOST[:PORT]/NQN/NAME`, `https://…`.
    path: Option<PathBuf>,

    /// Examine a captured machine: a folder with its /sys, /proc, /run, /etc and /dev.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Of a bucket, also try to write: put a few bytes there in a race, begin an upload, and remove all of it.
    #[arg(long)]
    write: bool,

    /// Write the diagnosis as JSON.
    #[arg(long)]
    json: bool,

    /// Write the guide to all checks as Markdown, and examine nothing.
    #[arg(long, exclusive = true)]
    checks: bool,

    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn run(args: &Args, verbose: bool) -> anyhow::Result<ExitCode> {
    if args.checks {
        print(&doctor::guide())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.path {
        let uri = Uri::parse(path)?;
        if uri.scheme() == Scheme::S3 {
            return examine_bucket(args, &uri);
        }
        anyhow::ensure!(!args.write, "--write is for buckets (s3://BUCKET/PREFIX)");
        if uri.scheme() != Scheme::Path {
            return examine_remote(args, &uri);
        }
    }
    anyhow::ensure!(!args.write, "--write is for buckets (s3://BUCKET/PREFIX)");
    let diagnosis = examine(args)?;
    if args.json {
        print_json(&diagnosis)?;
    } else {
        let style = Style {
            verbose,
            colour: terminal().colour,
            width: WIDTH,
        };
        print_coloured(&diagnosis.text(&style))?;
    }
    Ok(ExitCode::from(u8::from(
        diagnosis.verdict != Verdict::Direct,
    )))
}

/// Says whether a bucket can be read, how fast, and what limits it.
fn examine_bucket(args: &Args, uri: &Uri) -> anyhow::Result<ExitCode> {
    let store = args.reach.bucket(uri.authority())?;
    tell(args, uri, || {
        straightway_s3::doctor::examine(&store, uri.name(), args.write)
    })
}

/// Says whether an object on a network can be read, how fast, and what its connections see.
fn examine_remote(args: &Args, uri: &Uri) -> anyhow::Result<ExitCode> {
    let stores = args.reach.stores()?;
    tell(args, uri, || remote::examine(&stores, uri))
}

/// Makes checks of a store on a network and shows them.
fn tell(args: &Args, uri: &Uri, examine: impl FnOnce() -> Vec<Check>) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.root.is_none(),
        "a captured machine has no network to reach {uri} by"
    );
    let spinner = ProgressBar::new_spinner().with_message("reading");
    spinner.enable_steady_tick(Duration::from_millis(100));
    let checks = examine();
    spinner.finish_and_clear();
    if args.json {
        let value = |check: &Check| {
            serde_json::json!({
                "check": check.name,
                "state": check.state.name(),
                "seen": check.seen,
                "mend": check.mend,
            })
        };
        let checks: Vec<_> = checks.iter().map(value).collect();
        print_json(&serde_json::json!({ "uri": uri.to_string(), "checks": checks }))?;
    } else {
        for check in &checks {
            let (state, name, seen) = (check.state.name(), check.name, &check.seen);
            print(&format!("{state:>5}  {name}: {seen}\n"))?;
            if let Some(mend) = &check.mend {
                print(&format!("       {mend}\n"))?;
            }
        }
    }
    let is_wrong = checks.iter().any(|check| check.state == State::Wrong);
    Ok(ExitCode::from(u8::from(is_wrong)))
}

fn examine(args: &Args) -> anyhow::Result<Diagnosis> {
    let (root, measured);
    let path = match (&args.path, &args.root) {
        (Some(path), _) => path.as_path(),
        (None, Some(_)) => Path::new("/"),
        (None, None) => Path::new("."),
    };
    // The environment belongs to this machine, so a capture is examined without one.
    let environment: BTreeMap<String, String>;
    if let Some(base) = &args.root {
        let is_folder = base.is_dir();
        anyhow::ensure!(is_folder, "{} is no folder to examine", base.display());
        (root, measured) = (Root::at(base), Measured::default());
        environment = BTreeMap::new();
    } else {
        std::fs::metadata(path).with_context(|| format!("cannot examine {}", path.display()))?;
        let spinner = ProgressBar::new_spinner().with_message("reading");
        spinner.enable_steady_tick(Duration::from_millis(100));
        (root, measured) = (Root::machine(), Measured::here(path));
        spinner.finish_and_clear();
        environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
    }
    Ok(doctor::diagnose(&Request {
        root: &root,
        path,
        environment: &environment,
        measured: &measured,
    }))
}
