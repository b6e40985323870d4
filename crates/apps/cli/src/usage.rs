//! Errors of the command line as clap words them, without suggestions that are far from what was typed.

use clap::error::{ContextKind, ContextValue, Error};
use straightway_core::nearest::is_near;

/// The suggestions of clap and what they are for. clap suggests `--trace` for `--force`.
const SUGGESTIONS: [(ContextKind, ContextKind); 3] = [
    (ContextKind::SuggestedArg, ContextKind::InvalidArg),
    (ContextKind::SuggestedSubcommand, ContextKind::InvalidSubcommand),
    (ContextKind::SuggestedValue, ContextKind::InvalidValue),
];

/// The error without suggestions that are not near the text that was typed.
pub(crate) fn with_near_suggestions_only(mut error: Error) -> Error {
    // "To pass it as a value, use `--`" does not help with a mistyped option.
    if matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(typed)) if typed.starts_with("--")) {
        error.remove(ContextKind::Suggested);
    }
    for (suggested, typed) in SUGGESTIONS {
        let typed = match error.get(typed) {
            Some(ContextValue::String(typed)) => name(typed).to_owned(),
            _ => continue,
        };
        let near = |text: &String| is_near(&typed, name(text));
        let kept = match error.get(suggested) {
            Some(ContextValue::String(text)) => near(text).then(|| ContextValue::String(text.clone())),
            Some(ContextValue::Strings(texts)) => {
                let kept: Vec<_> = texts.iter().filter(|text| near(text)).cloned().collect();
                (!kept.is_empty()).then_some(ContextValue::Strings(kept))
            }
            _ => continue,
        };
        match kept {
            Some(kept) => error.insert(suggested, kept),
            None => error.remove(suggested),
        };
    }
    error
}

/// The name of an option without its dashes and its value.
fn name(text: &str) -> &str {
    let text = text.trim_start_matches('-');
    text.split(['=', ' ']).next().unwrap_or(text)
}
