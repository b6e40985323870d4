//! The list of all parameters of a topic, for the command and for pages: path, unit, default, range and text.
//!
//! Paths, units, defaults and ranges come from the reader of scenarios and from its checks
//! ([`straightway_scenario::parameter`]). The texts are in `parameters.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use straightway_scenario::parameter::{ScenarioParameter, parameters};

use crate::scenario::Scenario;

/// A parameter of a topic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicParameter {
    /// Its path below the topic, its unit, default and range.
    #[serde(flatten)]
    pub parameter: ScenarioParameter,
    /// What it is.
    pub text: &'static str,
}

/// The texts of fields.
#[derive(Debug, Deserialize)]
struct Texts {
    /// The input type of each topic.
    topics: BTreeMap<String, String>,
    /// The fields of each type.
    #[serde(flatten)]
    types: BTreeMap<String, BTreeMap<String, Field>>,
}

/// A field's text, and its type if that has fields of its own.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Field {
    Plain((String,)),
    Table((String, String)),
}

static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| toml::from_str(include_str!("parameters.toml")).expect("the texts are tested"));

/// The parameters of a scenario's topic. Their defaults are the values in the scenario.
pub fn list(scenario: &Scenario) -> Vec<TopicParameter> {
    let topic = scenario.topic().name();
    let mut found = parameters(scenario, topic);
    for parameter in &mut found {
        let path = parameter
            .path
            .strip_prefix(topic)
            .and_then(|path| path.strip_prefix('.'));
        parameter.path = path.unwrap_or_default().to_owned();
    }
    let described = |parameter: ScenarioParameter| {
        let text = text(topic, &parameter.path).unwrap_or_default();
        TopicParameter { parameter, text }
    };
    found.into_iter().map(described).collect()
}

/// The text of the field at `path` of a topic.
fn text(topic: &str, path: &str) -> Option<&'static str> {
    let mut owner = TEXTS.topics.get(topic)?;
    let mut found = None;
    for step in path.split('.') {
        let name = step.split('[').next().unwrap_or(step);
        match TEXTS.types.get(owner)?.get(name)? {
            Field::Plain((text,)) => found = Some(text.as_str()),
            Field::Table((text, below)) => {
                found = Some(text.as_str());
                owner = below;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::scenario::Topic;

    #[test]
    fn every_parameter_of_every_topic_has_a_text_and_a_range() {
        for &topic in Topic::ALL {
            let list = list(&Scenario::default_of(topic));
            assert!(list.len() >= 5, "{topic:?} has {}", list.len());
            for TopicParameter { parameter, text } in list {
                let path = &parameter.path;
                assert!(
                    !text.is_empty(),
                    "{}.{path} has no text in parameters.toml",
                    topic.name()
                );
                assert!(!parameter.range.is_empty(), "{path}");
            }
        }
    }

    #[test]
    fn every_text_belongs_to_a_parameter() {
        let mut used = BTreeSet::new();
        for &topic in Topic::ALL {
            for found in list(&Scenario::default_of(topic)) {
                let mut owner = &TEXTS.topics[topic.name()];
                for step in found.parameter.path.split('.') {
                    let name = step.split('[').next().unwrap();
                    used.insert((owner.clone(), name.to_owned()));
                    if let Field::Table((_, below)) = &TEXTS.types[owner][name] {
                        owner = below;
                    }
                }
            }
        }
        for (owner, fields) in &TEXTS.types {
            for name in fields.keys() {
                assert!(
                    used.contains(&(owner.clone(), name.clone())),
                    "{owner}.{name} is no parameter"
                );
            }
        }
    }

    /// The source files of the wing, as one text.
    fn sources() -> String {
        fn add(folder: &Path, all: &mut String) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    add(&path, all);
                } else if path.extension().is_some_and(|ext| ext == "rs") {
                    *all += &fs::read_to_string(&path).unwrap();
                }
            }
        }
        let mut all = String::new();
        for room in ["planner", "pcie", "fabric"] {
            let wing = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            add(&wing.join(room).join("src"), &mut all);
        }
        all
    }

    #[test]
    fn the_texts_are_those_of_the_source() {
        let sources = sources();
        for (owner, fields) in &TEXTS.types {
            let begin = format!("pub struct {owner} {{\n");
            let bodies: Vec<String> = sources
                .match_indices(&begin)
                .map(|(at, _)| sources[at..].split("\n}").next().unwrap())
                .map(|body| {
                    body.split_whitespace()
                        .filter(|word| *word != "///")
                        .collect::<Vec<_>>()
                        .join(" ")
                })
                .collect();
            assert!(!bodies.is_empty(), "there is no {owner}");
            for (name, field) in fields {
                let (Field::Plain((text,)) | Field::Table((text, _))) = field;
                let is_there = bodies.iter().any(|body| body.contains(text.as_str()));
                assert!(is_there, "{owner}.{name}: the comment is not \"{text}\"");
            }
        }
    }

    #[test]
    fn a_parameter_is_listed_as_it_is_typed() {
        let list = list(&Scenario::default_of(Topic::Checkpoint));
        let find = |path: &str| list.iter().find(|found| found.parameter.path == path).unwrap();
        let gpus = find("cluster.gpus");
        assert_eq!(gpus.parameter.range, "a whole number from 1 to 10000000");
        assert_eq!(gpus.text, "The number of GPUs in the job.");
        assert_eq!(find("schedule.interval").parameter.shown_default(), "absent");
        assert_eq!(find("node.machine.ports[0].count").text, "The number.");
        assert!(find("node.hop.latency").parameter.range.starts_with("from 0 "));
    }
}
