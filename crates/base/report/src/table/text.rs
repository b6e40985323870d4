//! Renders a table for a terminal.
//!
//! A column is never narrower than its longest word, and a column of numbers never wraps. In a narrow terminal the text
//! of the other columns wraps between words. If even that does not fit, each row becomes a block of lines, one for each
//! column. Only headings are bold.

use comfy_table::{
    Attribute, Cell as Shown, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width,
};

use super::{Align, Table, cell};
use crate::{
    Terminal,
    terminal::{clean, fill, fit, width, wrap},
};

/// One line under the headings, and no other lines.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// The blanks of a column: one on each side.
const PADDING: usize = 2;

/// The shortest length at which a word, such as a path, may be broken in a column.
const BREAKABLE_MIN: usize = 24;

impl Table {
    /// Renders the table as text for `terminal`.
    pub fn to_text(&self, terminal: Terminal) -> String {
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &terminal.bold(&wrap(&self.title, terminal.width()));
            text.push('\n');
        }
        if self.columns.is_empty() || self.rows.is_empty() {
            text += "no data\n";
            return text;
        }
        let least = self.least_widths(terminal.width());
        let needed: usize = least.iter().map(|width| width + PADDING).sum();
        if needed > terminal.width() && self.columns.len() > 1 {
            text += &self.records(terminal);
        } else {
            text += &self.grid(terminal, &least);
        }
        text
    }

    /// The width that each column needs so that no word and no number is broken.
    fn least_widths(&self, columns: usize) -> Vec<usize> {
        let breakable = BREAKABLE_MIN.max(columns / 3);
        let word = |text: &str| text.split_whitespace().map(width).max().unwrap_or(0).min(breakable);
        let of = |(index, column): (usize, &super::Column)| {
            let cells = self.rows.iter().map(|row| clean(&cell(row, index).show()));
            let widest = cells.map(|text| match column.align {
                Align::Left => word(&text),
                Align::Right => width(&text).min(breakable),
            });
            widest.max().unwrap_or(0).max(word(&clean(&column.name)))
        };
        self.columns.iter().enumerate().map(of).collect()
    }

    /// A line for each row.
    fn grid(&self, terminal: Terminal, least: &[usize]) -> String {
        let mut grid = comfy_table::Table::new();
        grid.force_no_tty()
            .load_style(STYLE)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(terminal.width()).unwrap_or(u16::MAX));
        if terminal.colour {
            grid.enforce_styling();
        }
        let shown = |text: &str, align| Shown::new(clean(text)).set_alignment(side(align));
        let heading = |text: &str, align| shown(text, align).add_attribute(Attribute::Bold);
        grid.set_header(self.columns.iter().map(|column| heading(&column.name, column.align)));
        for row in &self.rows {
            let cells = self.columns.iter().enumerate();
            grid.add_row(cells.map(|(i, column)| shown(&cell(row, i).show(), column.align)));
        }
        for (column, least) in grid.column_iter_mut().zip(least) {
            let least = u16::try_from(least + PADDING).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
        let lines = grid.lines().map(|line| line.trim_end().to_owned() + "\n");
        lines.collect()
    }

    /// A block of lines for each row: the heading and the value of each column.
    fn records(&self, terminal: Terminal) -> String {
        let columns = terminal.width();
        let names: Vec<String> = self.columns.iter().map(|column| clean(&column.name)).collect();
        let widest = names.iter().map(|name| width(name)).max().unwrap_or(0);
        let name_width = widest.min(columns / 2 - PADDING);
        let record = |row: &Vec<super::Cell>| {
            let mut text = String::new();
            for (index, name) in names.iter().enumerate() {
                let name = fit(name, name_width);
                let pad = " ".repeat(name_width - width(&name) + PADDING);
                let hang = " ".repeat(name_width + PADDING);
                let value = fill(&clean(&cell(row, index).show()), &hang, &hang, columns);
                let line = terminal.bold(&name) + &pad + value.trim_start();
                text += line.trim_end();
                text.push('\n');
            }
            text
        };
        self.rows.iter().map(record).collect::<Vec<_>>().join("\n")
    }
}

fn side(align: Align) -> CellAlignment {
    match align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cell, Column, Table, Terminal, table::tests::sample};
    use proptest::prelude::*;

    #[test]
    fn a_table_fits_eighty_columns() {
        insta::assert_snapshot!(sample().to_text(Terminal::plain(80)));
    }

    #[test]
    fn a_narrow_terminal_wraps_between_words_and_a_narrower_one_gets_a_line_for_each_column() {
        for columns in [100, 80, 72, 60, 40, 24] {
            let text = sample().to_text(Terminal::plain(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            for whole in ["6.87 GB/s", "46.5 MB/s", "102 µs", "throughput", "bandwidth", "4 MiB"] {
                assert!(text.contains(whole), "{whole} is broken at {columns}:\n{text}");
            }
        }
        insta::assert_snapshot!(sample().to_text(Terminal::plain(40)));
    }

    #[test]
    fn colour_is_used_only_where_it_is_allowed() {
        let colour = Terminal {
            columns: 80,
            colour: true,
        };
        assert!(sample().to_text(colour).contains('\x1b'));
        assert!(!sample().to_text(Terminal::plain(80)).contains('\x1b'));
    }

    #[test]
    fn a_table_without_rows_says_so() {
        assert_eq!(
            Table::new("t", [Column::text("a")]).to_text(Terminal::plain(80)),
            "t\nno data\n"
        );
    }

    proptest! {
        #[test]
        fn any_text_renders_at_any_width(text in any::<String>(), columns in 0usize..200) {
            let mut table = Table::new(text.clone(), [Column::text(text.clone())]);
            table.push([Cell::from(text)]);
            let shown = table.to_text(Terminal::plain(columns));
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
