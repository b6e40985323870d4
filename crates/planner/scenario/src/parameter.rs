//! The parameters of an input: their paths, units, defaults and ranges.
//!
//! They are not written down a second time. The reader of an input knows its fields and their types, and its checks know
//! the ranges: each is asked with a value that it must refuse, and the refusal says what is allowed.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};
use straightway_core::{Bytes, Rate, Seconds};
use toml::{Table, Value, value::Datetime};

use crate::{
    check::{self, Checkable, PathStep, Shape, steps},
    setting::put,
};

/// A parameter of an input.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioParameter {
    /// Its path, as `--set` takes it. The first element stands for all elements of a list.
    pub path: String,
    /// Its unit.
    pub unit: ParameterUnit,
    /// The default in the base unit; `None` if it is absent by default.
    pub default: Option<Value>,
    /// The allowed values, in words.
    pub range: String,
}

/// The unit of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ParameterUnit {
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Bytes per second.
    #[serde(rename = "B/s")]
    Rate,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// A whole number.
    #[serde(rename = "count")]
    Count,
    /// Any number.
    #[serde(rename = "number")]
    Number,
    /// Yes or no.
    #[serde(rename = "boolean")]
    Boolean,
    /// One of several names.
    #[serde(rename = "choice")]
    Choice,
    /// Text.
    #[serde(rename = "text")]
    Text,
}

/// The depth at which the search ends. No input is nested as deep.
const DEPTH_MAX: usize = 12;

/// A key that no input has.
const NO_KEY: &str = "?";

/// The parameters of `input` at and below `root`, in the order of their fields.
pub fn parameters<T>(input: &T, root: &str) -> Vec<ScenarioParameter>
where
    T: Serialize + DeserializeOwned + Checkable,
{
    let mut search = Search::<T> {
        found: Vec::new(),
        of: PhantomData,
    };
    if let Ok(table) = Table::try_from(input) {
        search.below(&table, root, 0);
    }
    search.found
}

/// A search for parameters.
struct Search<T> {
    found: Vec<ScenarioParameter>,
    of: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned + Checkable> Search<T> {
    /// Finds the parameters at and below `path` of an input.
    fn below(&mut self, input: &Table, path: &str, depth: usize) {
        let Some(allowed) = shape_at::<T>(input, path, no_value()).map(|shape| match shape {
            Shape::Value(allowed) => allowed,
            Shape::Fields(_) => "a table".to_owned(),
        }) else {
            return;
        };
        if depth == DEPTH_MAX {
            return;
        }
        if allowed == "a list" {
            let first = format!("{path}[0]");
            let with_one = filled::<T>(input, path, &Value::Array(vec![Value::Table(Table::new())]));
            match with_one {
                Some(input) if shape_at::<T>(&input, &first, no_value()).is_some() => {
                    self.below(&input, &first, depth + 1);
                }
                // The elements are plain values.
                _ => self.add(input, path, ParameterUnit::Text, allowed),
            }
        } else if allowed.starts_with("a table") {
            let input = filled::<T>(input, path, &Value::Table(Table::new())).unwrap_or_else(|| input.clone());
            let Some(Shape::Fields(fields)) = shape_at::<T>(&input, &format!("{path}.{NO_KEY}"), no_value()) else {
                return;
            };
            for field in fields {
                self.below(&input, &format!("{path}.{field}"), depth + 1);
            }
        } else {
            self.add(input, path, ParameterUnit::of(&allowed), allowed);
        }
    }

    fn add(&mut self, input: &Table, path: &str, unit: ParameterUnit, allowed: String) {
        let range = unit
            .refused()
            .iter()
            .find_map(|value| range_at::<T>(input, path, value));
        self.found.push(ScenarioParameter {
            path: path.to_owned(),
            unit,
            default: lookup(input, path).cloned(),
            range: range.unwrap_or(allowed),
        });
    }
}

/// A value that no parameter takes.
fn no_value() -> Value {
    Value::Datetime(Datetime {
        date: None,
        time: None,
        offset: None,
    })
}

/// What the reader allows at `path` instead of `value`.
fn shape_at<T: DeserializeOwned>(input: &Table, path: &str, value: Value) -> Option<Shape> {
    let mut changed = input.clone();
    put(&mut changed, path, value).ok()?;
    check::misfit::<T>(&changed)
}

/// The input with `value` at `path` if there is nothing, and with the defaults of what is then there.
fn filled<T: Serialize + DeserializeOwned>(input: &Table, path: &str, value: &Value) -> Option<Table> {
    let is_empty = |found: &Value| found.as_array().is_some_and(Vec::is_empty) || found.is_str();
    if lookup(input, path).is_some_and(|found| !is_empty(found)) {
        return Some(input.clone());
    }
    let mut changed = input.clone();
    put(&mut changed, path, value.clone()).ok()?;
    Table::try_from(check::fit::<T>(&changed).ok()?).ok()
}

/// The range that a check names when it refuses `value` at `path`.
fn range_at<T: DeserializeOwned + Checkable>(input: &Table, path: &str, value: &Value) -> Option<String> {
    let mut changed = input.clone();
    put(&mut changed, path, value.clone()).ok()?;
    let refused = check::checked(&check::fit::<T>(&changed).ok()?).err()?;
    let mut at_path = refused.0.into_iter().filter(|refusal| refusal.field == path);
    at_path.next().map(|refusal| refusal.allowed)
}

/// The value at `path`.
fn lookup<'a>(input: &'a Table, path: &str) -> Option<&'a Value> {
    let mut steps = steps(path);
    let Some(PathStep::Key(first)) = steps.next() else {
        return None;
    };
    steps.try_fold(input.get(first)?, |value, step| match step {
        PathStep::Key(key) => value.as_table()?.get(key),
        PathStep::Index(index) => value.as_array()?.get(index),
    })
}

impl ParameterUnit {
    /// The unit of values that a type describes by `allowed`.
    fn of(allowed: &str) -> Self {
        let begins = |word: &str| allowed.starts_with(word);
        match allowed {
            "a boolean" => Self::Boolean,
            "a whole number" => Self::Count,
            "a string" => Self::Text,
            _ if begins("a size") => Self::Bytes,
            _ if begins("a rate") => Self::Rate,
            _ if begins("a time") => Self::Seconds,
            _ if begins("a number") => Self::Number,
            _ if begins("`") || begins("one of") => Self::Choice,
            _ => Self::Text,
        }
    }

    /// Values of which a check with a range refuses one.
    fn refused(self) -> Vec<Value> {
        match self {
            Self::Bytes => vec![Value::Integer(i64::MAX), Value::Integer(0)],
            Self::Rate | Self::Seconds => vec![Value::Float(1e300), Value::Float(0.0)],
            Self::Number => vec![Value::Float(1e300), Value::Float(-1e300)],
            Self::Count => vec![
                Value::Integer(i64::MAX),
                Value::Integer(u32::MAX.into()),
                Value::Integer(u8::MAX.into()),
                Value::Integer(0),
            ],
            Self::Boolean | Self::Choice | Self::Text => Vec::new(),
        }
    }
}

impl ScenarioParameter {
    /// The default, with its unit.
    pub fn shown_default(&self) -> String {
        let number = |value: &Value| value.as_float().or(value.as_integer().map(|n| n as f64));
        match (&self.default, self.unit) {
            (None, _) => "absent".to_owned(),
            (Some(Value::Integer(bytes)), ParameterUnit::Bytes) => Bytes(bytes.unsigned_abs()).to_string(),
            (Some(value), ParameterUnit::Rate) => number(value).map_or(String::new(), |n| Rate(n).to_string()),
            (Some(value), ParameterUnit::Seconds) => number(value).map_or(String::new(), |n| Seconds(n).to_string()),
            (Some(Value::Float(number)), _) => check::plain(*number),
            (Some(Value::String(text)), _) => text.clone(),
            (Some(Value::Array(items)), _) => format!("{} entries", items.len()),
            (Some(value), _) => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use straightway_core::Rate;

    use super::*;
    use crate::check::Checker;

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Root {
        gpus: u64,
        link: Option<Link>,
        links: Vec<Link>,
        shape: Shape,
        names: Vec<String>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Link {
        rate: Rate,
        is_up: bool,
    }

    impl Default for Link {
        fn default() -> Self {
            Self {
                rate: Rate(50e9),
                is_up: true,
            }
        }
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        #[default]
        Round,
        Square,
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Input {
        root: Root,
    }

    impl Checkable for Input {
        fn check(&self, c: &mut Checker) {
            c.within("root", |c| {
                c.count("gpus", self.root.gpus, 0..=1000);
                for (i, link) in self.root.links.iter().enumerate() {
                    c.rate(&format!("links[{i}].rate"), link.rate, Rate(1e3)..=Rate(1e18));
                }
                if let Some(link) = &self.root.link {
                    c.rate("link.rate", link.rate, Rate(1e3)..=Rate(1e18));
                }
            });
        }
    }

    #[test]
    fn every_field_is_found_with_its_unit_default_and_range() {
        let found = parameters(&Input::default(), "root");
        let lines = found
            .iter()
            .map(|p| format!("{} | {:?} | {} | {}", p.path, p.unit, p.shown_default(), p.range));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                "root.gpus | Count | 0 | a whole number from 0 to 1000",
                "root.link.rate | Rate | 50 GB/s | from 1 kB/s to 1000000 TB/s",
                "root.link.is_up | Boolean | true | a boolean",
                "root.links[0].rate | Rate | 50 GB/s | from 1 kB/s to 1000000 TB/s",
                "root.links[0].is_up | Boolean | true | a boolean",
                "root.shape | Choice | round | `round` or `square`",
                "root.names | Text | 0 entries | a list",
            ]
        );
    }
}
