//! The diagnosis for people: the verdict, then what is wrong and how to mend it, then counts.
//!
//! It is read by someone woken at night: one line says it all, trouble comes first with the command
//! that mends it, and what is well is a number. One direct way is enough, so what closes the one
//! with fewer obstacles comes first and in full; what the other would take follows in brief.
//! Commands are never broken over lines: they are there to be copied.

use std::fmt::Write;

use straightway_core::text::shown;

use super::{Diagnosis, Finding, Layer, State, Verdict, Way, way::DIRECT};

/// Where the text of a finding starts.
const INDENT: usize = 6;
/// The columns of a title.
const TITLE_WIDTH: usize = 22;
/// Why writing to a string cannot fail.
const INFALLIBLE: &str = "a string takes all that is written to it";

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
        let mut page = Page {
            style: *style,
            text: String::new(),
        };
        page.verdict(self);
        let nearest = self.nearest();
        let is_far =
            |finding: &&Finding| !finding.closes.is_empty() && !finding.closes.contains(&nearest);
        let (far, near): (Vec<_>, Vec<_>) = self.of(State::Fail).partition(is_far);
        for finding in near {
            page.finding(finding, true);
        }
        if !far.is_empty() {
            let other = DIRECT.iter().find(|way| **way != nearest);
            let other = other.map_or("", |way| way.title());
            page.line(&format!(
                "\nin place of {}, {other} would take:",
                nearest.title()
            ));
            for finding in far {
                page.finding(finding, false);
            }
        }
        for finding in self.of(State::Warn) {
            page.finding(finding, true);
        }
        if style.verbose {
            for state in [State::Pass, State::NotApplicable] {
                page.line("");
                for finding in self.of(state) {
                    page.head(finding);
                }
            }
        }
        page.line("");
        for layer in Layer::ALL {
            let width = INDENT + TITLE_WIDTH;
            page.line(&format!("{:<width$} {}", layer.title(), self.counts(layer)));
        }
        page.text
    }

    fn of(&self, state: State) -> impl Iterator<Item = &Finding> {
        let findings = self.checks.iter();
        findings.filter(move |finding| finding.state == state)
    }

    /// The direct way with the fewest obstacles.
    fn nearest(&self) -> Way {
        let direct = self.ways.iter().filter(|state| DIRECT.contains(&state.way));
        let nearest = direct.min_by_key(|state| state.closed_by.len());
        nearest.map_or(Way::NvidiaFs, |state| state.way)
    }

    fn counts(&self, layer: Layer) -> String {
        let count = |state| {
            let findings = self.of(state);
            findings.filter(|finding| finding.layer == layer).count()
        };
        let counts: Vec<String> = State::ALL
            .into_iter()
            .filter(|state| count(*state) > 0)
            .map(|state| format!("{} {}", count(state), state.word()))
            .collect();
        counts.join(", ")
    }
}

/// The text as it grows.
struct Page {
    style: Style,
    text: String,
}

impl Page {
    fn verdict(&mut self, diagnosis: &Diagnosis) {
        let state = match diagnosis.verdict {
            Verdict::Direct => State::Pass,
            Verdict::NotProven => State::Warn,
            Verdict::NotDirect => State::Fail,
        };
        let summary = shown(&diagnosis.summary);
        let (word, rest) = summary.split_once(':').unwrap_or((&summary, ""));
        self.paint(state, word);
        self.text.push(':');
        self.line(rest);
        if let Some(instead) = &diagnosis.instead {
            self.line(&format!("  instead: {}", shown(instead)));
        }
    }

    /// A finding with what mends it, and why it matters where that is wanted.
    fn finding(&mut self, finding: &Finding, with_why: bool) {
        if with_why {
            self.line("");
        }
        self.head(finding);
        if with_why {
            self.text.push_str("      why: ");
            self.wrap(INDENT + 5, INDENT + 6, finding.why);
        }
        if let Some(mend) = &finding.mend {
            self.line(&format!("      mend: {}", shown(mend)));
        }
    }

    fn head(&mut self, finding: &Finding) {
        let state = finding.state.word();
        self.paint(finding.state, state);
        let gap = INDENT - state.len();
        write!(self.text, "{:gap$}{:<TITLE_WIDTH$}", "", finding.title).expect(INFALLIBLE);
        let column = INDENT + TITLE_WIDTH;
        self.wrap(column, column + 1, &shown(&finding.seen));
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn paint(&mut self, state: State, word: &str) {
        let code = match state {
            State::Fail => 31,
            State::Warn => 33,
            State::Pass => 32,
            State::NotApplicable => 2,
        };
        if self.style.colour {
            write!(self.text, "\x1b[{code}m{word}\x1b[0m").expect(INFALLIBLE);
        } else {
            self.text.push_str(word);
        }
    }

    /// Ends a line that has reached `column` with `text`, broken at blanks; further lines start at
    /// `indent`. A word longer than a line, such as a path, stays whole.
    fn wrap(&mut self, mut column: usize, indent: usize, text: &str) {
        for word in text.split_whitespace() {
            let width = word.chars().count();
            if column + 1 + width > self.style.width && column > indent {
                self.text.push('\n');
                self.text.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                self.text.push(' ');
                column += 1;
            }
            self.text.push_str(word);
            column += width;
        }
        self.text.push('\n');
    }
}
