//! The terminal that text is laid out for.
//!
//! The caller gives its width and whether it supports colour, because this crate does not read the environment. All
//! text is escaped first: a series name from a scenario must not be able to move the cursor.

use straightway_core::text::shown;
use unicode_width::UnicodeWidthStr;

/// The terminal's width and colour support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Characters per line; 0 if unknown.
    pub columns: usize,
    /// Whether colours may be used.
    pub colour: bool,
}

/// The assumed width of an unknown terminal.
const COLUMNS_UNKNOWN: usize = 80;
/// The smallest layout width. In a narrower terminal text runs over the edge.
const COLUMNS_MIN: usize = 24;
/// The largest layout width. A wider plot would only be stretched.
const COLUMNS_MAX: usize = 240;

/// Series colours from the common 256-colour palette, legible on black and on white.
const SERIES: [u8; 8] = [33, 208, 35, 161, 98, 37, 170, 142];
/// Series marks, which distinguish series without colour.
const MARKERS: [char; 8] = ['●', '▲', '■', '◆', '○', '△', '□', '◇'];

impl Terminal {
    /// A terminal of `columns` without colour.
    pub fn plain(columns: usize) -> Self {
        Self { columns, colour: false }
    }

    /// The width to lay out for.
    pub(crate) fn width(self) -> usize {
        match self.columns {
            0 => COLUMNS_UNKNOWN,
            columns => columns.clamp(COLUMNS_MIN, COLUMNS_MAX),
        }
    }

    /// Lines of `text`, each wrapped between words if it is wider than the terminal. A line that continues another one
    /// is indented two columns further. Blanks inside a line that fits are kept.
    pub fn wrapped(self, text: &str) -> String {
        let columns = self.width();
        let line = |line: &str| {
            if width(line) <= columns {
                return format!("{line}\n");
            }
            let indent = line.len() - line.trim_start().len();
            fill(line.trim_start(), &" ".repeat(indent), &" ".repeat(indent + 2), columns)
        };
        text.lines().map(line).collect()
    }

    /// `text` in bold.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// `text` in yellow, for warnings.
    pub fn caution(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// `text` dimmed.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// `text` in the colour of the series at `index`.
    pub(crate) fn series(self, index: usize, text: &str) -> String {
        self.paint(&format!("38;5;{}", SERIES[index % SERIES.len()]), text)
    }

    /// `text` on a background of `rgb`, in black or white, whichever is legible.
    pub(crate) fn on(self, (r, g, b): (u8, u8, u8), dark_text: bool, text: &str) -> String {
        let ink = if dark_text { "30" } else { "97" };
        self.paint(&format!("{ink};48;2;{r};{g};{b}"), text)
    }

    fn paint(self, codes: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{codes}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The mark of the series at `index`.
pub(crate) fn marker(index: usize) -> char {
    MARKERS[index % MARKERS.len()]
}

/// `text` with control characters escaped.
pub(crate) fn clean(text: &str) -> String {
    shown(text).into_owned()
}

/// The width of `text` in cells.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// `text` truncated to `columns` cells, with an ellipsis if it was cut.
pub(crate) fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        if width(&cut) + 1 > columns {
            cut.pop();
            break;
        }
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// `text` in lines of at most `columns` cells, with a line feed after each: the first begins with `first`, the others
/// with `others`. Lines break between words; a word that is longer than a line is not broken.
pub(crate) fn fill(text: &str, first: &str, others: &str, columns: usize) -> String {
    let mut lines = String::from(first);
    let mut used = width(first);
    let mut is_begin = true;
    for word in text.split_whitespace() {
        if !is_begin && used + 1 + width(word) > columns {
            lines.push('\n');
            lines += others;
            used = width(others);
            is_begin = true;
        }
        if !is_begin {
            lines.push(' ');
            used += 1;
        }
        lines += word;
        used += width(word);
        is_begin = false;
    }
    lines.push('\n');
    lines
}

/// `text` wrapped between words into lines of at most `columns` cells. Longer words are not broken.
pub(crate) fn wrap(text: &str, columns: usize) -> String {
    let lines: String = text.lines().map(|line| fill(&clean(line), "", "", columns)).collect();
    lines.trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("a\x1b[2Jb\r\nc"), r"a\u{1b}[2Jb\r\nc");
    }

    #[test]
    fn text_is_cut_and_wrapped_by_the_cells_it_takes() {
        assert_eq!(fit("throughput", 6), "throu…");
        assert_eq!(fit("吞吐量", 4), "吞…");
        assert_eq!(fit("x", 0), "");
        assert_eq!(wrap("the straight way is short", 12), "the straight\nway is short");
    }

    #[test]
    fn a_long_line_continues_further_right_and_a_short_one_is_kept() {
        let text = Terminal::plain(30).wrapped("  a  table of  blanks\n  1 I/O by 1 lane of io_uring; ring 4 MiB\n");
        assert_eq!(
            text,
            "  a  table of  blanks\n  1 I/O by 1 lane of io_uring;\n    ring 4 MiB\n"
        );
    }

    #[test]
    fn an_unknown_width_is_eighty_and_a_tiny_one_is_raised() {
        assert_eq!(Terminal::plain(0).width(), 80);
        assert_eq!(Terminal::plain(1).width(), COLUMNS_MIN);
    }
}
