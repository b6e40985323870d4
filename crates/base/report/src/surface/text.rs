//! Renders a surface for a terminal, as a heat map of characters.
//!
//! With colour, the shade is the background; without, a block character. If the cells are wide enough, each shows its
//! value.

use super::{Line, Sheet, Surface};
use crate::{
    Terminal, ValueRange,
    colour::{is_light, ramp},
    terminal::{clean, fit, width},
};

/// Shades without colour, from lowest to highest.
const SHADES: [&str; 5] = ["·", "░", "▒", "▓", "█"];
/// The most rows of a map; more would not fit a screen.
const ROWS_MAX: usize = 24;

impl Surface {
    /// Renders the surface as heat maps for `terminal`.
    pub fn to_text(&self, terminal: Terminal) -> String {
        let columns = terminal.width();
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &(terminal.bold(&fit(&clean(&self.title), columns)) + "\n");
        }
        let Some(map) = Map::new(self, columns) else {
            return text + "no data\n";
        };
        for sheet in &self.sheets {
            let name = if sheet.name.is_empty() {
                &self.z.label
            } else {
                &sheet.name
            };
            text += &(terminal.bold(&fit(&clean(name), columns)) + "\n");
            text += &map.draw(sheet, terminal);
        }
        text + &map.legend(terminal)
    }
}

struct Map<'a> {
    surface: &'a Surface,
    xs: Vec<Line>,
    ys: Vec<Line>,
    heights: ValueRange,
    /// The width of a cell in characters.
    cell: usize,
    margin: usize,
    /// Whether each cell shows its value.
    values: bool,
}

impl<'a> Map<'a> {
    fn new(surface: &'a Surface, columns: usize) -> Option<Self> {
        let heights = surface.heights()?;
        let ys = Surface::lines(&surface.y, &surface.ys, ROWS_MAX);
        let margin = ys.iter().map(|line| width(&surface.y.unit.show(line.value))).max()? + 1;
        let room = columns.saturating_sub(margin).max(2);
        let xs = Surface::lines(&surface.x, &surface.xs, room / 2);
        let all = surface
            .sheets
            .iter()
            .flat_map(|sheet| sheet.zs.iter().flatten().flatten());
        // The widest of the first 4096 values, to bound the time for a grid of millions.
        let widest = all.take(4096).map(|&z| width(&surface.z.unit.show(z))).max()?;
        if xs.is_empty() {
            return None;
        }
        let values = xs.len() * (widest + 2) <= room;
        let cell = if values {
            (room / xs.len()).min(widest + 4)
        } else {
            room / xs.len()
        };
        Some(Self {
            surface,
            xs,
            ys,
            heights,
            cell: cell.clamp(1, 12),
            margin,
            values,
        })
    }

    fn draw(&self, sheet: &Sheet, terminal: Terminal) -> String {
        let mut text = terminal.dim(&fit(&clean(&self.surface.y.label), self.margin + 60)) + "\n";
        for y in self.ys.iter().rev() {
            let label = self.surface.y.unit.show(y.value);
            let pad = " ".repeat(self.margin - 1 - width(&label));
            text += &terminal.dim(&format!("{pad}{label} "));
            for x in &self.xs {
                text += &self.shade(sheet.at(x.index, y.index), terminal);
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text += &terminal.dim(self.bottom().trim_end());
        let label = clean(&self.surface.x.label);
        let across = (self.xs.len() * self.cell).saturating_sub(width(&label)) / 2;
        text += &terminal.dim(&format!("\n{}{label}\n", " ".repeat(self.margin + across)));
        text
    }

    /// One cell of the map.
    fn shade(&self, z: Option<f64>, terminal: Terminal) -> String {
        let z = z.filter(|&z| self.surface.z.scale.admits(z));
        let Some(z) = z else {
            return centred(if self.values { "–" } else { " " }, self.cell);
        };
        let share = self.surface.z.scale.place(self.heights, z).clamp(0.0, 1.0);
        if terminal.colour {
            let shown = if self.values {
                self.surface.z.unit.show(z)
            } else {
                String::new()
            };
            let colour = ramp(share);
            return terminal.on(colour, is_light(colour), &centred(&shown, self.cell));
        }
        if self.values {
            // The last character is a shade, so that the shape is visible.
            let shown = format!("{} {}", self.surface.z.unit.show(z), shade(share));
            return centred(&shown, self.cell);
        }
        shade(share).repeat(self.cell)
    }

    /// The labels along the bottom, without overlaps.
    fn bottom(&self) -> String {
        let mut line = " ".repeat(self.margin);
        for (i, x) in self.xs.iter().enumerate() {
            let label = self.surface.x.unit.show(x.value);
            let middle = self.margin + i * self.cell + self.cell / 2;
            let start = middle.saturating_sub(width(&label) / 2).max(self.margin);
            let used = width(&line);
            if used == self.margin || start > used {
                line += &" ".repeat(start.saturating_sub(used));
                line += &label;
            }
        }
        line
    }

    fn legend(&self, terminal: Terminal) -> String {
        let unit = &self.surface.z.unit;
        let (lo, hi) = (unit.show(self.heights.lo()), unit.show(self.heights.hi()));
        let steps = if terminal.colour { 20 } else { SHADES.len() };
        let step = |i: usize| {
            let share = i as f64 / (steps - 1) as f64;
            if terminal.colour {
                terminal.on(ramp(share), false, " ")
            } else {
                shade(share).repeat(3)
            }
        };
        let bar: String = (0..steps).map(step).collect();
        format!("{}: {lo} {bar} {hi}\n", clean(&self.surface.z.label))
    }
}

fn shade(share: f64) -> &'static str {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1")]
    let index = (share * SHADES.len() as f64) as usize;
    SHADES[index.min(SHADES.len() - 1)]
}

fn centred(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    let room = columns - width(&text);
    format!("{}{text}{}", " ".repeat(room - room / 2), " ".repeat(room / 2))
}
