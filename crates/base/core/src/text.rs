//! Escaping of untrusted text for output.
//!
//! File names, tensor names and scenario titles are untrusted. A terminal executes escape sequences in
//! them, and bidirectional marks make a name look like another one. [`shown`] replaces every such character
//! with its escape (`\u{1b}`). All output passes through this module. The escapes are plain text, so
//! escaping text twice does not change it again.
//!
//! Names are escaped where they enter a message: in [`Error`](crate::Error), in the tables and pages of
//! `report`, in the errors of `planner`. The program escapes everything again on output, with [`shown_lines`] or
//! [`shown_coloured`]. A name that was not escaped before can therefore add a line break or a colour, but no command.

use std::{borrow::Cow, fmt::Write};

/// The reason why writing to a string cannot fail.
const INFALLIBLE: &str = "a string takes all that is written to it";

/// Whether `c` acts on a terminal or is invisible there: controls (C0, DEL, C1), bidirectional marks, line and
/// paragraph separators, zero-width characters, blank fillers, tags and noncharacters.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A count and its noun, such as `1 file` and `2 files`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// `text` as one line. Characters that are unsafe (see [`is_unsafe`]) become `\n`, `\t`, `\r` or `\u{…}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    replaced(text, |c, out| write!(out, "{}", c.escape_default()))
}

/// As [`shown`], for text of several lines: line feeds stay, also after a carriage return.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    if text.contains("\r\n") {
        let lines: Vec<_> = text.split("\r\n").map(shown_lines).collect();
        return Cow::Owned(lines.join("\r\n"));
    }
    replaced(text, |c, out| match c {
        '\n' => out.write_char('\n'),
        c => write!(out, "{}", c.escape_default()),
    })
}

/// As [`shown_lines`], for output that this program coloured: sequences that only set a colour or weight
/// (`ESC [ … m`) stay too.
pub fn shown_coloured(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return shown_lines(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut parts = text.split('\x1b');
    safe.push_str(&shown_lines(parts.next().unwrap_or_default()));
    for part in parts {
        let rest = part.strip_prefix('[');
        let end = rest.and_then(|rest| rest.find(|c: char| !c.is_ascii_digit() && c != ';'));
        let is_colour = end.is_some_and(|end| rest.is_some_and(|rest| rest[end..].starts_with('m')));
        safe.push_str(if is_colour { "\x1b" } else { "\\u{1b}" });
        safe.push_str(&shown_lines(part));
    }
    Cow::Owned(safe)
}

/// JSON text with unsafe characters (see [`is_unsafe`]) as JSON escapes. Its value does not change: outside of strings,
/// JSON has no such characters except line feeds and tabs, which stay.
pub fn shown_json(text: &str) -> Cow<'_, str> {
    replaced(text, |c, out| match c {
        '\n' | '\t' => out.write_char(c),
        c => {
            let mut units = [0; 2];
            let mut units = c.encode_utf16(&mut units).iter();
            units.try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        }
    })
}

/// `text` as one shell word, for commands that users copy. It is quoted if it contains special characters.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// `text` with every unsafe character (see [`is_unsafe`]) written by `escape`.
fn replaced(text: &str, escape: impl Fn(char, &mut String) -> std::fmt::Result) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            escape(c, &mut safe).expect(INFALLIBLE);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        assert_eq!(shown("a\x1b[2Jb\r\nc\td"), r"a\u{1b}[2Jb\r\nc\td");
        assert_eq!(shown("\u{9b}2J\u{7f}"), r"\u{9b}2J\u{7f}");
        assert_eq!(
            shown("exe.\u{202e}gpj\u{2066}x\u{200f}"),
            r"exe.\u{202e}gpj\u{2066}x\u{200f}"
        );
        assert_eq!(
            shown("a\u{200b}b\u{feff}\u{e0041}\u{2028}"),
            r"a\u{200b}b\u{feff}\u{e0041}\u{2028}"
        );
    }

    #[test]
    fn ordinary_names_are_not_changed() {
        for name in [
            "model.layers.0.q_proj",
            "poids été",
            "重み",
            "e\u{301}",
            "Ω ± 3 %",
            r"a\b",
            "שלום",
            "🚀",
        ] {
            assert!(matches!(shown(name), Cow::Borrowed(same) if same == name), "{name}");
        }
    }

    #[test]
    fn our_own_colours_stay_and_no_other_sequence() {
        let ours = "\x1b[1mbold\x1b[0m \x1b[38;5;33mblue\x1b[0m\n";
        assert_eq!(shown_coloured(ours), ours);
        let theirs = "\x1b[2J\x1b]0;t\x07\x1b[1;31\x1b[m\x1b[5n\x1b";
        assert_eq!(
            shown_coloured(theirs),
            "\\u{1b}[2J\\u{1b}]0;t\\u{7}\\u{1b}[1;31\x1b[m\\u{1b}[5n\\u{1b}"
        );
    }

    #[test]
    fn a_word_of_a_command_stays_one_word() {
        assert_eq!(shell_word("/dev/nvme0n1p1"), "/dev/nvme0n1p1");
        assert_eq!(shell_word("/a b; rm -r ~"), "'/a b; rm -r ~'");
        assert_eq!(shell_word("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(shell_word(""), "''");
    }

    proptest! {
        #[test]
        fn no_unsafe_character_remains(text in "(\\PC|\\pC|\x1b\\[[0-9;]*[a-zA-Z])*") {
            prop_assert!(!shown(&text).contains(is_unsafe));
            prop_assert!(!shown_lines(&text).replace("\r\n", "\n").contains(|c| c != '\n' && is_unsafe(c)));
            let once = shown(&text).into_owned();
            prop_assert_eq!(shown(&once), once.as_str());
            let plain = shown_coloured(&text).replace("\r\n", "\n");
            for part in plain.split('\x1b').skip(1) {
                let part = part.strip_prefix('[').expect("only colours").trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
                prop_assert!(part.starts_with('m'));
            }
            prop_assert!(!plain.contains(|c| c != '\n' && c != '\x1b' && is_unsafe(c)));
        }

        #[test]
        fn escaped_json_has_the_same_value(text in "(\\PC|\\pC)*") {
            let json = serde_json::to_string_pretty(&serde_json::json!({ "name": text })).unwrap();
            let safe = shown_json(&json).into_owned();
            prop_assert!(!safe.contains(|c| c != '\n' && is_unsafe(c)));
            let back: serde_json::Value = serde_json::from_str(&safe).unwrap();
            prop_assert_eq!(back["name"].as_str(), Some(text.as_str()));
        }
    }
}
