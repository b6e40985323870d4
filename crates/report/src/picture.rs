//! What every SVG picture has in common: its style, its frame, and its title for eyes and ears.
//!
//! Pictures are drawn in pixels of a fixed width and scaled by whoever shows them. A page holds the
//! style once for all its pictures; a picture that stands alone brings its own.

use std::fmt::Write;

use crate::{
    markup::{escape, px},
    terminal::clean,
};

/// The style of every picture this crate draws; a page has it once, a picture alone has its own.
pub(crate) const STYLE: &str = include_str!("picture.css");

/// The width of a picture.
pub(crate) const WIDTH: f64 = 760.0;

/// The style for a picture that stands alone.
pub(crate) fn own_style() -> String {
    format!("<style>{STYLE}</style>")
}

/// Opens a picture: its title for eyes and for screen readers, and what it shows in words.
pub(crate) fn head(title: &str, description: &str, height: f64, style: &str) -> String {
    let (w, h, title) = (px(WIDTH), px(height), escape(&clean(title)));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"sw\" viewBox=\"0 0 {w} {h}\" role=\"img\">\
         <title>{title}</title><desc>{}</desc>{style}\
         <rect class=\"paper\" width=\"{w}\" height=\"{h}\"/>\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n",
        escape(&clean(description)),
    )
}

/// A picture that says there is nothing to show.
pub(crate) fn nothing(title: &str, style: &str) -> String {
    let mut svg = head(title, "There is no data to show.", 120.0, style);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"70\" text-anchor=\"middle\">no data</text></svg>",
        WIDTH / 2.0
    );
    svg
}
