//! How a result leaves: as text for people, JSON or CSV for programs, HTML to pass on.
//!
//! These are the program's only ways to stdout and stderr (clippy refuses others). All of them escape what a
//! terminal would obey, so that no name of a stranger's file can.

use std::{
    fs,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use straightway_core::{
    Error, Kind, Receipt,
    text::{shown_coloured, shown_json, shown_lines},
};
use straightway_io::{ReportFile, draft};
use straightway_pipeline::errand::is_same;
use straightway_report::{Block, Page, Table, Terminal};

/// What every report starts with.
const REPORT_MARK: &str = "<!DOCTYPE html>";

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

    /// Whether all that is wanted is JSON.
    pub(crate) fn is_json_alone(&self) -> bool {
        self.json && !self.is_html()
    }

    /// An error where the report has no folder to go to, or would replace something else than an older report or
    /// what is read: better known before the work than after it.
    pub(crate) fn check(&self, input: &Path) -> anyhow::Result<()> {
        let Some(path) = &self.html else {
            return Ok(());
        };
        if is_same(path, input) {
            let message = "it is being read";
            return Err(Error::new(Kind::Invalid, "write to", path.display(), message).into());
        }
        let folder = draft::folder_of(path);
        let meta = fs::metadata(folder).map_err(|e| Error::os("write", path.display(), e))?;
        if !meta.is_dir() {
            let message = format!("{} is no folder", folder.display());
            return Err(Error::new(Kind::Invalid, "write", path.display(), message).into());
        }
        ReportFile::check(path, REPORT_MARK)?;
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
            ReportFile::begin(path, REPORT_MARK)?.finish(&page.to_html())?;
        }
        if self.json {
            print_json(json)
        } else if self.csv {
            print(&table.map(Table::to_csv).unwrap_or_default())
        } else {
            print_coloured(&page.to_text(terminal()))
        }
    }
}

/// Writes text to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    written(&shown_lines(text))
}

/// Writes text to stdout whose colours, where [`terminal`] has any, are ours.
pub(crate) fn print_coloured(text: &str) -> anyhow::Result<()> {
    if terminal().colour {
        written(&shown_coloured(text))
    } else {
        print(text)
    }
}

/// Writes a value to stdout as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let written = (|| {
        let mut out = EscapedJson(BufWriter::new(stdout()));
        serde_json::to_writer_pretty(&mut out, value)?;
        out.0.write_all(b"\n")?;
        out.0.flush()
    })();
    is_written(written)
}

/// Escapes JSON text on its way, for a result may be too large to be held as text.
struct EscapedJson<W>(W);

impl<W: Write> Write for EscapedJson<W> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        // serde_json writes whole strings or parts of them, never a part of a character.
        let text = std::str::from_utf8(part).map_err(io::Error::other)?;
        self.0.write_all(shown_json(text).as_bytes())?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a line to stderr. If that is gone, there is nobody to tell.
#[expect(clippy::disallowed_methods, reason = "the one way to stderr")]
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", shown_lines(line));
}

/// Writes a receipt to stdout, for people or as JSON.
pub(crate) fn print_receipt(receipt: &Receipt, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return print_json(receipt);
    }
    print(&format!("{receipt}\n"))
}

/// Writes what is safe to show to stdout.
fn written(shown: &str) -> anyhow::Result<()> {
    is_written(stdout().write_all(shown.as_bytes()))
}

#[expect(clippy::disallowed_methods, reason = "the one way to stdout")]
fn stdout() -> io::StdoutLock<'static> {
    io::stdout().lock()
}

/// A reader that has seen enough is no failure.
fn is_written(result: io::Result<()>) -> anyhow::Result<()> {
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
    let is_terminal = stdout().is_terminal();
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
