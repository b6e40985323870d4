//! `straightway kv`: shows, checks, measures and removes KV caches on disk.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use straightway_core::{Bytes, Result, text::shown};
use straightway_kv::{KeyFile, Stats, Tier, TierOptions};
use straightway_stores::{Session, StoreOptions};

mod bench;

use super::{
    output::{print, print_json},
    tuning::Tuning,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the sizes of a KV cache, and how many chunks it has.
    Stat(StatArgs),
    /// Read and check every chunk of a KV cache. Exits with 1 if one is damaged.
    Verify(VerifyArgs),
    /// Measure stores, loads, lookups and a restart, in a new KV cache that is removed at the end.
    Bench(bench::Args),
    /// Remove a KV cache and all of its chunks. Other files in the folder stay.
    Clear(ClearArgs),
}

#[derive(Debug, clap::Args)]
struct StatArgs {
    /// The folder of the KV cache.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct VerifyArgs {
    #[command(flatten)]
    of: StatArgs,

    /// The key file of encrypted chunks. Without it they are not checked.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    #[command(flatten)]
    tuning: Tuning,
}

#[derive(Debug, clap::Args)]
struct ClearArgs {
    /// The folder of the KV cache.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Stat(args) => stat(args),
        Command::Verify(args) => verify(args),
        Command::Bench(args) => bench::run(args),
        Command::Clear(args) => clear(args),
    }
}

/// Opens a KV cache for reading.
fn open(folder: &Path, tuning: Option<&Tuning>, key_file: Option<&Path>) -> Result<Tier> {
    // A folder without a superblock is refused before anything else is done.
    Tier::geometry_of(folder)?;
    let session = Session::new();
    let at = session.stores(&StoreOptions::default()).locate(folder)?;
    let executor = match tuning {
        Some(tuning) => tuning.executor(&session, &[&at])?,
        None => session.executor([&at])?,
    };
    let options = TierOptions {
        stores: false,
        key: key_file.map(KeyFile::read).transpose()?,
        ..TierOptions::default()
    };
    Tier::open(folder, &executor, options)
}

fn stat(args: &StatArgs) -> anyhow::Result<ExitCode> {
    let stats = open(&args.folder, None, None)?.stats();
    if args.json {
        print_json(&stats)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Stats {
        chunk_bytes,
        bytes_max,
        bytes,
        slots,
        segments,
        segments_used,
        chunks,
        encrypted,
        namespaces,
        unfinished,
        damaged_records,
    } = stats;
    let mut text = format!(
        "{}\n  chunks      {chunks} of at most {slots}, {} each ({encrypted} encrypted)\n  namespaces  {namespaces}\n  \
         segments    {segments_used} of {segments} in use\n  bound       {}, of which files take at most {}\n",
        shown(&args.folder.display().to_string()),
        Bytes(chunk_bytes),
        Bytes(bytes_max),
        Bytes(bytes),
    );
    for (count, what) in [
        (unfinished, "slots are being written, or their process died"),
        (damaged_records, "records are damaged"),
    ] {
        if count > 0 {
            writeln!(text, "  {count} {what}")?;
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let tier = open(&args.of.folder, Some(&args.tuning), args.key_file.as_deref())?;
    let verified = tier.verify()?;
    if args.of.json {
        print_json(&verified)?;
    } else {
        let mut text = format!("{} of {} chunks are whole\n", verified.good, verified.chunks);
        for (count, what) in [
            (verified.damaged, "damaged"),
            (verified.evicted, "evicted meanwhile"),
            (verified.wrong_key, "encrypted with another key, and not checked"),
        ] {
            if count > 0 {
                writeln!(text, "  {count} {what}")?;
            }
        }
        for error in &verified.errors {
            writeln!(text, "  {}", shown(error))?;
        }
        print(&text)?;
    }
    Ok(ExitCode::from(u8::from(verified.damaged > 0)))
}

fn clear(args: &ClearArgs) -> anyhow::Result<ExitCode> {
    Tier::clear(&args.folder)?;
    let folder = args.folder.display().to_string();
    print(&format!("removed the KV cache in {}\n", shown(&folder)))?;
    Ok(ExitCode::SUCCESS)
}
