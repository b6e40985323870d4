//! A page for the terminal.

use super::{Block, Page, Tone};
use crate::{
    Cell, Column, Table, Terminal,
    terminal::{clean, fill, width, wrap},
};

impl Page {
    /// Renders the page as text for `terminal`.
    pub fn to_text(&self, terminal: Terminal) -> String {
        let columns = terminal.width();
        let title = wrap(&clean(&self.title), columns);
        let mut parts = vec![terminal.bold(&title) + "\n"];
        if let Some(verdict) = &self.verdict {
            let sign = match verdict.tone {
                Tone::Good => "✓",
                Tone::Neutral => "•",
                Tone::Caution => "!",
                Tone::Bad => "✗",
            };
            parts.push(wrap(&format!("{sign} {}", clean(&verdict.text)), columns) + "\n");
        }
        if !self.figures.is_empty() {
            parts.push(self.figures_text(terminal));
        }
        for section in &self.sections {
            if !section.title.is_empty() {
                parts.push(heading(&section.title, terminal));
            }
            parts.extend(section.blocks.iter().map(|block| match block {
                Block::Prose(prose) => wrap(prose, columns) + "\n",
                Block::Table(table) => table.to_text(terminal),
                Block::Chart(chart) => chart.to_text(terminal),
                Block::Surface(surface) => surface.to_text(terminal),
            }));
        }
        if !self.assumptions.is_empty() {
            parts.push(heading("Assumptions and sources", terminal));
            parts.push(self.assumptions_table().to_text(terminal));
        }
        if !self.facts.is_empty() {
            let fact = |name: &str, value: &str| wrap(&clean(&format!("{name}: {value}")), columns);
            let facts = self.facts.iter().map(|f| terminal.dim(&fact(&f.name, &f.value)));
            parts.push(facts.collect::<Vec<_>>().join("\n") + "\n");
        }
        parts.join("\n")
    }

    /// The assumptions as a table, also used for CSV and JSON.
    pub fn assumptions_table(&self) -> Table {
        let mut table = Table::new(
            "",
            [
                Column::text("what"),
                Column::mixed("value"),
                Column::text("formula"),
                Column::text("source"),
                Column::text("confidence"),
            ],
        );
        for assumption in &self.assumptions {
            let text = |text: &str| (!text.is_empty()).then_some(text).into();
            table.push([
                text(&assumption.what),
                assumption.value.clone(),
                text(&assumption.formula),
                text(&assumption.source),
                assumption.confidence.word().into(),
            ]);
        }
        table
    }

    /// The key figures, one to a line.
    fn figures_text(&self, terminal: Terminal) -> String {
        let value = |cell: &Cell| clean(&cell.show());
        let widest = |of: &dyn Fn(&super::PageFigure) -> String| {
            self.figures.iter().map(|figure| width(&of(figure))).max().unwrap_or(0)
        };
        let label_width = widest(&|figure| clean(&figure.label));
        let value_width = widest(&|figure| value(&figure.value));
        let mut text = String::new();
        for figure in &self.figures {
            let (label, value) = (clean(&figure.label), value(&figure.value));
            let pad = " ".repeat(label_width - width(&label) + value_width - width(&value));
            let line = format!("  {label}  {pad}{}", terminal.bold(&value));
            let used = 4 + label_width + value_width;
            let note = clean(&figure.note);
            text += line.trim_end();
            let fits = used + 2 + width(&note) <= terminal.width();
            match note.as_str() {
                "" => {}
                note if fits => {
                    text += "  ";
                    text += &terminal.dim(note);
                }
                // Below the value.
                note => {
                    text.push('\n');
                    text += &terminal.dim(fill(note, "    ", "    ", terminal.width()).trim_end());
                }
            }
            text.push('\n');
        }
        text
    }
}

/// A heading with a line under it.
fn heading(title: &str, terminal: Terminal) -> String {
    let title = wrap(&clean(title), terminal.width());
    let line = "─".repeat(title.lines().map(width).max().unwrap_or(0));
    format!("{}\n{}\n", terminal.bold(&title), terminal.dim(&line))
}
