//! Where a scenario comes from: a file, the library, or the defaults.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};
use straightway_model::{
    check::{self, Refusals, TEXT_BYTES_MAX},
    scenario::{
        Scenario, Topic,
        library::{self, LIBRARY},
    },
};

/// A scenario with its text, from which refusals get their lines.
#[derive(Debug)]
pub(super) struct Source {
    /// The scenario.
    pub(super) scenario: Scenario,
    name: String,
    text: Option<String>,
}

impl Source {
    /// A refusal that the model made, with the scenario's name and lines.
    pub(super) fn refuse(&self, refused: Refusals) -> anyhow::Error {
        let refused = match &self.text {
            Some(text) => refused.located(text),
            None => refused,
        };
        anyhow::Error::new(refused).context(format!("scenario {}", self.name))
    }
}

/// Reads the scenario `asked` for; its defaults where none is.
pub(super) fn read(asked: Option<&str>, topic: Topic) -> anyhow::Result<Source> {
    let Some(asked) = asked else {
        let scenario = Scenario::default_of(topic);
        let name = format!("{} with its defaults", topic.name());
        return Ok(Source {
            scenario,
            name,
            text: None,
        });
    };
    let text = match library::find(asked) {
        Some(entry) => entry.text.to_owned(),
        None => text_of(asked)?,
    };
    let scenario: Scenario = check::read(&text).with_context(|| format!("scenario {asked}"))?;
    if scenario.topic() != topic {
        let of = scenario.topic().name();
        bail!("scenario {asked} is about {of}: ask `straightway plan {of} --scenario {asked}`");
    }
    Ok(Source {
        scenario,
        name: asked.to_owned(),
        text: Some(text),
    })
}

/// The text of a scenario file.
fn text_of(asked: &str) -> anyhow::Result<String> {
    let path = Path::new(asked);
    if !path.exists() {
        match nearest(asked) {
            Some(name) => bail!("no scenario or file `{asked}`; did you mean {name}?"),
            None => bail!("no scenario or file `{asked}`; `straightway plan list` lists them"),
        }
    }
    bounded(path)
}

/// A text file, read no further than a scenario may be long: a device has no end.
pub(crate) fn bounded(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let mut text = String::new();
    let limit = TEXT_BYTES_MAX as u64;
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let read = file.take(limit + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {name}"))?;
    if text.len() as u64 > limit {
        bail!("{name} has more than {limit} bytes, which no scenario needs");
    }
    Ok(text)
}

/// The scenario whose name holds what was typed, or is held by it.
fn nearest(asked: &str) -> Option<&'static str> {
    let names = LIBRARY.iter().map(|entry| entry.name);
    let mut close = names.filter(|name| name.contains(asked) || asked.contains(name));
    close.next()
}
