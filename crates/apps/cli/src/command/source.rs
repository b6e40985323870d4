//! Reads the text of a scenario from the library or from a file.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};
use straightway_scenario::check::TEXT_BYTES_MAX;

use super::library::{self, Runner};

/// The text of the scenario `asked`, which `runner` has to run.
pub(crate) fn text(runner: Runner, asked: &str) -> anyhow::Result<String> {
    match library::find(runner, asked) {
        Some((owner, entry)) if owner == runner => Ok(entry.text.to_owned()),
        Some((owner, entry)) => {
            let command = owner.command(entry)?;
            bail!("scenario {asked} is for another command: run `{command} --scenario {asked}`")
        }
        None => from_file(asked),
    }
}

fn from_file(asked: &str) -> anyhow::Result<String> {
    let path = Path::new(asked);
    if asked.trim().is_empty() {
        bail!("no scenario or file is named; `straightway plan list` lists the scenarios");
    }
    if !path.exists() {
        match library::nearest(asked) {
            Some(name) => bail!("no scenario or file `{asked}`; did you mean {name}?"),
            None => bail!("no scenario or file `{asked}`; `straightway plan list` lists them"),
        }
    }
    bounded(path)
}

/// Reads a text file up to the maximum length of a scenario: a device could be endless.
pub(crate) fn bounded(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let mut text = String::new();
    let limit = TEXT_BYTES_MAX as u64;
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let read = file.take(limit + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {name}"))?;
    if text.len() as u64 > limit {
        bail!("cannot read {name}: the limit for scenarios is {limit} bytes");
    }
    Ok(text)
}
