//! `straightway completions` and `straightway man`: made from the same definitions as the commands.

use std::{fs, io::Write, path::PathBuf, process::ExitCode};

use clap::CommandFactory;
use clap_complete::Shell;
use straightway_core::Error;

/// Write the completions for a shell to stdout.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell.
    shell: Shell,
}

/// Write the man pages, one for each command, into a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder; it is made where it is missing.
    folder: PathBuf,
}

pub(crate) fn run<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "straightway", &mut text);
    std::io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run_man<C: CommandFactory>(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let failed = |e| Error::os("write the man pages to", args.folder.display(), e);
    fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(C::command(), &args.folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
