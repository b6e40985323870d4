//! What every question to the planner and the simulators has in common.

use straightway_scenario::{check::Refusals, setting::Setting};

use super::{output::Output, sweep::Sweeping};

/// A question and how its answer is wanted
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    /// A scenario file, or the name of one that comes with the program (see `plan list`)
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) scenario: Option<String>,

    /// Change a parameter by its path, such as cluster.gpus=2048 or stream[0].depth=8 (repeatable)
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,

    #[command(flatten)]
    pub(crate) sweep: Sweeping,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    pub(crate) output: Output,
}

impl Ask {
    /// What is to be set.
    pub(crate) fn settings(&self) -> Result<Vec<Setting>, Refusals> {
        self.set.iter().map(|text| Setting::parse(text)).collect()
    }

    /// Whether every formula and constant is wanted; a report always has them.
    pub(crate) fn in_full(&self) -> bool {
        self.basis || self.output.is_html()
    }
}
