//! Text inside HTML and SVG.
//!
//! Every string that is not a constant of this crate passes through [`escape`], in element text and in attribute
//! values. The attack tests in `page.rs` put a script into every field.

use straightway_core::text::is_unsafe;

/// Escapes `text` for element text and for quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            // XML cannot represent some of these; others would let a name look like another one.
            c if is_unsafe(c) => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    safe
}

/// Formats a coordinate with one decimal: a tenth of a pixel is not visible.
pub(crate) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_from_text_or_attribute() {
        assert_eq!(
            escape("<a b=\"c\" d='e'>&"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;"
        );
        assert_eq!(escape("a\u{0}b\u{1b}c\u{202e}"), r"a\u{0}b\u{1b}c\u{202e}");
    }
}
