//! `straightway plan list`: the scenarios that come with the program.

use std::process::ExitCode;

use anyhow::Context;
use straightway_model::{
    check,
    scenario::{Scenario, library::LIBRARY},
};
use straightway_report::{Cell, Column, Page, Table, Unit};

use crate::command::output::Output;

/// List the scenarios that come with the program
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Write out the scenario of this name, to start one's own from
    #[arg(value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    output: Output,
}

/// Lists them, or writes one out.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.name {
        let entry = LIBRARY.iter().find(|entry| entry.name == name);
        let entry =
            entry.with_context(|| format!("no scenario `{name}`; `plan list` lists them"))?;
        crate::command::output::print(entry.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        Column::text("scenario"),
        Column::text("topic"),
        Column::text("about"),
        Column::new("claims", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for entry in LIBRARY {
        let scenario: Scenario = check::read(entry.text).context(entry.name)?;
        table.push([
            Cell::from(entry.name),
            scenario.topic().name().into(),
            scenario.title.as_str().into(),
            scenario.claims.len().into(),
        ]);
    }
    let json = table.to_json();
    let page = Page::new("Scenarios").section("", [table.into()]);
    args.output.write(&page, &json)?;
    Ok(ExitCode::SUCCESS)
}
