//! The arguments that the cluster planner and the simulators share.

use straightway_scenario::{check::Refusals, setting::ParameterSetting};

use super::{output::Output, sweep::SweepArgs};

/// A scenario, its changes, and the form of the output
#[derive(Debug, clap::Args)]
pub(crate) struct ScenarioArgs {
    /// A scenario file, or the name of one that comes with the program (see `plan list`)
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) scenario: Option<String>,

    /// Change a parameter by its path, such as cluster.gpus=2048 or stream[0].depth=8 (repeatable)
    #[arg(long, value_name = "PATH=VALUE")]
    set: Vec<String>,

    #[command(flatten)]
    pub(crate) sweep: SweepArgs,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    pub(crate) output: Output,
}

impl ScenarioArgs {
    /// The parameters to set.
    pub(crate) fn settings(&self) -> Result<Vec<ParameterSetting>, Refusals> {
        self.set.iter().map(|text| ParameterSetting::parse(text)).collect()
    }

    /// Whether every formula and constant is shown; an HTML report always has them.
    pub(crate) fn in_full(&self) -> bool {
        self.basis || self.output.is_html()
    }
}
