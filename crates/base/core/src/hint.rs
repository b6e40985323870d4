//! Hints: what the user can do about an error.
//!
//! Interfaces name the same setting differently: `--route auto` on a command line, `route="auto"` in Python. A hint
//! therefore contains markers, as in `use ⟦route=auto⟧`, and each interface words them for its users.

use std::borrow::Cow;

const OPEN: char = '⟦';
const CLOSE: char = '⟧';

/// A setting that a hint mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Its name, with underscores between words: `shard_size`.
    pub name: &'a str,
    /// The value that the hint recommends, or `None` if it mentions only the setting.
    pub value: Option<&'a str>,
}

/// Text with markers of settings.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    marked: String,
    /// The text for users of the library: `route auto`.
    plain: String,
}

impl Hint {
    /// Takes text with markers.
    pub(crate) fn new(marked: String) -> Self {
        let word = |setting: Setting<'_>| match setting.value {
            Some(value) => format!("{} {value}", setting.name),
            None => setting.name.to_owned(),
        };
        Self {
            plain: worded(&marked, word).into_owned(),
            marked,
        }
    }

    /// The text for users of the library.
    pub(crate) fn plain(&self) -> &str {
        &self.plain
    }

    /// The text with every setting worded by `word`.
    pub(crate) fn worded(&self, word: impl Fn(Setting<'_>) -> String) -> Cow<'_, str> {
        worded(&self.marked, word)
    }
}

fn worded(marked: &str, word: impl Fn(Setting<'_>) -> String) -> Cow<'_, str> {
    if !marked.contains(OPEN) {
        return Cow::Borrowed(marked);
    }
    let mut text = String::with_capacity(marked.len());
    let mut rest = marked;
    while let Some((before, marker, after)) = next_marker(rest) {
        text.push_str(before);
        let (name, value) = match marker.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (marker, None),
        };
        text.push_str(&word(Setting { name, value }));
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The text before the first marker, the marker's content, and the text after it.
fn next_marker(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(OPEN)?;
    let (marker, after) = rest.split_once(CLOSE)?;
    Some((before, marker, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(setting: Setting<'_>) -> String {
        match setting.value {
            Some(value) => format!("--{} {value}", setting.name),
            None => format!("--{}", setting.name),
        }
    }

    #[test]
    fn each_interface_words_the_settings_of_a_hint() {
        let hint = Hint::new("use ⟦route=auto⟧, or a larger ⟦chunk⟧".to_owned());
        assert_eq!(hint.plain(), "use route auto, or a larger chunk");
        assert_eq!(hint.worded(flag), "use --route auto, or a larger --chunk");
    }

    #[test]
    fn text_without_a_whole_marker_stays_as_it_is() {
        for text in ["check the network", "", "a ⟦ without an end", "an end ⟧ alone"] {
            let hint = Hint::new(text.to_owned());
            assert_eq!((hint.plain(), &*hint.worded(flag)), (text, text));
        }
    }
}
