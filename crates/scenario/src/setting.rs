//! Changing one parameter by its path: `cluster.gpus=2048`.
//!
//! A scenario is written out with all its defaults, the value put in its place, and the whole read
//! and checked again: any parameter of any topic can be set, and none can slip past its range.

use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use crate::check::{self, Checked, Refusals, Step, steps};

/// A parameter and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The path below the topic, such as `cluster.gpus` or `tenants[0].weight`.
    pub path: String,
    /// The value as typed.
    pub value: String,
}

/// The longest path that is followed.
const PATH_STEPS_MAX: usize = 16;

impl Setting {
    /// Reads `path=value`.
    pub fn parse(text: &str) -> Result<Self, Refusals> {
        match text.split_once('=') {
            Some((path, value)) if !path.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Self {
                    path: path.trim().to_owned(),
                    value: value.trim().to_owned(),
                })
            }
            _ => Err(Refusals::one(
                "--set",
                text,
                "path=value, such as cluster.gpus=2048",
            )),
        }
    }
}

/// `input` with all `settings` made; their paths start at its root.
pub fn set<T>(input: T, settings: &[Setting]) -> Result<T, Refusals>
where
    T: Serialize + DeserializeOwned + Checked,
{
    let one = |input: T, setting: &Setting| set_one(&input, setting, &setting.path);
    // All at once is quick; one by one tells which of them is wrong.
    let changed = match set_all(&input, settings) {
        Some(changed) => changed,
        None => settings.iter().try_fold(input, one)?,
    };
    check::checked(&changed)?;
    Ok(changed)
}

/// All settings at once; none where a value does not fit its place as it was typed.
fn set_all<T: Serialize + DeserializeOwned>(input: &T, settings: &[Setting]) -> Option<T> {
    let mut table = Table::try_from(input).ok()?;
    for setting in settings {
        put(&mut table, &setting.path, typed(&setting.value)).ok()?;
    }
    T::deserialize(table).ok()
}

/// Whether the parameter of `input` at `path` is a count: a fraction of it makes no sense.
pub fn is_count<T>(input: &T, path: &str) -> bool
where
    T: Serialize + DeserializeOwned,
{
    let takes = |value: Value| {
        let table = Table::try_from(input).ok();
        let changed = table.and_then(|mut table| put(&mut table, path, value).ok().map(|()| table));
        changed.is_some_and(|table| T::deserialize(table).is_ok())
    };
    takes(Value::Integer(1)) && !takes(Value::Float(0.5))
}

fn set_one<T>(input: &T, setting: &Setting, path: &str) -> Result<T, Refusals>
where
    T: Serialize + DeserializeOwned + Checked,
{
    let written = Table::try_from(input).map_err(|e| refusal(setting, &e.to_string()))?;
    let with = |value: Value| {
        let mut table = written.clone();
        put(&mut table, path, value).map_err(|allowed| refusal(setting, &allowed))?;
        T::deserialize(table).map_err(|e| refusal(setting, &e.to_string()))
    };
    let value = typed(&setting.value);
    with(value.clone()).or_else(|refused| match value {
        // `1e3` is a whole number too; `1.4` is none, and no other is meant.
        Value::Float(number) => {
            let held = whole(number).and_then(|count| with(Value::Integer(count)).ok());
            held.ok_or_else(|| {
                let most = LARGEST
                    .iter()
                    .find_map(|n| Some((n, with(Value::Integer(*n)).ok()?)));
                most.map_or(refused, |(n, input)| {
                    refusal(setting, &counts(&input, path, *n))
                })
            })
        }
        _ => Err(refused),
    })
}

/// The largest counts that fields of some width hold; TOML has none beyond the first.
const LARGEST: [i64; 4] = [i64::MAX, u32::MAX as i64, u16::MAX as i64, u8::MAX as i64];

/// The whole number that `number` is; none where it is a fraction or beyond what TOML holds.
#[expect(clippy::cast_possible_truncation, reason = "it was looked at before")]
fn whole(number: f64) -> Option<i64> {
    let fits = number.fract() == 0.0 && number.abs() < i64::MAX as f64;
    fits.then_some(number as i64)
}

/// The counts allowed at `path`: what is said of the largest one, which `input` holds there.
fn counts(input: &impl Checked, path: &str, largest: i64) -> String {
    let refusals = check::checked(input).err().map_or(Vec::new(), |r| r.0);
    let mut of_path = refusals.into_iter().filter(|refusal| refusal.field == path);
    of_path.next().map_or_else(
        || format!("a whole number from 0 to {largest}"),
        |refusal| refusal.allowed,
    )
}

fn refusal(setting: &Setting, message: &str) -> Refusals {
    Refusals::one(
        setting.path.clone(),
        setting.value.clone(),
        check::wanted(message),
    )
}

/// A value as TOML has it, or else a string: `8`, `0.5`, `true`, `400Gb/s`.
fn typed(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}"));
    match parsed.ok().and_then(|mut table| table.remove("value")) {
        Some(
            value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::String(_)),
        ) => value,
        _ => Value::String(text.to_owned()),
    }
}

/// Puts `value` at `path`; tells what is allowed where that leads nowhere.
fn put(table: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let path: Vec<Step<'_>> = steps(path).collect();
    if path.len() > PATH_STEPS_MAX {
        return Err(format!("a path of at most {PATH_STEPS_MAX} steps"));
    }
    let Some((Step::Key(first), rest)) = path.split_first() else {
        return Err("a path that starts with a name".to_owned());
    };
    let mut at = table
        .entry(*first)
        .or_insert_with(|| Value::Table(Table::new()));
    for step in rest {
        at = match (step, at) {
            // A parameter that is absent by default has no place yet.
            (Step::Key(key), Value::Table(table)) => table
                .entry(*key)
                .or_insert_with(|| Value::Table(Table::new())),
            (Step::Index(i), Value::Array(items)) => {
                let last = items.len().saturating_sub(1);
                items
                    .get_mut(*i)
                    .ok_or(format!("an index from 0 to {last}"))?
            }
            (Step::Key(key), Value::Array(items)) => {
                return Err(format!(
                    "an index before `{key}`, from 0 to {}",
                    items.len().saturating_sub(1)
                ));
            }
            (Step::Index(_), _) => return Err("no index: it is no list".to_owned()),
            (Step::Key(key), _) => return Err(format!("no `{key}` below a plain value")),
        };
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_count_is_one_too() {
        #[derive(Debug, Serialize, serde::Deserialize)]
        struct Port {
            lanes: u8,
        }
        impl Checked for Port {
            fn check(&self, c: &mut check::Checker) {
                c.count("lanes", u64::from(self.lanes), 1..=16);
            }
        }
        let set = |value: &str| {
            let setting = Setting::parse(&format!("lanes={value}")).unwrap();
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
