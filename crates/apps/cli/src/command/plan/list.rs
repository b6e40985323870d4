//! `straightway plan list`: lists the scenarios that come with the program.

use std::process::ExitCode;

use anyhow::Context;
use straightway_report::Page;

use crate::command::{
    library::{self, Runner},
    output::{Output, print},
};

/// List the scenarios that come with the program, with the command that runs each
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print the scenario of this name, as a starting point for your own
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// Lists the scenarios, or prints one.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.name {
        let (_, entry) = library::find(Runner::Plan, name).with_context(|| match library::nearest(name) {
            Some(near) => format!("no scenario `{name}`; did you mean {near}?"),
            None => format!("no scenario `{name}`; `straightway plan list` lists them"),
        })?;
        print(entry.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = library::table()?;
    let json = table.to_json();
    let hint =
        "Run one with `straightway COMMAND --scenario NAME`. Names with `article-` are cases of the four articles \
                that `straightway plan claims` judges and names."
            .to_owned();
    let page = Page::new("Scenarios").section("", [table.into(), hint.into()]);
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
}
