//! The common parts of SVG pictures: the style, the frame and the title.
//!
//! Pictures have a fixed width in pixels and are scaled by the viewer. A page contains the style once for all its
//! pictures; a standalone picture contains its own.

use std::fmt::Write;

use crate::{
    markup::{escape, px},
    terminal::clean,
};

/// The style of every picture. A page contains it once; a standalone picture contains its own.
pub(crate) const STYLE: &str = include_str!("picture.css");

/// The width of a picture.
pub(crate) const WIDTH: f64 = 760.0;

/// The style element of a standalone picture.
pub(crate) fn own_style() -> String {
    format!("<style>{STYLE}</style>")
}

/// Opens a picture, with a visible title, and a title and a description for screen readers.
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

/// A picture without data.
pub(crate) fn nothing(title: &str, style: &str) -> String {
    let mut svg = head(title, "There is no data to show.", 120.0, style);
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"70\" text-anchor=\"middle\">no data</text></svg>",
        WIDTH / 2.0
    );
    svg
}
