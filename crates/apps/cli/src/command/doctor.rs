//! `straightway doctor`: diagnoses whether bytes can go directly into GPU memory, and if not, why not.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use straightway_core::{Error, Scheme, Uri};
use straightway_io::store::{Location, with_meant};
use straightway_probe::doctor::{
    self, Bundle, BundleRequest, CheckRow, Diagnosis, DoctorRequest, DoctorVerdict, Measurements, State, Style,
    checks_text,
};
use straightway_stores::doctor::{CheckState, StoreCheck, examine as examine_uri};
use straightway_sys::root::Root;

use super::{
    bar::spin,
    bundle::{BundleArgs, BundleFile},
    output::{print, print_coloured, print_json, say, terminal},
    stores::StoreArgs,
};
use crate::hint::hint;

/// The line width: wide enough for most commands, narrow enough to read.
const WIDTH: usize = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or folder whose bytes are to reach the GPU [default: the current folder], or a URI:
    /// `s3://BUCKET[/KEY]`, `nvme-tcp://HOST[:PORT]/NQN/NAME`, `https://…`.
    path: Option<PathBuf>,

    /// Examine a captured machine: a folder with its /sys, /proc, /run, /etc and /dev.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Also test writes to a bucket: put a few bytes concurrently, begin an upload, and remove all of it.
    #[arg(long)]
    write: bool,

    /// Write the diagnosis as JSON.
    #[arg(long)]
    json: bool,

    /// Write the guide to all checks as Markdown, and examine nothing.
    #[arg(long, exclusive = true)]
    checks: bool,

    #[command(flatten)]
    bundle: BundleArgs,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: &Args, verbose: bool) -> anyhow::Result<ExitCode> {
    if args.checks {
        print(&doctor::guide())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.path {
        let uri = Uri::parse(path)?;
        let is_bucket = uri.scheme() == Scheme::S3;
        anyhow::ensure!(!args.write || is_bucket, "--write is for buckets (s3://BUCKET/PREFIX)");
        if uri.scheme() != Scheme::Path {
            anyhow::ensure!(
                args.bundle.bundle.is_none(),
                "--bundle is for a path of this machine, not for {uri}"
            );
            return run_checks(args, &uri);
        }
    }
    anyhow::ensure!(!args.write, "--write is for buckets (s3://BUCKET/PREFIX)");
    let bundle = args.bundle.begin()?;
    let examination = examine(args)?;
    let diagnosis = &examination.diagnosis;
    if args.json {
        print_json(diagnosis)?;
    } else {
        print_coloured(&diagnosis.text(&style(verbose)))?;
    }
    if let Some(file) = bundle {
        let bundle = examination.bundle(&file, args.bundle.keep_names);
        say(file.finish(&bundle)?.trim_end());
    }
    Ok(ExitCode::from(u8::from(diagnosis.verdict != DoctorVerdict::Direct)))
}

/// Runs the checks of a bucket or of an object on a network, and prints them.
fn run_checks(args: &Args, uri: &Uri) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.root.is_none(),
        "cannot examine {uri}: --root is a captured machine without a network"
    );
    let options = args.store.options()?;
    let checks = spin(|| examine_uri(&options, uri, args.write, hint))?;
    if args.json {
        let value = |check: &StoreCheck| {
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
        print_coloured(&checks_text(&summary(uri, &checks), &rows(&checks), &style(true)))?;
    }
    let is_wrong = checks.iter().any(|check| check.state == CheckState::Wrong);
    Ok(ExitCode::from(u8::from(is_wrong)))
}

/// The style of the report: as wide as the terminal, up to a width that is easy to read.
fn style(verbose: bool) -> Style {
    let terminal = terminal();
    Style {
        verbose,
        colour: terminal.colour,
        width: WIDTH.min(terminal.columns),
    }
}

/// The result of the checks of a URI in one line.
fn summary(uri: &Uri, checks: &[StoreCheck]) -> String {
    let notes = checks.iter().filter(|check| check.state == CheckState::Note).count();
    let wrong: Vec<&str> = checks
        .iter()
        .filter(|c| c.state == CheckState::Wrong)
        .map(|c| c.name)
        .collect();
    match (wrong.as_slice(), notes) {
        ([], 0) => format!("ready: {uri} passed all checks"),
        ([], _) => format!("ready: {uri} can be used; see the warnings"),
        (wrong, _) => format!("not ready: {uri} failed: {}", wrong.join(", ")),
    }
}

/// The checks of a URI as rows of the report.
fn rows(checks: &[StoreCheck]) -> Vec<CheckRow<'_>> {
    fn row(check: &StoreCheck) -> CheckRow<'_> {
        CheckRow {
            state: match check.state {
                CheckState::Wrong => State::Fail,
                CheckState::Note => State::Warn,
                CheckState::Fine => State::Pass,
            },
            title: check.name,
            seen: &check.seen,
            fix: check.mend.as_deref(),
        }
    }
    checks.iter().map(row).collect()
}

/// What was examined, and the result.
struct Examination {
    root: Root,
    environment: BTreeMap<String, String>,
    /// cuFile's counters before the live transfer.
    counters_before: Option<String>,
    diagnosis: Diagnosis,
}

impl Examination {
    fn bundle(&self, file: &BundleFile, keep_names: bool) -> Bundle {
        Bundle::of(&BundleRequest {
            root: &self.root,
            environment: &self.environment,
            diagnosis: &self.diagnosis,
            counters_before: self.counters_before.as_deref(),
            receipts: &file.receipts,
            version: env!("CARGO_PKG_VERSION"),
            keep_names,
        })
    }
}

fn examine(args: &Args) -> anyhow::Result<Examination> {
    let (root, measured, counters_before);
    let path = match (&args.path, &args.root) {
        (Some(path), _) => path.as_path(),
        (None, Some(_)) => Path::new("/"),
        (None, None) => Path::new("."),
    };
    // The environment belongs to this machine, so a capture is examined without one.
    let environment: BTreeMap<String, String>;
    if let Some(base) = &args.root {
        let is_folder = base.is_dir();
        anyhow::ensure!(is_folder, "{} is not a folder to examine", base.display());
        (root, measured, counters_before) = (Root::at(base), Measurements::default(), None);
        environment = BTreeMap::new();
    } else {
        let missing = |e| with_meant(Error::os("examine", path.display(), e), &Location::from(path));
        std::fs::metadata(path).map_err(missing)?;
        root = Root::machine();
        counters_before = doctor::counters(&root);
        measured = spin(|| Measurements::here(path));
        environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
    }
    let diagnosis = doctor::diagnose(&DoctorRequest {
        root: &root,
        path,
        environment: &environment,
        measured: &measured,
    });
    Ok(Examination {
        root,
        environment,
        counters_before,
        diagnosis,
    })
}
