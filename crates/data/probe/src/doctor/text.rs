//! The diagnosis as text: the verdict, then problems and their fixes, then counts.
//!
//! The first line is the summary. Problems come first, each with the command that fixes it; passed checks are only
//! counted. One direct path is enough, so the obstacles of the path with fewer of them come first and in full; those
//! of the other follow in brief. Commands are never wrapped, so that they can be copied.

use std::fmt::Write;

use straightway_core::text::shown;

use super::{CufilePath, Diagnosis, DoctorVerdict, Finding, Layer, State, cufile_path::DIRECT};

/// The column at which the text of a finding starts.
const INDENT: usize = 6;
/// The width of a title.
const TITLE_WIDTH: usize = 22;
/// Below this width, a finding is below its title.
const NARROW: usize = 72;
/// Why writing to a string cannot fail.
const INFALLIBLE: &str = "writes to a string cannot fail";

/// The style of the report.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether to show passed and inapplicable checks, too.
    pub verbose: bool,
    /// Whether to colour the states.
    pub colour: bool,
    /// The width at which lines are wrapped.
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
        let is_far = |finding: &&Finding| !finding.closes.is_empty() && !finding.closes.contains(&nearest);
        let (far, near): (Vec<_>, Vec<_>) = self.of(State::Fail).partition(is_far);
        for finding in near {
            page.finding(finding, true);
        }
        if !far.is_empty() {
            let other = DIRECT.iter().find(|way| **way != nearest);
            let other = other.map_or("", |way| way.title());
            page.line(&format!("\ninstead of {}, {other} would need:", nearest.title()));
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

    /// The direct path with the fewest obstacles.
    fn nearest(&self) -> CufilePath {
        let direct = self.ways.iter().filter(|state| DIRECT.contains(&state.way));
        let nearest = direct.min_by_key(|state| state.closed_by.len());
        nearest.map_or(CufilePath::NvidiaFs, |state| state.way)
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

/// A check of a store: of a bucket, or of an object on a network.
#[derive(Clone, Copy, Debug)]
pub struct CheckRow<'a> {
    /// Its result.
    pub state: State,
    /// Its title.
    pub title: &'a str,
    /// The finding.
    pub seen: &'a str,
    /// The remedy.
    pub fix: Option<&'a str>,
}

/// The checks of a store in the layout of a [`Diagnosis`]: the summary, the problems with their fixes, the other checks,
/// and counts.
pub fn checks_text(summary: &str, checks: &[CheckRow<'_>], style: &Style) -> String {
    let mut page = Page {
        style: *style,
        text: String::new(),
    };
    let worst = checks.iter().map(|check| check.state).min().unwrap_or(State::Pass);
    page.summary(worst, summary);
    let is_problem = |check: &&CheckRow<'_>| check.fix.is_some() || check.state < State::Pass;
    for check in checks.iter().filter(is_problem) {
        page.line("");
        page.row(check.state, check.title, check.seen);
        if let Some(fix) = check.fix {
            page.fix(fix);
        }
    }
    page.line("");
    for check in checks.iter().filter(|check| !is_problem(check)) {
        page.row(check.state, check.title, check.seen);
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let counts = State::ALL.into_iter().filter(|state| count(*state) > 0);
    let counts: Vec<String> = counts
        .map(|state| format!("{} {}", count(state), state.word()))
        .collect();
    page.line(&format!("\n{}", counts.join(", ")));
    page.text
}

/// The report being written.
struct Page {
    style: Style,
    text: String,
}

impl Page {
    fn verdict(&mut self, diagnosis: &Diagnosis) {
        let state = match diagnosis.verdict {
            DoctorVerdict::Direct => State::Pass,
            DoctorVerdict::NotProven => State::Warn,
            DoctorVerdict::NotDirect => State::Fail,
        };
        self.summary(state, &diagnosis.summary);
        if let Some(instead) = &diagnosis.instead {
            self.line(&format!("  instead: {}", shown(instead)));
        }
    }

    /// Writes the first line, with its first word in the colour of `state`.
    fn summary(&mut self, state: State, summary: &str) {
        let summary = shown(summary);
        let (word, rest) = summary.split_once(':').unwrap_or((&summary, ""));
        self.paint(state, word);
        self.text.push(':');
        self.wrap(word.chars().count() + 1, 2, rest);
    }

    /// Writes a finding with its fix, and with its reason if `with_why`.
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
            self.fix(mend);
        }
    }

    fn fix(&mut self, fix: &str) {
        self.line(&format!("      fix: {}", shown(fix)));
    }

    fn head(&mut self, finding: &Finding) {
        self.row(finding.state, finding.title, &finding.seen);
    }

    fn row(&mut self, state: State, title: &str, seen: &str) {
        let word = state.word();
        self.paint(state, word);
        let gap = INDENT - word.len();
        if self.style.width < NARROW {
            // The finding does not fit beside its title.
            write!(self.text, "{:gap$}{title}\n{:INDENT$}", "", "").expect(INFALLIBLE);
            return self.wrap(INDENT, INDENT + 1, &shown(seen));
        }
        write!(self.text, "{:gap$}{title:<TITLE_WIDTH$}", "").expect(INFALLIBLE);
        let column = INDENT + TITLE_WIDTH;
        self.wrap(column, column + 1, &shown(seen));
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

    /// Completes a line at `column` with `text`, wrapped at blanks; further lines start at `indent`. A word longer
    /// than a line, such as a path, is not broken.
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
