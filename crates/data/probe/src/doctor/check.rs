//! A check as data: its title, why it matters, how to fix a failure, and the function that performs it.
//!
//! The guide in `docs/doctor.md` and the report of a run come from the same table, so they always agree.

use serde::Serialize;

use super::{cufile_path::CufilePath, facts::Facts};

/// The part of the machine that a check examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The GPU, its driver, cuFile, the kernel and the platform they run on.
    Machine,
    /// The network between this machine and its storage.
    Fabric,
    /// The file system and the drives of the path.
    Storage,
    /// A real transfer.
    Live,
}

impl Layer {
    /// All layers, in the order they are reported.
    pub const ALL: [Self; 4] = [Self::Machine, Self::Fabric, Self::Storage, Self::Live];

    /// The title for display.
    pub fn title(self) -> &'static str {
        match self {
            Self::Machine => "driver and platform",
            Self::Fabric => "fabric",
            Self::Storage => "file system and device",
            Self::Live => "live probe",
        }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It closes a cuFile path.
    Fail,
    /// It costs speed, or may do so.
    Warn,
    /// No problem.
    Pass,
    /// It does not apply here, or cannot be examined.
    NotApplicable,
}

impl State {
    /// All states, the worst first.
    pub const ALL: [Self; 4] = [Self::Fail, Self::Warn, Self::Pass, Self::NotApplicable];

    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Pass => "pass",
            Self::NotApplicable => "n/a",
        }
    }
}

/// One check.
#[derive(Debug)]
pub struct Check {
    /// A stable name for programs, such as `driver.open`.
    pub id: &'static str,
    /// The part of the machine that it examines.
    pub layer: Layer,
    /// The title for display.
    pub title: &'static str,
    /// The paths that a failure closes, unless the outcome narrows them.
    pub ways: &'static [CufilePath],
    /// Why it matters.
    pub why: &'static str,
    /// How to fix a failure; an outcome may be more specific.
    pub mend: &'static str,
    /// Performs the check.
    pub(super) look: fn(&Facts<'_>) -> Outcome,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) state: State,
    pub(super) seen: String,
    pub(super) mend: Option<String>,
    pub(super) ways: Option<&'static [CufilePath]>,
}

impl Outcome {
    fn new(state: State, seen: impl Into<String>) -> Self {
        Self {
            state,
            seen: seen.into(),
            mend: None,
            ways: None,
        }
    }

    pub(super) fn pass(seen: impl Into<String>) -> Self {
        Self::new(State::Pass, seen)
    }

    pub(super) fn warn(seen: impl Into<String>) -> Self {
        Self::new(State::Warn, seen)
    }

    pub(super) fn fail(seen: impl Into<String>) -> Self {
        Self::new(State::Fail, seen)
    }

    /// Not applicable, or impossible to examine.
    pub(super) fn skip(seen: impl Into<String>) -> Self {
        Self::new(State::NotApplicable, seen)
    }

    /// Sets the fix for this machine, instead of the check's general one.
    pub(super) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// Closes only these paths.
    pub(super) fn closes(mut self, ways: &'static [CufilePath]) -> Self {
        self.ways = Some(ways);
        self
    }
}

/// The result of a check on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's stable name.
    pub id: &'static str,
    /// The part of the machine.
    pub layer: Layer,
    /// The title for display.
    pub title: &'static str,
    /// The result.
    pub state: State,
    /// The observation.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to fix it; only for a failure or a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// The paths that this finding closes; empty unless it is a failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closes: Vec<CufilePath>,
    /// The paths that the check concerns.
    #[serde(skip)]
    pub(super) ways: &'static [CufilePath],
}

impl Check {
    /// Performs the check.
    pub(super) fn find(&self, facts: &Facts<'_>) -> Finding {
        let outcome = (self.look)(facts);
        let ways = outcome.ways.unwrap_or(self.ways);
        let is_trouble = outcome.state <= State::Warn;
        Finding {
            id: self.id,
            layer: self.layer,
            title: self.title,
            state: outcome.state,
            seen: outcome.seen,
            why: self.why,
            mend: is_trouble.then(|| outcome.mend.unwrap_or_else(|| self.mend.to_owned())),
            closes: if outcome.state == State::Fail {
                ways.to_vec()
            } else {
                Vec::new()
            },
            ways,
        }
    }
}

/// The first few items, and the number of the others.
pub(super) fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 3;
    let more = items.len().saturating_sub(SHOWN);
    let shown: Vec<String> = items.take(SHOWN).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
