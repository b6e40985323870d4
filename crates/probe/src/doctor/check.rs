//! A check as data: what it is called, why it matters, how to mend it, and the look it takes.
//!
//! The guide in `docs/doctor.md` and the report of a run come from the same table, so neither can
//! say what the other does not.

use serde::Serialize;

use super::{facts::Facts, way::Way};

/// Which part of the machine a check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The GPU, its driver, cuFile, the kernel and the platform they run on.
    Machine,
    /// The network between this machine and its storage.
    Fabric,
    /// The file system and the drives of the path.
    Storage,
    /// What a real transfer did.
    Live,
}

impl Layer {
    /// All layers, in the order they are reported.
    pub const ALL: [Self; 4] = [Self::Machine, Self::Fabric, Self::Storage, Self::Live];

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Machine => "driver and platform",
            Self::Fabric => "fabric",
            Self::Storage => "file system and device",
            Self::Live => "live probe",
        }
    }
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It closes a way.
    Fail,
    /// It costs speed, or may.
    Warn,
    /// It is as it should be.
    Pass,
    /// It does not matter here, or cannot be seen.
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

/// One thing to look at.
#[derive(Debug)]
pub struct Check {
    /// A stable name for programs, such as `driver.open`.
    pub id: &'static str,
    /// Which part of the machine it looks at.
    pub layer: Layer,
    /// What people call it.
    pub title: &'static str,
    /// The ways that a failure closes, where the outcome does not narrow them.
    pub ways: &'static [Way],
    /// Why it matters.
    pub why: &'static str,
    /// How to mend it; an outcome may say it with the names of this machine.
    pub mend: &'static str,
    /// The look.
    pub(super) look: fn(&Facts<'_>) -> Outcome,
}

/// What a look saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) state: State,
    pub(super) seen: String,
    pub(super) mend: Option<String>,
    pub(super) ways: Option<&'static [Way]>,
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

    /// Not applicable, or not to be seen from here.
    pub(super) fn skip(seen: impl Into<String>) -> Self {
        Self::new(State::NotApplicable, seen)
    }

    /// How to mend it on this machine, in place of the check's general word.
    pub(super) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// Closes these ways only.
    pub(super) fn closes(mut self, ways: &'static [Way]) -> Self {
        self.ways = Some(ways);
        self
    }
}

/// A check and what it saw on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's stable name.
    pub id: &'static str,
    /// The part of the machine.
    pub layer: Layer,
    /// What people call it.
    pub title: &'static str,
    /// How it came out.
    pub state: State,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to mend it; only on a failure or a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// The ways this finding closes: those of a failure, none otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub closes: Vec<Way>,
    /// The ways the check is about.
    #[serde(skip)]
    pub(super) ways: &'static [Way],
}

impl Check {
    /// Takes the look.
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

/// The first few of many, and how many more.
pub(super) fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 3;
    let more = items.len().saturating_sub(SHOWN);
    let shown: Vec<String> = items.take(SHOWN).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
