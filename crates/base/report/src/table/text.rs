//! Renders a table for a terminal.
//!
//! In a narrow terminal columns shrink and their text wraps. Only headings are bold.

use comfy_table::{Attribute, Cell as Shown, CellAlignment, ContentArrangement, LineStyle, TableStyle};

use super::{Align, Table, cell};
use crate::{Terminal, terminal::clean};

/// One line under the headings, and no other lines.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

impl Table {
    /// Renders the table as text for `terminal`.
    pub fn to_text(&self, terminal: Terminal) -> String {
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
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &terminal.bold(&clean(&self.title));
            text.push('\n');
        }
        if self.columns.is_empty() || self.rows.is_empty() {
            text += "no data\n";
            return text;
        }
        for line in grid.lines() {
            text += line.trim_end();
            text.push('\n');
        }
        text
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
    fn a_narrow_terminal_wraps_the_cells() {
        let text = sample().to_text(Terminal::plain(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
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
