//! The output of results: text for people, JSON or CSV for programs, HTML to share.
//!
//! Only this module writes to stdout and stderr (clippy refuses other uses). It escapes terminal control sequences,
//! which an untrusted file name may contain.

use std::{
    fs,
    io::{self, BufWriter, IsTerminal, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use straightway_core::{
    Error, ErrorKind, Receipt,
    text::{shown_coloured, shown_json, shown_lines},
};
use straightway_io::{ReportFile, draft, store::is_same_file};
use straightway_report::{Block, Page, Table, Terminal};

use super::invocation::Invocation;

/// The beginning of every HTML report.
const REPORT_MARK: &str = "<!DOCTYPE html>";

/// The form of the output
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Write the result as JSON, in base units
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Write the table as CSV, in base units
    #[arg(long)]
    csv: bool,

    /// Also write a self-contained HTML report
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Output {
    /// Whether an HTML report is written.
    pub(crate) fn is_html(&self) -> bool {
        self.html.is_some()
    }

    /// Whether text for people is the only output.
    pub(crate) fn is_text_alone(&self) -> bool {
        !self.json && !self.csv && !self.is_html()
    }

    /// Whether JSON is the only output.
    pub(crate) fn is_json_alone(&self) -> bool {
        self.json && !self.is_html()
    }

    /// Checks, before the work, that the folder of the report exists, and that the report replaces neither the input
    /// nor a file that is not a report.
    pub(crate) fn check(&self, input: &Path) -> anyhow::Result<()> {
        let Some(path) = &self.html else {
            return Ok(());
        };
        if is_same_file(path, input) {
            let message = "it is being read";
            return Err(Error::new(ErrorKind::Invalid, "write to", path.display(), message).into());
        }
        let folder = draft::folder_of(path);
        let meta = fs::metadata(folder).map_err(|e| Error::os("write", path.display(), e))?;
        if !meta.is_dir() {
            let message = format!("{} is not a folder", folder.display());
            return Err(Error::new(ErrorKind::Invalid, "write", path.display(), message).into());
        }
        ReportFile::check(path, REPORT_MARK)?;
        Ok(())
    }

    /// Writes a result to stdout in the requested form, and to the HTML file if there is one. The CSV is the page's
    /// first table.
    pub(crate) fn write(&self, page: &Page, json: &Value) -> anyhow::Result<()> {
        self.write_with(page, first_table(page), json)
    }

    /// Like [`write`](Self::write), with `table` as the CSV.
    pub(crate) fn write_with(&self, page: &Page, table: Option<&Table>, json: &Value) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            ReportFile::begin(path, REPORT_MARK)?.finish(&with_origin(page).to_html())?;
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

/// The page with what is needed to make it again: the command, the version and the date.
fn with_origin(page: &Page) -> Page {
    let invocation = Invocation::current();
    let page = page
        .clone()
        .fact("command", invocation.line())
        .fact("version", concat!("straightway ", env!("CARGO_PKG_VERSION")));
    match invocation.date() {
        Some(date) => page.fact("date", date),
        None => page,
    }
}

/// Writes text to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    written(&shown_lines(text))
}

/// Writes text to stdout and keeps its colours if [`terminal`] has any.
pub(crate) fn print_coloured(text: &str) -> anyhow::Result<()> {
    if terminal().colour {
        written(&shown_coloured(text))
    } else {
        print(text)
    }
}

/// A result and the name and version of its form.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'a str,
    #[serde(flatten)]
    result: &'a T,
}

/// Writes a result to stdout as JSON, with the name and version of its form as `schema`: `straightway.plan-s3/1`. In a
/// list, each object has it.
pub(crate) fn print_json(result: &impl Serialize) -> anyhow::Result<()> {
    let schema = Invocation::current().schema();
    let value = serde_json::to_value(result)?;
    write_json(&documented(&schema, value))
}

/// As [`print_json`], for a result with fields that is too large to be held as JSON.
pub(crate) fn print_json_streamed(result: &impl Serialize) -> anyhow::Result<()> {
    let schema = &Invocation::current().schema();
    write_json(&Document { schema, result })
}

/// Writes a result as one line of JSON to stdout, with its schema.
pub(crate) fn print_json_line(result: &Value) -> anyhow::Result<()> {
    write_json_line(&documented(&Invocation::current().schema(), result.clone()))
}

/// `value` with a `schema`, where it is an object without one, or a list of those.
fn documented(schema: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) if fields.contains_key("schema") => Value::Object(fields),
        Value::Object(fields) => {
            let name = ("schema".to_owned(), Value::from(schema));
            Value::Object(std::iter::once(name).chain(fields).collect())
        }
        Value::Array(items) => items.into_iter().map(|item| documented(schema, item)).collect(),
        other => other,
    }
}

/// Writes a value to stdout as JSON.
fn write_json(value: &impl Serialize) -> anyhow::Result<()> {
    let written = (|| {
        let mut out = EscapedJson(BufWriter::new(stdout()));
        serde_json::to_writer_pretty(&mut out, value)?;
        out.0.write_all(b"\n")?;
        out.0.flush()
    })();
    is_written(written)
}

/// Writes a value as one line of JSON to stdout.
fn write_json_line(value: &Value) -> anyhow::Result<()> {
    written(&shown_json(&format!("{value}\n")))
}

/// Escapes JSON text while it is written: a result may be too large to hold as text.
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

/// Writes a line to stderr. Errors are ignored: there is no other place to report them. A label at its begin, such as
/// `error:`, is coloured as those of the argument parser are.
#[expect(clippy::disallowed_methods, reason = "the one way to stderr")]
pub(crate) fn say(line: &str) {
    let line = shown_lines(line);
    let code = LABELS.iter().find(|(label, _)| line.starts_with(label));
    let _ = match code {
        Some((label, code)) if Invocation::current().colours_stderr() => {
            writeln!(io::stderr(), "\x1b[{code}m{label}\x1b[0m{}", &line[label.len()..])
        }
        _ => writeln!(io::stderr(), "{line}"),
    };
}

/// The labels of lines on stderr, and the codes of their colours.
const LABELS: [(&str, &str); 6] = [
    ("error:", "1;31"),
    ("hint:", "32"),
    ("warning:", "33"),
    ("info:", "2"),
    ("debug:", "2"),
    ("trace:", "2"),
];

/// Writes an error as JSON to stderr, for a command whose result is JSON.
pub(crate) fn say_json_error(error: &str, hint: Option<&str>, kind: &str) {
    let object = serde_json::json!({
        "schema": "straightway.error/1",
        "error": error,
        "hint": hint,
        "kind": kind,
    });
    say(&shown_json(&object.to_string()));
}

/// Writes a line to stderr while a progress bar may be drawn there. The line replaces the bar, which is drawn again
/// below it.
#[expect(clippy::disallowed_methods, reason = "the one way to stderr")]
pub(crate) fn say_above_bar(line: &str) {
    if io::stderr().is_terminal() {
        // The cursor is in the line of the bar.
        let _ = io::stderr().write_all(CLEAR_LINE);
    }
    say(line);
}

/// Goes to the start of the line and clears it.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

/// Writes a receipt to stdout, for people or as JSON.
pub(crate) fn print_receipt(receipt: &Receipt, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return write_json(receipt);
    }
    let terminal = terminal();
    let mut text = format!("{receipt}\n");
    // In a pipe a line stays a line.
    if stdout().is_terminal() {
        text = terminal.wrapped(&text);
    }
    let line = |(number, line): (usize, &str)| match line.trim_start() {
        _ if number == 0 => terminal.bold(line),
        warning if warning.starts_with("warning:") => terminal.caution(line),
        _ => line.to_owned(),
    };
    let lines: Vec<_> = text.lines().enumerate().map(line).collect();
    print_coloured(&(lines.join("\n") + "\n"))
}

/// Writes escaped text to stdout.
fn written(shown: &str) -> anyhow::Result<()> {
    is_written(stdout().write_all(shown.as_bytes()))
}

/// Standard output for the bytes of a file, which are not escaped. A closed pipe is an error here.
#[derive(Debug)]
pub(crate) struct RawStdout(());

impl RawStdout {
    pub(crate) fn new() -> Self {
        Self(())
    }

    pub(crate) fn is_terminal() -> bool {
        stdout().is_terminal()
    }
}

impl Write for RawStdout {
    /// Writes without the buffer of the standard library, which looks for line feeds.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(stdout().as_fd(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "the one way to stdout")]
fn stdout() -> io::StdoutLock<'static> {
    io::stdout().lock()
}

/// Ignores a closed pipe: the reader has seen enough.
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

/// The properties of the terminal at stdout; a hundred columns if it is not a terminal.
pub(crate) fn terminal() -> Terminal {
    const COLUMNS: usize = 100;
    let is_terminal = stdout().is_terminal();
    let columns = match console::Term::stdout().size_checked() {
        Some((_, columns)) if is_terminal => usize::from(columns),
        _ => COLUMNS,
    };
    Terminal {
        columns,
        colour: Invocation::current().colours_stdout(),
    }
}
