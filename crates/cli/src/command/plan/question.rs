//! A planner's scenario with its text, from which refusals get their lines.

use anyhow::{Context, bail};
use straightway_model::scenario::{Scenario, Topic};
use straightway_scenario::check::Refusals;

use crate::command::{library::Runner, source};

/// A scenario and where it came from.
#[derive(Debug)]
pub(super) struct Question {
    /// The scenario.
    pub(super) scenario: Scenario,
    name: String,
    text: Option<String>,
}

impl Question {
    /// Reads the scenario `asked` for; its defaults where none is.
    pub(super) fn read(asked: Option<&str>, topic: Topic) -> anyhow::Result<Self> {
        let Some(asked) = asked else {
            return Ok(Self {
                scenario: Scenario::default_of(topic),
                name: format!("{} with its defaults", topic.name()),
                text: None,
            });
        };
        let text = source::text(Runner::Plan, asked)?;
        let scenario = Scenario::read(&text).with_context(|| format!("scenario {asked}"))?;
        if scenario.topic() != topic {
            let of = scenario.topic().name();
            bail!("scenario {asked} is about {of}: ask `straightway plan {of} --scenario {asked}`");
        }
        Ok(Self {
            scenario,
            name: asked.to_owned(),
            text: Some(text),
        })
    }

    /// A refusal that the model made, with the scenario's name and lines.
    pub(super) fn refuse(&self, refused: Refusals) -> anyhow::Error {
        let refused = match &self.text {
            Some(text) => refused.located(text),
            None => refused,
        };
        anyhow::Error::new(refused).context(format!("scenario {}", self.name))
    }
}
