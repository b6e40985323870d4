//! A canvas of braille dots: two by four in each character of a terminal.
//!
//! A character has one colour: that of the series drawn last in it. Marks are whole characters that replace the dots.

use super::frame::{Place, cell};
use crate::Terminal;

/// A canvas for dots, rendered as text.
pub(super) struct Canvas {
    columns: usize,
    rows: usize,
    cells: Vec<Character>,
}

#[derive(Clone, Copy, Default)]
struct Character {
    dots: u8,
    over: Option<char>,
    ink: Ink,
}

/// The colour of a character.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum Ink {
    /// For limits.
    #[default]
    Dim,
    /// The colour of the series with this index.
    Series(usize),
}

/// The bit of each dot in Unicode's braille characters, by column and row from the top.
const DOTS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
/// The braille character without dots.
const BLANK: u32 = 0x2800;

impl Canvas {
    /// An empty canvas of `columns` by `rows` characters.
    pub(super) fn new(columns: usize, rows: usize) -> Self {
        Self {
            columns,
            rows,
            cells: vec![Character::default(); columns * rows],
        }
    }

    /// Sets the dot at `place`.
    pub(super) fn dot(&mut self, place: Place, ink: Ink) {
        let (x, y) = self.dot_at(place);
        self.set(x, y, ink);
    }

    /// Draws a line between two places.
    pub(super) fn line(&mut self, from: Place, to: Place, ink: Ink) {
        let ((x0, y0), (x1, y1)) = (self.dot_at(from), self.dot_at(to));
        let steps = x0.abs_diff(x1).max(y0.abs_diff(y1));
        for step in 0..=steps {
            self.set(between(x0, x1, step, steps), between(y0, y1, step, steps), ink);
        }
    }

    /// Replaces the character at `place` by a mark.
    pub(super) fn over(&mut self, place: Place, mark: char, ink: Ink) {
        let (x, y) = self.dot_at(place);
        let cell = &mut self.cells[y / 4 * self.columns + x / 2];
        (cell.over, cell.ink) = (Some(mark), ink);
    }

    /// Draws a dashed horizontal line at the height `y`, where nothing else is drawn.
    pub(super) fn limit(&mut self, y: f64) {
        let row = self.dot_at((0.0, y)).1 / 4;
        for cell in &mut self.cells[row * self.columns..(row + 1) * self.columns] {
            if cell.dots == 0 && cell.over.is_none() {
                cell.over = Some('╌');
            }
        }
    }

    /// Renders the lines of text, from the top.
    pub(super) fn lines(&self, terminal: Terminal) -> Vec<String> {
        let line = |cells: &[Character]| {
            let mut line = String::new();
            for stretch in cells.chunk_by(|a, b| a.ink == b.ink) {
                let text: String = stretch.iter().map(|cell| cell.shown()).collect();
                line += &match stretch[0].ink {
                    _ if text.trim().is_empty() => text,
                    Ink::Dim => terminal.dim(&text),
                    Ink::Series(index) => terminal.series(index, &text),
                };
            }
            line
        };
        self.cells.chunks(self.columns.max(1)).map(line).collect()
    }

    /// The dot at `place`, counted from the top left.
    fn dot_at(&self, place: Place) -> (usize, usize) {
        (cell(place.0, self.columns * 2), cell(1.0 - place.1, self.rows * 4))
    }

    fn set(&mut self, x: usize, y: usize, ink: Ink) {
        let cell = &mut self.cells[y / 4 * self.columns + x / 2];
        cell.dots |= DOTS[x % 2][y % 4];
        cell.ink = ink;
    }
}

impl Character {
    fn shown(self) -> char {
        match self.over {
            Some(mark) => mark,
            None if self.dots == 0 => ' ',
            None => char::from_u32(BLANK + u32::from(self.dots)).unwrap_or(' '),
        }
    }
}

/// Interpolates from `a` to `b` at `step` of `steps`.
fn between(a: usize, b: usize, step: usize, steps: usize) -> usize {
    let steps = steps.max(1);
    if b >= a {
        a + ((b - a) * step + steps / 2) / steps
    } else {
        a - ((a - b) * step + steps / 2) / steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_from_corner_to_corner_touches_both() {
        let mut canvas = Canvas::new(4, 2);
        canvas.line((0.0, 0.0), (1.0, 1.0), Ink::Series(0));
        assert_eq!(canvas.lines(Terminal::plain(80)), ["  ⡠⠊", "⡠⠊  "]);
    }

    #[test]
    fn a_limit_does_not_hide_a_curve() {
        let mut canvas = Canvas::new(3, 1);
        canvas.dot((0.5, 0.5), Ink::Series(0));
        canvas.limit(0.5);
        assert_eq!(canvas.lines(Terminal::plain(80)), ["╌⠠╌"]);
    }
}
