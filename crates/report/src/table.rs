//! A table of typed cells, told to people and to programs.
//!
//! A cell keeps its number in the base unit; only the renderer rounds it. So the terminal and the
//! page show `3.21 GB/s` where CSV and JSON carry `3214000000` under a column whose name ends in
//! its unit. A column without a unit may hold text, or quantities of different kinds (a list of
//! properties): then CSV and JSON say the unit of each in a column of its own.
//!
//! A table is for tens or thousands of rows, not millions; those belong in a [`Chart`](crate::Chart).

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
    /// What the table shows; empty where its surroundings say so.
    pub title: String,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows, from top to bottom.
    pub rows: Vec<Vec<Cell>>,
}

/// A column's name, what its numbers count, and to which side it leans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// What the numbers count; `None` for text, or where each cell says it for itself.
    pub unit: Option<Unit>,
    /// To which side its cells lean.
    pub align: Align,
}

/// To which side cells lean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// To the left, as text does.
    Left,
    /// To the right, as numbers do.
    Right,
}

/// One value of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Not known, not measured, or it makes no sense here.
    #[default]
    Missing,
    /// Words.
    Text(String),
    /// A number in the base unit of `unit`; whole bytes are exact up to 2^53, which is 9 PB.
    Number {
        /// The number; not finite means missing.
        #[serde(deserialize_with = "crate::chart::null_is_nan")]
        value: f64,
        /// What it counts.
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
    /// Where the row has another length than the table has columns, or a number counts something
    /// else than its column says: both are mistakes in the code that made the table.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let row: Vec<_> = row.into_iter().collect();
        assert_eq!(
            row.len(),
            self.columns.len(),
            "a row of `{}` has a cell per column",
            self.title
        );
        for (cell, column) in row.iter().zip(&self.columns) {
            let fits = column.unit.is_none()
                || cell.unit().is_none_or(|u| column.unit.as_ref() == Some(u));
            assert!(
                fits,
                "{cell:?} does not belong in the column `{}`",
                column.name
            );
        }
        self.rows.push(row);
    }

    /// The rows as JSON objects: numbers in base units, under names that end in the unit.
    pub fn to_json(&self) -> Value {
        let fields = self.fields();
        let object = |row: &Vec<Cell>| {
            let values = fields
                .iter()
                .map(|field| (field.key.clone(), field.json(row)));
            Value::Object(values.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }

    /// The columns that programs get: one per column, and one for its units where they vary.
    fn fields(&self) -> Vec<Field> {
        let mut fields: Vec<Field> = Vec::new();
        let mut add = |name: String, column, is_unit| {
            let taken = |key: &str| fields.iter().any(|field| field.key == key);
            let key = (2..).map(|n| format!("{name}_{n}"));
            let key = std::iter::once(name.clone())
                .chain(key)
                .find(|key| !taken(key));
            fields.push(Field {
                key: key.expect("numbers do not end"),
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
                add(name + &unit.suffix(), index, false);
            } else {
                let varies = self
                    .rows
                    .iter()
                    .any(|row| cell(row, index).unit().is_some());
                add(name.clone(), index, false);
                if varies {
                    add(name + "_unit", index, true);
                }
            }
        }
        fields
    }
}

/// A column as programs get it.
struct Field {
    key: String,
    column: usize,
    is_unit: bool,
}

impl Field {
    fn json(&self, row: &[Cell]) -> Value {
        match cell(row, self.column) {
            cell if self.is_unit => cell
                .unit()
                .map_or(Value::Null, |unit| Value::from(unit_name(unit))),
            Cell::Number { value, .. } if !value.is_finite() => Value::Null,
            Cell::Number { value, .. } => json_number(*value),
            Cell::Text(text) => Value::from(text.as_str()),
            Cell::Missing => Value::Null,
        }
    }
}

/// The cell of `row` in column `index`; rows read from elsewhere may be short.
fn cell(row: &[Cell], index: usize) -> &Cell {
    row.get(index).unwrap_or(&Cell::Missing)
}

/// A unit's name in a field of its own: `bytes_per_s`.
fn unit_name(unit: &Unit) -> String {
    unit.suffix().trim_start_matches('_').to_owned()
}

/// A whole number is written without a point, so that a count reads as a count.
fn json_number(value: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
    if value.fract() == 0.0 && value.abs() <= 2f64.powi(53) {
        Value::from(value as i64)
    } else {
        Value::from(value)
    }
}

impl Column {
    /// A column of numbers that count `unit`, leaning right.
    pub fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit: Some(unit),
            align: Align::Right,
        }
    }

    /// A column of words.
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            unit: None,
            align: Align::Left,
        }
    }

    /// A column of quantities of different kinds, each with its own unit, leaning right.
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

    /// A number of `unit`, in its base unit.
    pub fn number(value: f64, unit: Unit) -> Self {
        Self::Number { value, unit }
    }

    /// What the number counts, where it is one.
    pub fn unit(&self) -> Option<&Unit> {
        match self {
            Self::Number { unit, .. } => Some(unit),
            Self::Missing | Self::Text(_) => None,
        }
    }

    /// The cell as people read it.
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

    /// Every kind of cell, with text that wants quoting.
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
    fn mixed_columns_say_each_cells_unit_and_no_two_fields_share_a_name() {
        let mut table = Table::new(
            "",
            [Column::text("a"), Column::mixed("a"), Column::text("")],
        );
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
