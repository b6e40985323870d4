//! Where a scenario's text comes from: the library, or a file.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};
use straightway_scenario::check::TEXT_BYTES_MAX;

use super::library::{self, Runner};

/// The text of the scenario `asked` for, which `runner` is to run.
pub(crate) fn text(runner: Runner, asked: &str) -> anyhow::Result<String> {
    match library::find(runner, asked) {
        Some((owner, entry)) if owner == runner => Ok(entry.text.to_owned()),
        Some((owner, entry)) => {
            let command = owner.command(entry)?;
            bail!("scenario {asked} is for another command: ask `{command} --scenario {asked}`")
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
