//! The command line of this process, as its output needs it: the form of errors, colours, and the name of the command.
//!
//! It is read once, before the arguments are parsed, because errors of the parser have the same form.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal},
    sync::OnceLock,
    time::SystemTime,
};

use straightway_core::text::shown;

/// The arguments of this process. The first call decides.
static INVOCATION: OnceLock<Invocation> = OnceLock::new();

/// The command line, as the output needs it.
#[derive(Debug, Default)]
pub(crate) struct Invocation {
    /// The command line, quoted for a shell.
    line: String,
    /// Whether the result is JSON, and errors are too.
    pub(crate) is_json: bool,
    /// The words of the command, joined by hyphens.
    command: OnceLock<String>,
    colour: ColourChoice,
    begin: Option<SystemTime>,
}

/// When colours are used
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColourChoice {
    /// On a terminal, unless `NO_COLOR`, `CLICOLOR=0` or `TERM=dumb` is set; elsewhere if `CLICOLOR_FORCE` is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Invocation {
    /// Records the arguments of this process.
    pub(crate) fn begin(args: &[OsString]) -> &'static Self {
        INVOCATION.get_or_init(|| Self::of(args))
    }

    /// The recorded arguments.
    pub(crate) fn current() -> &'static Self {
        Self::begin(&[])
    }

    fn of(args: &[OsString]) -> Self {
        let words: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let mut options = words.iter().take_while(|word| *word != "--");
        let mut colour = ColourChoice::Auto;
        let mut before = "";
        for word in options.clone() {
            let value = word.strip_prefix("--color=").or((before == "--color").then_some(word));
            colour = match value {
                Some("always") => ColourChoice::Always,
                Some("never") => ColourChoice::Never,
                Some(_) => ColourChoice::Auto,
                None => colour,
            };
            before = word;
        }
        let name = words.first().map(|path| path.rsplit('/').next().unwrap_or(path));
        let rest = words.iter().skip(1).map(String::as_str);
        let line: Vec<String> = name.into_iter().chain(rest).map(quoted).collect();
        Self {
            line: line.join(" "),
            is_json: options.any(|word| word == "--json"),
            command: OnceLock::new(),
            colour,
            begin: Some(SystemTime::now()),
        }
    }

    /// The name and version of the form of the command's JSON: `straightway.plan-s3/1`.
    pub(crate) fn schema(&self) -> String {
        let command = self.command.get().map_or("result", String::as_str);
        format!("straightway.{command}/1")
    }

    /// Records the command, once it is known: its words, joined by hyphens.
    pub(crate) fn set_command(&self, command: String) {
        // Within one process it does not change.
        let _ = self.command.set(command);
    }

    /// The command line, as it can be typed again.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// The date at which the process began: `Wed, 18 Nov 2026 10:07:46 GMT`.
    pub(crate) fn date(&self) -> Option<String> {
        self.begin.map(httpdate::fmt_http_date)
    }

    /// Whether stdout is coloured.
    pub(crate) fn colours_stdout(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "it is only asked for its kind")]
        let is_terminal = io::stdout().is_terminal();
        self.colours(is_terminal)
    }

    /// Whether stderr is coloured.
    pub(crate) fn colours_stderr(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "it is only asked for its kind")]
        let is_terminal = io::stderr().is_terminal();
        self.colours(is_terminal)
    }

    fn colours(&self, is_terminal: bool) -> bool {
        match self.colour {
            ColourChoice::Always => true,
            ColourChoice::Never => false,
            ColourChoice::Auto => coloured_by(|name| env::var(name).ok(), is_terminal),
        }
    }

    /// The choice for the parser of arguments, whose messages and help go to either stream.
    pub(crate) fn for_parser(&self) -> clap::ColorChoice {
        match (self.colour, self.colours_stdout(), self.colours_stderr()) {
            (ColourChoice::Always, ..) | (_, true, true) => clap::ColorChoice::Always,
            (_, false, false) => clap::ColorChoice::Never,
            _ => clap::ColorChoice::Auto,
        }
    }
}

/// Whether colours are used by the conventions of <https://no-color.org> and <https://bixense.com/clicolors>.
fn coloured_by(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if set("NO_COLOR").is_some() {
        return false;
    }
    if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
        return true;
    }
    let is_off = set("CLICOLOR").is_some_and(|value| value == "0") || set("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_off
}

/// `word` as a shell needs it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) && !word.contains('[') {
        return word.to_owned();
    }
    format!("'{}'", shown(word).replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_environment() {
        for (variables, on_terminal, elsewhere) in [
            (&[][..], true, false),
            (&[("TERM", "xterm")], true, false),
            (&[("TERM", "dumb")], false, false),
            (&[("CLICOLOR", "0")], false, false),
            (&[("CLICOLOR", "1")], true, false),
            (&[("CLICOLOR_FORCE", "1")], true, true),
            (&[("CLICOLOR_FORCE", "0")], true, false),
            (&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], false, false),
            (&[("NO_COLOR", "")], true, false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(coloured_by(variable, true), on_terminal, "{variables:?}");
            assert_eq!(coloured_by(variable, false), elsewhere, "{variables:?}");
        }
    }

    #[test]
    fn the_command_line_can_be_typed_again() {
        let of = |words: &[&str]| Invocation::of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let one = of(&[
            "/usr/bin/straightway",
            "plan",
            "s3",
            "--set",
            "a b=c",
            "--color=always",
            "--json",
        ]);
        assert_eq!(one.line(), "straightway plan s3 --set 'a b=c' --color=always --json");
        assert!(one.is_json && one.colours(false));
        let other = of(&["straightway", "--color", "never", "copy", "it's", "--", "--json"]);
        assert_eq!(other.line(), "straightway --color never copy 'it'\\''s' -- --json");
        assert!(!other.is_json && !other.colours(true));
    }
}
