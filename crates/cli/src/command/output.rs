//! How a result leaves: as text for people, JSON or CSV for programs, HTML to pass on.

use std::{
    fs,
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

use anyhow::Context;
use serde_json::Value;
use straightway_core::{Error, Kind, Receipt};
use straightway_io::draft;
use straightway_report::{Block, Page, Table, Terminal};

/// The forms a result can take
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Write the result as JSON, in base units
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Write the table as CSV, in base units
    #[arg(long)]
    csv: bool,

    /// Also write a report that needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Output {
    /// Whether a report is written beside the text.
    pub(crate) fn is_html(&self) -> bool {
        self.html.is_some()
    }

    /// An error where the report has no folder to go to: better known before the work than after it.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = &self.html else {
            return Ok(());
        };
        let folder = draft::folder_of(path);
        let meta = fs::metadata(folder).map_err(|e| Error::os("write", path.display(), e))?;
        if !meta.is_dir() {
            let message = format!("{} is no folder", folder.display());
            return Err(Error::new(Kind::Invalid, "write", path.display(), message).into());
        }
        Ok(())
    }

    /// Writes a result to stdout in the form asked for, and to the HTML file if there is one. Its first table is the one
    /// that programs want.
    pub(crate) fn write(&self, page: &Page, json: &Value) -> anyhow::Result<()> {
        self.write_with(page, first_table(page), json)
    }

    /// The same, where programs want `table`.
    pub(crate) fn write_with(
        &self,
        page: &Page,
        table: Option<&Table>,
        json: &Value,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            fs::write(path, page.to_html())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = if self.json {
            format!("{json:#}\n")
        } else if self.csv {
            table.map(Table::to_csv).unwrap_or_default()
        } else {
            page.to_text(terminal())
        };
        print(&text)
    }
}

/// Writes text to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    written(io::stdout().lock().write_all(text.as_bytes()))
}

/// Writes a receipt to stdout, for people or as JSON.
pub(crate) fn print_receipt(receipt: &Receipt, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return print(&format!("{}\n", serde_json::to_string_pretty(receipt)?));
    }
    print(&format!("{receipt}\n"))
}

/// A reader that has seen enough is no failure.
fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to stdout"),
    }
}

fn first_table(page: &Page) -> Option<&Table> {
    let blocks = page.sections.iter().flat_map(|section| &section.blocks);
    blocks.into_iter().find_map(|block| match block {
        Block::Table(table) => Some(table),
        _ => None,
    })
}

/// The terminal that stdout is, or a page of a hundred columns where it is none.
pub(crate) fn terminal() -> Terminal {
    const COLUMNS: usize = 100;
    let is_terminal = io::stdout().is_terminal();
    let columns = match console::Term::stdout().size_checked() {
        Some((_, columns)) if is_terminal => usize::from(columns),
        _ => COLUMNS,
    };
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Terminal {
        columns,
        colour: is_terminal && !no_colour,
    }
}
