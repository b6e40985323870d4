//! Settings: changing a parameter by its path, as in `cluster.gpus=2048`.
//!
//! The scenario is serialised with all its defaults, the values are replaced, and the result is parsed and checked again,
//! once for all settings. Any parameter of any topic can be set this way, and every range is checked.

use serde::{Serialize, de::DeserializeOwned};
use straightway_core::nearest::{is_near, nearest};
use toml::{Table, Value};

use crate::check::{self, Checkable, PathStep, Refusals, steps};

/// A parameter and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSetting {
    /// The path below the topic, such as `cluster.gpus` or `tenants[0].weight`.
    pub path: String,
    /// The value, as typed.
    pub value: String,
}

/// The most steps of a path.
const PATH_STEPS_MAX: usize = 16;

impl ParameterSetting {
    /// Reads `path=value`.
    pub fn parse(text: &str) -> Result<Self, Refusals> {
        match text.split_once('=') {
            Some((path, value)) if !path.trim().is_empty() && !value.trim().is_empty() => Ok(Self {
                path: path.trim().to_owned(),
                value: value.trim().to_owned(),
            }),
            _ => Err(Refusals::one("setting", text, "path=value, such as cluster.gpus=2048")),
        }
    }

    fn refuse(&self, allowed: String) -> Refusals {
        Refusals::one(self.path.clone(), self.value.clone(), allowed)
    }
}

/// Applies all `settings` to `input`. Their paths start at its root.
pub fn set<T>(input: T, settings: &[ParameterSetting]) -> Result<T, Refusals>
where
    T: Serialize + DeserializeOwned + Checkable,
{
    let Some(first) = settings.first() else {
        check::checked(&input)?;
        return Ok(input);
    };
    let mut table = Table::try_from(&input).map_err(|e| first.refuse(e.to_string()))?;
    let mut changed = input;
    if let Some(all) = fit_all(table.clone(), settings) {
        changed = all;
    } else {
        // One after the other, to try another type of number and to find the wrong setting.
        for setting in settings {
            (table, changed) = fit_one(&table, setting)?;
        }
    }
    check::checked(&changed)?;
    Ok(changed)
}

/// Puts all values into the table as typed and parses it once; `None` if one does not fit its parameter.
fn fit_all<T: DeserializeOwned>(mut table: Table, settings: &[ParameterSetting]) -> Option<T> {
    for setting in settings {
        put(&mut table, &setting.path, typed(&setting.value)).ok()?;
    }
    check::fit(&table).ok()
}

/// Whether the parameter of `input` at `path` is a count, which takes whole numbers only.
pub fn is_count<T>(input: &T, path: &str) -> bool
where
    T: Serialize + DeserializeOwned,
{
    let takes = |value: Value| {
        let table = Table::try_from(input).ok();
        let changed = table.and_then(|mut table| put(&mut table, path, value).ok().map(|()| table));
        changed.is_some_and(|table| check::fit::<T>(&table).is_ok())
    };
    takes(Value::Integer(1)) && !takes(Value::Float(0.5))
}

/// The table with one more value, and what it holds.
fn fit_one<T>(table: &Table, setting: &ParameterSetting) -> Result<(Table, T), Refusals>
where
    T: DeserializeOwned + Checkable,
{
    let path = &setting.path;
    let with = |value: Value| {
        // Only a field that does not exist can have been meant otherwise: one that is absent by default exists.
        let unknown = |allowed| setting.refuse(allowed).meaning(meant(table, path).as_deref());
        let mut changed = table.clone();
        put(&mut changed, path, value).map_err(unknown)?;
        let input = check::fit(&changed).map_err(|allowed| match check::misfit::<T>(&changed) {
            Some(check::Shape::Fields(_)) => unknown(allowed),
            _ => setting.refuse(allowed),
        })?;
        Ok((changed, input))
    };
    let value = typed(&setting.value);
    with(value.clone()).or_else(|refused: Refusals| match value {
        // `1e3` is a whole number too. `1.4` is not, and is not rounded.
        Value::Float(number) => {
            let held = whole(number).and_then(|count| with(Value::Integer(count)).ok());
            held.ok_or_else(|| {
                let most = LARGEST.iter().find_map(|n| Some((n, with(Value::Integer(*n)).ok()?.1)));
                most.map_or(refused, |(n, input)| setting.refuse(counts::<T>(&input, path, *n)))
            })
        }
        _ => Err(refused),
    })
}

/// The parameter of the table that was probably meant by a path that is not in it: one with the same last name, else
/// the nearest. `None` if the path is in the table.
fn meant(table: &Table, path: &str) -> Option<String> {
    let mut known = Vec::new();
    for (key, value) in table {
        leaves(key.clone(), value, &mut known);
    }
    let first = with_first_entries(path);
    let is_below = |name: &&String| {
        name.strip_prefix(&first)
            .is_some_and(|rest| rest.starts_with(['.', '[']))
    };
    if known.iter().any(|name| *name == first || is_below(&name)) {
        return None;
    }
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let same_last = known.iter().find(|name| last(name) == last(path)).cloned();
    let near = || nearest(path, known.iter()).cloned();
    let near_last = || known.iter().find(|name| is_near(&last(path), &last(name))).cloned();
    same_last.or_else(near).or_else(near_last)
}

/// The path with the first entry of each list in place of the named one.
fn with_first_entries(path: &str) -> String {
    let mut parts = path.split('[');
    let begin = parts.next().unwrap_or_default().to_owned();
    parts.fold(begin, |path, part| match part.split_once(']') {
        Some((_, rest)) => format!("{path}[0]{rest}"),
        None => format!("{path}[{part}"),
    })
}

/// The paths of the parameters of a value. Of a list, those of the first entry: the others have the same names.
fn leaves(path: String, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                leaves(format!("{path}.{key}"), value, found);
            }
        }
        Value::Array(items) if !items.is_empty() => leaves(format!("{path}[0]"), &items[0], found),
        _ => found.push(path),
    }
}

/// The largest values of integer fields by width. TOML has no integers beyond the first.
const LARGEST: [i64; 4] = [i64::MAX, u32::MAX as i64, u16::MAX as i64, u8::MAX as i64];

/// `number` as an integer; `None` if it is a fraction or exceeds TOML's range.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked above")]
fn whole(number: f64) -> Option<i64> {
    let fits = number.fract() == 0.0 && number.abs() < i64::MAX as f64;
    fits.then_some(number as i64)
}

/// The counts allowed at `path`, taken from the refusal of the largest value, which `input` holds there.
fn counts<T: Checkable>(input: &T, path: &str, largest: i64) -> String {
    let refusals = check::checked(input).err().map_or(Vec::new(), |r| r.0);
    let mut of_path = refusals.into_iter().filter(|refusal| refusal.field == path);
    of_path.next().map_or_else(
        || format!("a whole number from 0 to {largest}"),
        |refusal| refusal.allowed,
    )
}

/// Parses a value as TOML, or else as a string: `8`, `0.5`, `true`, `400Gb/s`.
fn typed(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}"));
    match parsed.ok().and_then(|mut table| table.remove("value")) {
        Some(value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::String(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

/// Puts `value` at `path`; the error says what is allowed instead.
pub(crate) fn put(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let path: Vec<PathStep<'_>> = steps(path).collect();
    if path.len() > PATH_STEPS_MAX {
        return Err(format!("a path of at most {PATH_STEPS_MAX} steps"));
    }
    let Some((PathStep::Key(first), rest)) = path.split_first() else {
        return Err("a path that starts with a name".to_owned());
    };
    let mut at = table.entry(*first).or_insert_with(|| Value::Table(Table::new()));
    for step in rest {
        at = match (step, at) {
            // A parameter that is absent by default is not in the table yet.
            (PathStep::Key(key), Value::Table(table)) => {
                table.entry(*key).or_insert_with(|| Value::Table(Table::new()))
            }
            (PathStep::Index(i), Value::Array(items)) => {
                let last = items.len().saturating_sub(1);
                items.get_mut(*i).ok_or(format!("an index from 0 to {last}"))?
            }
            (PathStep::Key(key), Value::Array(items)) => {
                return Err(format!(
                    "an index before `{key}`, from 0 to {}",
                    items.len().saturating_sub(1)
                ));
            }
            (PathStep::Index(_), _) => return Err("a field name: this is not a list".to_owned()),
            (PathStep::Key(key), _) => {
                return Err(format!(
                    "a path that ends before `{key}`: the value there has no fields"
                ));
            }
        };
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_that_was_meant_is_found_by_its_last_name_or_a_near_one() {
        let table: Table = toml::from_str(
            "seed = 1\n[cluster]\ngpus = 8\n[storage]\nrate = 1\n[[tenants]]\nweight = 1\n[[tenants]]\nweight = 2\n",
        )
        .unwrap();
        for (typed, known) in [
            ("gpus", Some("cluster.gpus")),
            ("storage.gpus", Some("cluster.gpus")),
            ("cluster.gpu", Some("cluster.gpus")),
            ("storag.rate", Some("storage.rate")),
            ("tenants[0].wieght", Some("tenants[0].weight")),
            ("colour", None),
            ("cluster.gpus", None),
            ("cluster", None),
            ("tenants[1].weight", None),
        ] {
            assert_eq!(meant(&table, typed).as_deref(), known, "{typed}");
        }
    }

    #[test]
    fn a_count_may_be_narrower_than_64_bits() {
        #[derive(Debug, Serialize, serde::Deserialize)]
        struct Port {
            lanes: u8,
        }
        impl Checkable for Port {
            fn check(&self, c: &mut check::Checker) {
                c.count("lanes", u64::from(self.lanes), 1..=16);
            }
        }
        let set = |value: &str| {
            let setting = ParameterSetting::parse(&format!("lanes={value}")).unwrap();
            super::set(Port { lanes: 1 }, &[setting]).map(|port| port.lanes)
        };
        assert_eq!(set("1.6e1").unwrap(), 16);
        assert!(is_count(&Port { lanes: 1 }, "lanes"));
        for value in ["1.5", "1e30"] {
            let says = format!("lanes = {value}: allowed is a whole number from 1 to 16");
            assert_eq!(set(value).unwrap_err().to_string(), says);
        }
    }
}
