//! The diagnosis for people: the verdict, then what is wrong and how to mend it, then counts.
//!
//! It is read by someone woken at night: one line says it all, trouble comes first with the command
//! that mends it, and what is well is a number.

use std::fmt::Write;

use super::{Diagnosis, Finding, Layer, State};

/// Where the text of a finding starts.
const INDENT: usize = 6;
/// The column of what was seen.
const TITLE_WIDTH: usize = 22;

/// How to write it.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Show what passed and what does not apply, too.
    pub verbose: bool,
    /// Colour the states.
    pub colour: bool,
    /// Columns to wrap at.
    pub width: usize,
}

impl Diagnosis {
    /// The report as text.
    pub fn text(&self, style: &Style) -> String {
        let mut out = String::new();
        let state = if self.is_direct {
            State::Pass
        } else {
            State::Fail
        };
        let (word, rest) = self.summary.split_once(':').unwrap_or((&self.summary, ""));
        let lead = paint(style, state, word);
        wrap(
            &mut out,
            style,
            &format!("{lead}:"),
            word.len() + 1,
            2,
            rest.trim(),
        );
        if let Some(instead) = &self.instead {
            wrap(&mut out, style, "  instead:", 10, 2, instead);
        }
        let shown = |finding: &&Finding| style.verbose || finding.state <= State::Warn;
        let mut last = None;
        for finding in self.checks.iter().filter(shown) {
            if finding.state <= State::Warn || last != Some(finding.state) {
                out.push('\n');
            }
            last = Some(finding.state);
            write_finding(&mut out, style, finding);
        }
        out.push('\n');
        for layer in Layer::ALL {
            let line = self.count_line(layer);
            writeln!(
                out,
                "{:<width$}{line}",
                layer.title(),
                width = TITLE_WIDTH + 3
            )
            .expect("a string takes all that is written to it");
        }
        out
    }

    fn count_line(&self, layer: Layer) -> String {
        let of = |state| {
            let findings = self.checks.iter();
            findings
                .filter(|finding| finding.layer == layer && finding.state == state)
                .count()
        };
        let counts: Vec<String> = State::ALL
            .into_iter()
            .filter(|state| of(*state) > 0)
            .map(|state| format!("{} {}", of(state), state.word()))
            .collect();
        counts.join(", ")
    }
}

fn write_finding(out: &mut String, style: &Style, finding: &Finding) {
    let state = format!("{:<4}", finding.state.word());
    let head = format!(
        "{}  {:<TITLE_WIDTH$} ",
        paint(style, finding.state, &state),
        finding.title
    );
    let column = INDENT + TITLE_WIDTH + 1;
    wrap(
        out,
        style,
        head.trim_end_matches(' '),
        column - 1,
        column,
        &finding.seen,
    );
    if let Some(mend) = &finding.mend {
        wrap(
            out,
            style,
            "      why: ",
            INDENT + 5,
            INDENT + 6,
            finding.why,
        );
        wrap(out, style, "      mend:", INDENT + 5, INDENT + 6, mend);
    }
}

fn paint(style: &Style, state: State, word: &str) -> String {
    let code = match state {
        State::Fail => 31,
        State::Warn => 33,
        State::Pass => 32,
        State::NotApplicable => 2,
    };
    if style.colour {
        format!("\x1b[{code}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// Writes `head`, which takes up `column` columns, then `text` broken at blanks; lines after the
/// first start at `indent`. A word longer than a line, such as a path, stays whole.
fn wrap(out: &mut String, style: &Style, head: &str, column: usize, indent: usize, text: &str) {
    out.push_str(head);
    let mut at = column;
    let mut pad = column.saturating_sub(visible(head));
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if at + 1 + width > style.width && at > indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            at = indent;
        } else {
            out.push_str(&" ".repeat(1 + std::mem::take(&mut pad)));
            at += 1;
        }
        out.push_str(word);
        at += width;
    }
    out.push('\n');
}

/// The columns a text takes, without colours.
fn visible(text: &str) -> usize {
    let mut columns = 0;
    let mut in_colour = false;
    for c in text.chars() {
        match c {
            '\x1b' => in_colour = true,
            'm' if in_colour => in_colour = false,
            _ if in_colour => {}
            _ => columns += 1,
        }
    }
    columns
}
