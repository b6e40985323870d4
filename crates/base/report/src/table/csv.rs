//! Renders a table as CSV, quoted according to RFC 4180.
//!
//! Numbers are plain and in base units; the heading of a column ends in its unit. A missing value is an empty field.
//! Text that a spreadsheet would run as a formula gets a leading apostrophe. Control characters are escaped; JSON has
//! the exact bytes.

use straightway_core::text::shown;

use super::{Align, Cell, Column, Field, Table, cell, json_number, unit_name};

impl Table {
    /// Renders the table as CSV: a line of headings and a line per row, each ended by CR LF.
    ///
    /// A list of properties (a column of names, and columns whose cells have different units) is transposed: each
    /// property becomes a column whose heading ends in its unit.
    pub fn to_csv(&self) -> String {
        if let Some(transposed) = self.transposed() {
            return transposed.to_csv();
        }
        let fields = self.fields();
        let mut csv = line(fields.iter().map(|field| field.key.clone()));
        for row in &self.rows {
            csv += &line(fields.iter().map(|field| value(field, row)));
        }
        csv
    }
}

impl Table {
    /// The transposed table; `None` if the table is not a list of properties.
    fn transposed(&self) -> Option<Self> {
        let (names, columns) = self.columns.split_first()?;
        let mixed = |column: &Column| column.unit.is_none() && column.align == Align::Right;
        let lists = !columns.is_empty() && columns.iter().all(mixed) && names.align == Align::Left;
        // One unit per property: all its numbers must have the same unit.
        let unit = |row: &Vec<Cell>| {
            let mut units = row.iter().skip(1).filter_map(Cell::unit);
            let first = units.next();
            units.all(|unit| Some(unit) == first).then(|| first.cloned())
        };
        let units: Option<Vec<_>> = self.rows.iter().map(unit).collect();
        let units = units.filter(|units| lists && units.iter().any(Option::is_some))?;
        let name = |row: &Vec<Cell>| match cell(row, 0) {
            Cell::Text(text) => text.trim().to_owned(),
            other => other.show(),
        };
        let headings = self.rows.iter().zip(units).map(|(row, unit)| Column {
            unit,
            ..Column::mixed(name(row))
        });
        let first = Column::text(if names.name.is_empty() { "of" } else { &names.name });
        let mut transposed = Self::new(&*self.title, std::iter::once(first).chain(headings));
        for (i, column) in columns.iter().enumerate() {
            let values = self.rows.iter().map(|row| cell(row, i + 1).clone());
            transposed.push(std::iter::once(Cell::from(&*column.name)).chain(values));
        }
        Some(transposed)
    }
}

fn line(values: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = values.map(|value| quote(&value)).collect();
    quoted.join(",") + "\r\n"
}

fn value(field: &Field, row: &[Cell]) -> String {
    match cell(row, field.column) {
        cell if field.is_unit => cell.unit().map(unit_name).unwrap_or_default(),
        Cell::Number { value, .. } if value.is_finite() => json_number(*value).to_string(),
        Cell::Text(text) if text.starts_with(['=', '+', '-', '@', '\t', '\r']) => {
            format!("'{}", shown(text))
        }
        Cell::Text(text) => shown(text).into_owned(),
        Cell::Number { .. } | Cell::Missing => String::new(),
    }
}

fn quote(value: &str) -> String {
    if value.contains(['"', ',', '\r', '\n']) || value.trim() != value {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cell, Column, Table, table::tests::sample};
    use proptest::prelude::*;
    use straightway_core::{Rate, Seconds, text::shown};

    #[test]
    fn a_list_of_properties_is_transposed_with_units_in_the_headings() {
        let columns = [Column::text(""), Column::mixed("standard"), Column::mixed("direct")];
        let mut table = Table::new("", columns);
        table.push(["stored after".into(), Seconds(3.0).into(), Seconds(2.0).into()]);
        table.push(["  rate".into(), Rate(1e9).into(), Cell::Missing]);
        table.push(["fits".into(), "yes".into(), "no".into()]);
        let csv = "of,stored_after_s,rate_bytes_per_s,fits\r\nstandard,3,1000000000,yes\r\ndirect,2,,no\r\n";
        assert_eq!(table.to_csv(), csv);
    }

    #[test]
    fn numbers_are_plain_and_text_is_quoted() {
        insta::assert_snapshot!(sample().to_csv().replace('\r', "␍"));
    }

    #[test]
    fn a_spreadsheet_formula_gets_an_apostrophe() {
        let mut table = Table::new("", [Column::text("name")]);
        table.push(["=1+1".into()]);
        assert_eq!(table.to_csv(), "name\r\n'=1+1\r\n");
    }

    /// Parses records according to RFC 4180.
    fn parse(csv: &str) -> Vec<Vec<String>> {
        let (mut records, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
        let (mut quoted, mut chars) = (false, csv.chars().peekable());
        while let Some(c) = chars.next() {
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => record.push(std::mem::take(&mut field)),
                '\r' if !quoted && chars.peek() == Some(&'\n') => {
                    chars.next();
                    record.push(std::mem::take(&mut field));
                    records.push(std::mem::take(&mut record));
                }
                c => field.push(c),
            }
        }
        records
    }

    proptest! {
        #[test]
        fn any_text_comes_back_from_csv_as_it_is_shown(texts in prop::collection::vec("[^=+@\\-\t\r]\\PC{0,8}[\",\r\n]?.?", 3)) {
            let mut table = Table::new("", ["a", "b", "c"].map(Column::text));
            table.push(texts.iter().map(|text| text.as_str().into()));
            let texts = texts.iter().map(|text| shown(text).into_owned()).collect();
            prop_assert_eq!(parse(&table.to_csv()), [vec!["a".to_owned(), "b".into(), "c".into()], texts]);
        }
    }
}
