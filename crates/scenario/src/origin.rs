//! Who chose which parameter: the scenario's file, or the user.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::provenance::Origin;

/// The paths that a scenario's file and the user gave; all others are defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    scenario: BTreeSet<String>,
    user: BTreeSet<String>,
}

impl Origins {
    /// What the TOML `text` gives, below the table `root` where there is one. Text that is no TOML gives
    /// nothing: reading it has refused it already.
    pub fn of_text(text: &str, root: Option<&str>) -> Self {
        let mut origins = Self::default();
        let Ok(table) = text.parse::<Table>() else {
            return origins;
        };
        match root {
            None => origins.collect("", &Value::Table(table)),
            Some(root) => {
                if let Some(value) = table.get(root) {
                    origins.collect("", value);
                }
            }
        }
        origins
    }

    /// Notes that the user gave `path`.
    pub fn set(&mut self, path: &str) {
        self.user.insert(path.to_owned());
    }

    /// The paths the user gave.
    pub fn user(&self) -> impl Iterator<Item = &str> {
        self.user.iter().map(String::as_str)
    }

    /// Who chose the parameter at `path`.
    pub fn of(&self, path: &str) -> Origin {
        let holds = |paths: &BTreeSet<String>| paths.iter().any(|given| is_at(given, path));
        if holds(&self.user) {
            Origin::User
        } else if holds(&self.scenario) {
            Origin::Scenario
        } else {
            Origin::Default
        }
    }

    fn collect(&mut self, path: &str, value: &Value) {
        let below = |key: &str| match path {
            "" => key.to_owned(),
            _ => format!("{path}.{key}"),
        };
        match value {
            Value::Table(table) => table.iter().for_each(|(k, v)| self.collect(&below(k), v)),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.collect(&format!("{path}[{i}]"), item);
                }
            }
            _ => {
                self.scenario.insert(path.to_owned());
            }
        }
    }
}

/// Whether what was `given` decides `path`: it is the same, a table above it, or a part of it.
fn is_at(given: &str, path: &str) -> bool {
    let within = |longer: &str, shorter: &str| {
        let rest = longer.strip_prefix(shorter);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(path, given) || within(given, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_a_user_and_nobody_are_told_apart() {
        let text = "[checkpoint]\ncluster.gpus = 8\n[[checkpoint.list]]\nrate = 1\n";
        let mut origins = Origins::of_text(text, Some("checkpoint"));
        origins.set("node.hop.rate");
        assert_eq!(origins.of("cluster.gpus"), Origin::Scenario);
        assert_eq!(origins.of("cluster.gpus_per_node"), Origin::Default);
        assert_eq!(origins.of("list[0].rate"), Origin::Scenario);
        assert_eq!(origins.of("list[1].rate"), Origin::Default);
        assert_eq!(origins.of("node.hop.rate"), Origin::User);
        assert_eq!(origins.of("node.hop"), Origin::User);
    }
}
