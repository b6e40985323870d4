//! Where a simulator's scenario comes from, and what the command line changes in it.

use std::path::Path;

use anyhow::{Context, bail};
use serde::{Serialize, de::DeserializeOwned};
use straightway_model::{
    check::{self, Checked},
    scenario::library::Entry,
    setting::{self, Setting},
};

use crate::command::plan::source::bounded;

/// Reads the scenario called `asked`, found as `case` among `cases`, or else a file of that name.
pub(super) fn read<T>(asked: &str, case: Option<&Entry>, cases: &[Entry]) -> anyhow::Result<T>
where
    T: DeserializeOwned + Checked,
{
    let text = if let Some(case) = case {
        case.text.to_owned()
    } else {
        let path = Path::new(asked);
        if !path.exists() {
            let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
            let names = names.join(", ");
            bail!("no scenario or file `{asked}`; there are {names}");
        }
        bounded(path)?
    };
    check::read(&text).with_context(|| format!("scenario {asked}"))
}

/// The scenario with every `PATH=VALUE` of `set` made.
pub(super) fn set<T>(scenario: T, set: &[String]) -> anyhow::Result<T>
where
    T: Serialize + DeserializeOwned + Checked,
{
    let settings = set.iter().map(|text| Setting::parse(text));
    let settings = settings.collect::<Result<Vec<_>, _>>()?;
    Ok(setting::set_input(scenario, &settings)?)
}
