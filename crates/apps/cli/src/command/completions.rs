//! `straightway completions` and `straightway man`: generated from the definitions of the commands.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::Shell;
use straightway_core::Error;
use straightway_io::ReportFile;

use super::output::print;

/// The beginning of every man page: roff's definition of quotes.
const MAN_MARK: &str = ".ie \\n(.g .ds Aq ";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder; it is created if it is missing.
    folder: PathBuf,
}

pub(crate) fn run<C: CommandFactory>(args: &Args) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "straightway", &mut text);
    print(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run_man<C: CommandFactory>(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let failed = |e| Error::os("write the man pages to", args.folder.display(), e);
    fs::create_dir_all(&args.folder).map_err(failed)?;
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    write_man(command, &args.folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and its subcommands. A page replaces only an older man page.
fn write_man(command: clap::Command, folder: &Path) -> anyhow::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_man(below.clone(), folder)?;
    }
    let man = clap_mangen::Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let file = ReportFile::begin(&folder.join(man.get_filename()), MAN_MARK)?;
    Ok(file.finish(&String::from_utf8(page)?)?)
}
