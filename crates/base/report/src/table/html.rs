//! Renders a table as an HTML fragment, styled by its page.

use std::fmt::Write;

use super::{Align, Cell, Table, cell};
use crate::markup::escape;

/// The most columns that fit a screen at the usual distance.
const COLUMNS_USUAL: usize = 8;

impl Table {
    /// Renders the table as HTML: a `figure` that scrolls sideways in a narrow window.
    pub fn to_html(&self) -> String {
        // A table of many columns is set closer, so that the last ones, often the answer, are on the screen.
        let many = if self.columns.len() > COLUMNS_USUAL {
            " many"
        } else {
            ""
        };
        let mut html = format!("<figure class=\"table{many}\">");
        if !self.title.is_empty() {
            let _ = write!(html, "<figcaption>{}</figcaption>", escape(&self.title));
        }
        html += "<div class=\"scroll\"><table><thead><tr>";
        for column in &self.columns {
            let (class, name) = (class(column.align, false), escape(&column.name));
            let _ = write!(html, "<th scope=\"col\"{class}>{name}</th>");
        }
        html += "</tr></thead><tbody>";
        for row in &self.rows {
            html += "<tr>";
            for (index, column) in self.columns.iter().enumerate() {
                let cell = cell(row, index);
                let class = class(column.align, *cell == Cell::Missing);
                let _ = write!(html, "<td{class}>{}</td>", escape(&cell.show()));
            }
            html += "</tr>";
        }
        if self.rows.is_empty() {
            let span = self.columns.len().max(1);
            let _ = write!(html, "<tr><td class=\"missing\" colspan=\"{span}\">no data</td></tr>");
        }
        html += "</tbody></table></div></figure>\n";
        html
    }
}

fn class(align: Align, missing: bool) -> &'static str {
    match (align, missing) {
        (Align::Right, false) => " class=\"number\"",
        (Align::Right, true) => " class=\"number missing\"",
        (Align::Left, true) => " class=\"missing\"",
        (Align::Left, false) => "",
    }
}

#[cfg(test)]
mod tests {
    use crate::{Table, table::tests::sample};

    #[test]
    fn numbers_lean_right_and_text_is_escaped() {
        insta::assert_snapshot!(sample().to_html().replace("<tr>", "\n<tr>"));
    }

    #[test]
    fn an_empty_table_says_so() {
        assert!(Table::default().to_html().contains("no data"));
    }
}
