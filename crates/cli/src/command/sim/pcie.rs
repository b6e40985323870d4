//! `straightway sim pcie`: a machine's PCIe tree under many streams.

use std::process::ExitCode;

/// Simulate streams over a tree of PCIe links, TLP by TLP
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file, or the name of one that comes with the program
    #[arg(long, value_name = "FILE|NAME")]
    scenario: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{}", args.scenario)
}
