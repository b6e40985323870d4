//! The scenarios that come with the program, and the command that runs each.

use anyhow::Context;
use straightway_fabric as fabric;
use straightway_pcie as pcie;
use straightway_planner::{library::LIBRARY, scenario::Scenario};
use straightway_report::{Cell, Column, Table, Unit};
use straightway_scenario::check;
use straightway_scenario::library::Entry;

/// The command that runs a scenario: the cluster planner, or one of the simulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runner {
    /// `straightway plan TOPIC`.
    Plan,
    /// `straightway sim pcie`.
    Pcie,
    /// `straightway sim fabric`.
    Fabric,
}

/// The description of a scenario.
struct Label {
    command: String,
    title: String,
    claims: usize,
}

impl Runner {
    const ALL: [Self; 3] = [Self::Plan, Self::Pcie, Self::Fabric];

    /// The scenarios of this runner.
    fn entries(self) -> &'static [Entry] {
        match self {
            Self::Plan => LIBRARY,
            Self::Pcie => pcie::CASES,
            Self::Fabric => fabric::cases::CASES,
        }
    }

    /// The prefix of the names of its files.
    fn prefix(self) -> &'static str {
        match self {
            Self::Plan => "",
            Self::Pcie => "pcie-",
            Self::Fabric => "fabric-",
        }
    }

    /// Reads the description of a scenario.
    fn label(self, entry: &Entry) -> anyhow::Result<Label> {
        let (command, title, claims) = match self {
            Self::Plan => {
                let scenario: Scenario = check::read(entry.text).context(entry.name)?;
                let command = format!("plan {}", scenario.topic().name());
                (command, scenario.title, scenario.claims.len())
            }
            Self::Pcie => {
                let scenario: pcie::PcieScenario = check::read(entry.text).context(entry.name)?;
                ("sim pcie".to_owned(), scenario.title, scenario.claims.len())
            }
            Self::Fabric => {
                let scenario: fabric::FabricScenario = check::read(entry.text).context(entry.name)?;
                let command = "sim fabric".to_owned();
                (command, scenario.title, scenario.claims.len())
            }
        };
        Ok(Label { command, title, claims })
    }

    /// The command line that runs a scenario.
    pub(crate) fn command(self, entry: &Entry) -> anyhow::Result<String> {
        Ok(format!("straightway {}", self.label(entry)?.command))
    }
}

/// The scenario of this name: first among those of `runner`, whose prefix may be left out, then among all.
pub(crate) fn find(runner: Runner, name: &str) -> Option<(Runner, &'static Entry)> {
    let own = name.strip_prefix(runner.prefix()).unwrap_or(name);
    let is_own = |entry: &&Entry| entry.name == own;
    let found = runner.entries().iter().find(is_own);
    found.map(|entry| (runner, entry)).or_else(|| {
        all()
            .find(|(full, ..)| full == name)
            .map(|(_, runner, entry)| (runner, entry))
    })
}

/// The scenario that was probably meant: one with a near name, else the first whose name contains the typed text or is
/// contained in it.
pub(crate) fn nearest(typed: &str) -> Option<String> {
    straightway_core::nearest::nearest(typed, all().map(|(name, ..)| name)).or_else(|| {
        let mut names = all().map(|(name, ..)| name);
        names.find(|name| name.contains(typed) || typed.contains(name.as_str()))
    })
}

/// The names of all scenarios, in order.
pub(crate) fn names() -> Vec<String> {
    let mut names: Vec<_> = all().map(|(name, ..)| name).collect();
    names.sort();
    names
}

/// All scenarios: file name, runner and entry.
fn all() -> impl Iterator<Item = (String, Runner, &'static Entry)> {
    Runner::ALL.into_iter().flat_map(|runner| {
        let entries = runner.entries().iter();
        entries.map(move |entry| (format!("{}{}", runner.prefix(), entry.name), runner, entry))
    })
}

/// A table of all scenarios, with the command that runs each.
pub(crate) fn table() -> anyhow::Result<Table> {
    let columns = [
        Column::text("scenario"),
        Column::text("command"),
        Column::text("about"),
        Column::new("claims", Unit::Count),
    ];
    let mut table = Table::new("", columns);
    for (name, runner, entry) in all() {
        let label = runner.label(entry)?;
        table.push([
            Cell::from(name),
            label.command.into(),
            label.title.into(),
            label.claims.into(),
        ]);
    }
    Ok(table)
}

/// A table of one simulator's scenarios.
pub(crate) fn table_of(runner: Runner) -> anyhow::Result<Table> {
    let mut table = Table::new("", [Column::text("scenario"), Column::text("about")]);
    for entry in runner.entries() {
        let title = runner.label(entry)?.title;
        table.push([Cell::from(entry.name), title.into()]);
    }
    Ok(table)
}
