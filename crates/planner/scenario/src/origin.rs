//! The origin of each parameter: the scenario's file or the user.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::provenance::ValueOrigin;

/// The parameter paths set by the scenario's file and by the user; all others are defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    scenario: BTreeSet<String>,
    user: BTreeSet<String>,
}

impl Origins {
    /// Collects the paths set in the TOML `text`, below the table `root` if given. Invalid TOML yields no paths: the
    /// reader has already refused it.
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

    /// Records that the user set `path`.
    pub fn set(&mut self, path: &str) {
        self.user.insert(path.to_owned());
    }

    /// The paths set by the user.
    pub fn user(&self) -> impl Iterator<Item = &str> {
        self.user.iter().map(String::as_str)
    }

    /// The origin of the parameter at `path`.
    pub fn of(&self, path: &str) -> ValueOrigin {
        let holds = |paths: &BTreeSet<String>| paths.iter().any(|given| is_at(given, path));
        if holds(&self.user) {
            ValueOrigin::User
        } else if holds(&self.scenario) {
            ValueOrigin::Scenario
        } else {
            ValueOrigin::Default
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

/// Whether setting `given` determines `path`: they are equal, or one contains the other.
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
    fn values_of_the_file_the_user_and_defaults_are_distinguished() {
        let text = "[checkpoint]\ncluster.gpus = 8\n[[checkpoint.list]]\nrate = 1\n";
        let mut origins = Origins::of_text(text, Some("checkpoint"));
        origins.set("node.hop.rate");
        assert_eq!(origins.of("cluster.gpus"), ValueOrigin::Scenario);
        assert_eq!(origins.of("cluster.gpus_per_node"), ValueOrigin::Default);
        assert_eq!(origins.of("list[0].rate"), ValueOrigin::Scenario);
        assert_eq!(origins.of("list[1].rate"), ValueOrigin::Default);
        assert_eq!(origins.of("node.hop.rate"), ValueOrigin::User);
        assert_eq!(origins.of("node.hop"), ValueOrigin::User);
    }
}
