//! The examples of the help and man pages: command lines by page, in `examples.txt`.
//!
//! The help, the man pages and the tests use the same text. The tests run every line on real files; a line that a test
//! machine cannot run has the reason, and is parsed.
//!
//! A page begins with `==` and the command without `straightway`. Each example is a comment, which the help shows, and
//! a line as typed in a shell. `#! not run: WHY` before the line, or `#! until interrupted`, is for the tests.

/// The text of all pages.
const TEXT: &str = include_str!("examples.txt");

/// A command line of a help page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Example {
    /// What it does.
    pub does: &'static str,
    /// The command line, as typed in a shell.
    pub line: &'static str,
    /// How tests run it.
    pub trial: Trial,
}

/// How tests run an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// To its end.
    Run,
    /// Until an interrupt.
    Interrupted,
    /// Not at all, and why.
    NotRun(&'static str),
}

/// All pages, each with its examples. The page of the program itself is empty text.
pub fn pages() -> impl Iterator<Item = (&'static str, Vec<Example>)> {
    let texts = TEXT.split("==").skip(1);
    texts.map(|text| {
        let (page, examples) = text.split_once('\n').unwrap_or((text, ""));
        (page.trim(), parsed(examples))
    })
}

/// The examples of a page; none if it has none.
pub fn of(page: &str) -> Vec<Example> {
    let found = pages().find(|(name, _)| *name == page);
    found.map(|(_, examples)| examples).unwrap_or_default()
}

/// The examples of a page as the end of its help.
pub(crate) fn help(page: &str) -> String {
    let examples = of(page).into_iter();
    let lines = examples.map(|Example { does, line, .. }| format!("\n  # {does}\n  {line}"));
    lines.fold("Examples:".to_owned(), |text, example| text + &example)
}

fn parsed(text: &'static str) -> Vec<Example> {
    let (mut does, mut trial) = ("", Trial::Run);
    let mut examples = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "#! until interrupted" {
            trial = Trial::Interrupted;
        } else if let Some(why) = line.strip_prefix("#! not run: ") {
            trial = Trial::NotRun(why);
        } else if let Some(text) = line.strip_prefix("# ") {
            does = text;
        } else {
            examples.push(Example { does, line, trial });
            (does, trial) = ("", Trial::Run);
        }
    }
    examples
}
