//! A table of typed cells, for people and for programs.
//!
//! A cell holds its number in the base unit; only the renderer rounds it. The terminal and the page show `3.21 GB/s`;
//! CSV and JSON have `3214000000` under a column whose name ends in its unit. A column without a unit may hold text, or
//! quantities of different units (a list of properties): then CSV and JSON have the units in a separate column.
//!
//! A table is for tens or thousands of rows. Millions of values belong in a [`Chart`](crate::Chart).

mod csv;
mod html;
mod text;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use straightway_core::{Bytes, Rate, Seconds};

use crate::{
    Unit,
    unit::{MISSING, slug},
};

/// Rows of typed cells under named columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The title; empty if the context makes it clear.
    pub title: String,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows, from top to bottom.
    pub rows: Vec<Vec<Cell>>,
}

/// A column: its name, unit and alignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The unit of the numbers; `None` for text, or if each cell has its own.
    pub unit: Option<Unit>,
    /// The alignment of its cells.
    pub align: Align,
}

/// The alignment of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// Left, for text.
    Left,
    /// Right, for numbers.
    Right,
}

/// One value of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Unknown, not measured, or not applicable.
    #[default]
    Missing,
    /// Text.
    Text(String),
    /// A number in the base unit of `unit`. Bytes are exact up to 2^53, which is 9 PB.
    Number {
        /// The number; a number that is not finite is missing.
        #[serde(deserialize_with = "crate::chart::null_is_nan")]
        value: f64,
        /// The unit.
        unit: Unit,
    },
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            title: title.into(),
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// Panics if the row does not have one cell per column, or if a number's unit differs from its column's. Both are
    /// bugs in the caller.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let row: Vec<_> = row.into_iter().collect();
        assert_eq!(
            row.len(),
            self.columns.len(),
            "a row of `{}` has a cell per column",
            self.title
        );
        for (cell, column) in row.iter().zip(&self.columns) {
            let fits = column.unit.is_none() || cell.unit().is_none_or(|u| column.unit.as_ref() == Some(u));
            assert!(fits, "{cell:?} does not belong in the column `{}`", column.name);
        }
        self.rows.push(row);
    }

    /// Renders the rows as JSON objects: numbers in base units, under names that end in the unit.
    pub fn to_json(&self) -> Value {
        let fields = self.fields();
        let object = |row: &Vec<Cell>| {
            let values = fields.iter().map(|field| (field.key.clone(), field.json(row)));
            Value::Object(values.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    /// The machine-readable columns: one per column, and one for its units if they vary.
    fn fields(&self) -> Vec<Field> {
        let mut fields: Vec<Field> = Vec::new();
        let mut add = |name: String, column, is_unit| {
            let taken = |key: &str| fields.iter().any(|field| field.key == key);
            let key = (2..).map(|n| format!("{name}_{n}"));
            let key = std::iter::once(name.clone()).chain(key).find(|key| !taken(key));
            fields.push(Field {
                key: key.expect("some number is free"),
                column,
                is_unit,
            });
        };
        for (index, column) in self.columns.iter().enumerate() {
            let name = slug(&column.name);
            let name = if name.is_empty() {
                format!("column_{}", index + 1)
            } else {
                name
            };
            if let Some(unit) = &column.unit {
                // A column named after a JSON field has its unit in its name already.
                let suffix = unit.suffix();
                let has_unit = name.ends_with(&suffix) || format!("_{name}") == suffix;
                add(if has_unit { name } else { name + &suffix }, index, false);
            } else {
                let varies = self.rows.iter().any(|row| cell(row, index).unit().is_some());
                add(name.clone(), index, false);
                if varies {
                    add(name + "_unit", index, true);
                }
            }
        }
        fields
    }
}

/// A machine-readable column.
struct Field {
    key: String,
    column: usize,
    is_unit: bool,
}

impl Field {
    fn json(&self, row: &[Cell]) -> Value {
        match cell(row, self.column) {
            cell if self.is_unit => cell.unit().map_or(Value::Null, |unit| Value::from(unit_name(unit))),
            Cell::Number { value, .. } if !value.is_finite() => Value::Null,
            Cell::Number { value, .. } => json_number(*value),
            Cell::Text(text) => Value::from(text.as_str()),
            Cell::Missing => Value::Null,
        }
    }
}

/// The cell of `row` in column `index`. A deserialised row may be short.
fn cell(row: &[Cell], index: usize) -> &Cell {
    row.get(index).unwrap_or(&Cell::Missing)
}

/// The machine-readable name of a unit: `bytes_per_s`.
fn unit_name(unit: &Unit) -> String {
    unit.suffix().trim_start_matches('_').to_owned()
}

/// A JSON number; whole numbers are written without a decimal point.
fn json_number(value: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
    if value.fract() == 0.0 && value.abs() <= 2f64.powi(53) {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

impl Column {
    /// A right-aligned column of numbers with `unit`.
    pub fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit: Some(unit),
            align: Align::Right,
        }
    }

    /// A left-aligned column of text.
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: None,
            align: Align::Left,
        }
    }

    /// A right-aligned column of quantities, each with its own unit.
    pub fn mixed(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: None,
            align: Align::Right,
        }
    }
}

impl Cell {
    /// A bare number.
    pub fn count(value: f64) -> Self {
        Self::number(value, Unit::Count)
    }

    /// A fraction of one, shown as a percentage.
    pub fn share(fraction: f64) -> Self {
        Self::number(fraction, Unit::Share)
    }

    /// A number in the base unit of `unit`.
    pub fn number(value: f64, unit: Unit) -> Self {
        Self::Number { value, unit }
    }

    /// The unit, if the cell is a number.
    pub fn unit(&self) -> Option<&Unit> {
        match self {
            Self::Number { unit, .. } => Some(unit),
            Self::Missing | Self::Text(_) => None,
        }
    }

    /// Formats the cell for people.
    pub fn show(&self) -> String {
        match self {
            Self::Missing => MISSING.to_owned(),
            Self::Text(text) => text.clone(),
            Self::Number { value, unit } => unit.show(*value),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Bytes> for Cell {
    fn from(bytes: Bytes) -> Self {
        Self::number(bytes.0 as f64, Unit::Bytes)
    }
}

impl From<Rate> for Cell {
    fn from(rate: Rate) -> Self {
        Self::number(rate.0, Unit::Rate)
    }
}

impl From<Seconds> for Cell {
    fn from(seconds: Seconds) -> Self {
        Self::number(seconds.0, Unit::Seconds)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::count(f64::from(count))
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::count(count as f64)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::count(count as f64)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every kind of cell, with text that needs quoting.
    pub(crate) fn sample() -> Table {
        let mut table = Table::new(
            "Reads from one drive",
            [
                Column::new("block", Unit::Bytes),
                Column::new("depth", Unit::Count),
                Column::new("throughput", Unit::Rate),
                Column::new("p99 latency", Unit::Seconds),
                Column::new("CPU", Unit::Share),
                Column::text("bound by"),
            ],
        );
        table.push([
            Bytes::kib(4).into(),
            1u32.into(),
            Rate(46.5e6).into(),
            Seconds(102e-6).into(),
            Cell::share(0.031),
            "latency, not \"bandwidth\"".into(),
        ]);
        table.push([
            Bytes::mib(4).into(),
            32u32.into(),
            Rate(6.87e9).into(),
            None::<Seconds>.into(),
            Cell::share(f64::NAN),
            "drive".into(),
        ]);
        table
    }

    #[test]
    fn json_has_base_units_under_names_that_say_them() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&sample().to_json()).unwrap());
    }

    #[test]
    fn mixed_columns_have_a_unit_per_cell_and_field_names_are_unique() {
        let mut table = Table::new("", [Column::text("a"), Column::mixed("a"), Column::text("")]);
        table.push(["size".into(), Bytes(7).into(), Cell::Missing]);
        assert_eq!(
            table.to_json(),
            serde_json::json!([{"a": "size", "a_2": 7, "a_unit": "bytes", "column_3": null}])
        );
    }

    #[test]
    fn a_table_survives_json_and_back() {
        let mut table = sample();
        table.rows[1][4] = Cell::Missing;
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table);
    }

    #[test]
    #[should_panic(expected = "does not belong in the column `block`")]
    fn a_rate_cannot_be_pushed_into_a_column_of_bytes() {
        let mut table = Table::new("", [Column::new("block", Unit::Bytes)]);
        table.push([Rate(1.0).into()]);
    }
}
