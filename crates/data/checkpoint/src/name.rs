//! The names of the folders and files of checkpoints.
//!
//! Only a name that [`step_of`] accepts is a step. The names of unfinished saves and removals begin with a dot.

use straightway_core::{Error, ErrorKind, Result};

/// Step numbers are below this: 18 digits, more than any clock or sample counter reaches.
pub const STEP_MAX: u64 = 1_000_000_000_000_000_000;

/// The maximum length of a run's name.
const RUN_CHARS_MAX: usize = 64;

/// The file that makes a folder a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The single tag file of a step that version 0.1.0 wrote. It is refused.
pub(crate) const TAGS: &str = "tags.json";

/// The prefix of steps that version 0.1.0 was removing: `.trash-STEP-RUN`. They are refused.
pub(crate) const TRASH: &str = ".trash-";

/// The maximum length of a tag.
const TAG_CHARS_MAX: usize = 64;

/// The file that a saving job locks.
pub(crate) const LOCK: &str = ".lock";

/// The name of a step's folder.
pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step}")
}

/// The step whose folder has this name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    // Each step has one name: `step-007` and `step-+7` are not steps.
    (step < STEP_MAX && step_folder(step) == name).then_some(step)
}

/// Parses a name in a store and formats it again; `None` if it is not a step, attempt, tag or record. Each has exactly
/// one name, so the result is always `name` itself.
pub fn canonical(name: &str) -> Option<String> {
    let step = step_of(name).map(step_folder);
    let attempt = || Some(Attempt::of(name)?.folder());
    let intent = || Some(Removal::of_intent(name)?.intent());
    let decision = || Some(Removal::of_decision(name)?.decision());
    let hold = || Some(Hold::of(name)?.name());
    let tag = || tag_of(name).map(tag_file);
    step.or_else(attempt)
        .or_else(intent)
        .or_else(decision)
        .or_else(hold)
        .or_else(tag)
}

/// The name of a rank's shard: a safetensors file, or chunks that need the manifest. In a store without renames, shards
/// of several attempts are below one step; a mark distinguishes them.
pub(crate) fn shard_file(rank: u32, world: u32, is_plain: bool, mark: Option<&str>) -> String {
    let suffix = if is_plain { "safetensors" } else { "chunks" };
    let mark = mark.map_or_else(String::new, |mark| format!("-{mark}"));
    format!("rank-{rank:05}-of-{world:05}{mark}.{suffix}")
}

/// The mark of a writer's shards in an attempt, unique to them.
pub(crate) fn mark(writer: &str, attempt: &Attempt) -> String {
    format!("{writer}-{}", attempt.sequence)
}

/// The record that each rank of an attempt puts first.
pub(crate) const BEGUN: &str = "begun";

/// The record of an attempt whose manifest was put without a response.
pub(crate) const UNDECIDED: &str = "undecided";

/// The record of a writer of an attempt's objects.
pub(crate) fn writer_file(writer: &str) -> String {
    format!("writer-{writer}")
}

/// The writer of such a record.
pub(crate) fn writer_of(name: &str) -> Option<&str> {
    name.strip_prefix("writer-").filter(|nonce| is_nonce(nonce))
}

/// Whether a file of a step references no other step: every file except chunk files, which need the manifest.
pub(crate) fn is_plain_shard(name: &str) -> bool {
    !(name.starts_with("rank-") && name.ends_with(".chunks"))
}

/// The name of a rank's shard until the commit. It contains the writer's nonce, so that the file of a dead process with
/// the same rank is never used instead.
pub(crate) fn shard_draft(rank: u32, writer: &str) -> String {
    format!(".shard-{rank:05}-{writer}")
}

/// The file that announces the coordinator of an attempt to its ranks.
pub(crate) fn announcement(coordinator: &str) -> String {
    format!("coordinator-{coordinator}")
}

/// The nonce of the coordinator in an announcement.
pub(crate) fn announced(name: &str) -> Option<&str> {
    name.strip_prefix("coordinator-").filter(|nonce| is_nonce(nonce))
}

/// The file of a rank's shard report to one coordinator.
pub(crate) fn part_file(rank: u32, coordinator: &str) -> String {
    format!("part-{rank:05}-{coordinator}.json")
}

/// The file that tells one coordinator why a rank could not write its shard.
pub(crate) fn failure_file(rank: u32, coordinator: &str) -> String {
    format!("failed-{rank:05}-{coordinator}.txt")
}

/// A unique name made of 64 random bits.
pub(crate) fn fresh_nonce() -> String {
    format!("{:016x}", straightway_sys::nonce::nonce())
}

/// Whether a text has the form of [`fresh_nonce`].
pub(crate) fn is_nonce(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// The file of a tag in its step.
pub(crate) fn tag_file(tag: &str) -> String {
    format!("tag-{tag}")
}

/// The tag of a tag file.
pub(crate) fn tag_of(name: &str) -> Option<&str> {
    name.strip_prefix("tag-").filter(|tag| is_tag(tag))
}

fn is_tag(tag: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !tag.is_empty() && tag.len() <= TAG_CHARS_MAX && tag.chars().all(fits)
}

/// Returns an error if a tag is not valid.
pub(crate) fn check_tag(tag: &str) -> Result<()> {
    if is_tag(tag) {
        return Ok(());
    }
    let target = format!("{:?}", tag.chars().take(TAG_CHARS_MAX).collect::<String>());
    let message = format!("a tag is 1 to {TAG_CHARS_MAX} letters, digits, `_`, `-` and `.`");
    Err(Error::new(ErrorKind::Invalid, "tag with", target, message))
}

/// A removal of a step, under way or left by a dead process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removal {
    pub(crate) step: u64,
    /// Unique to this removal.
    pub(crate) nonce: String,
}

impl Removal {
    /// The name of its intent, the record that announces it.
    pub(crate) fn intent(&self) -> String {
        format!(".removal-{}-{}", self.step, self.nonce)
    }

    /// The name of its decision, the record that settles it.
    pub(crate) fn decision(&self) -> String {
        format!(".decision-{}-{}", self.step, self.nonce)
    }

    /// The removal of an intent.
    pub(crate) fn of_intent(name: &str) -> Option<Self> {
        Self::after(name.strip_prefix(".removal-")?).filter(|removal| removal.intent() == name)
    }

    /// The removal of a decision.
    pub(crate) fn of_decision(name: &str) -> Option<Self> {
        Self::after(name.strip_prefix(".decision-")?).filter(|removal| removal.decision() == name)
    }

    fn after(rest: &str) -> Option<Self> {
        let (step, nonce) = rest.split_once('-')?;
        let step = step.parse().ok().filter(|step| *step < STEP_MAX)?;
        let nonce = is_nonce(nonce).then(|| nonce.to_owned())?;
        Some(Self { step, nonce })
    }
}

/// A record that protects a step which a save references, from before its commit until after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The protected step.
    pub(crate) step: u64,
    /// The save.
    pub(crate) attempt: Attempt,
}

impl Hold {
    pub(crate) fn name(&self) -> String {
        format!(".hold-{}{}", self.step, self.attempt.folder())
    }

    /// The hold that has this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(".hold-")?;
        let (step, attempt) = rest.split_at(rest.find('.')?);
        let hold = Self {
            step: step.parse().ok()?,
            attempt: Attempt::of(attempt)?,
        };
        (hold.name() == name).then_some(hold)
    }
}

/// The name of a parity file, with the same mark as a shard.
pub(crate) fn parity_file(number: usize, mark: Option<&str>) -> String {
    let mark = mark.map_or_else(String::new, |mark| format!("-{mark}"));
    format!("parity-{number:05}{mark}.bin")
}

/// Whether a manifest may contain this file name: in the step's own folder, and not hidden.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(fits)
}

/// One save of one run. All its ranks agree on it, and no other save has the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the step.
    pub step: u64,
    /// The name of the run: letters, digits, `_` and `-`.
    pub run: String,
    /// The sequence number of the save in its run.
    pub sequence: u64,
}

impl Attempt {
    /// The name of its folder.
    pub(crate) fn folder(&self) -> String {
        let Self { step, run, sequence } = self;
        format!(".step-{step}.{run}-{sequence}")
    }

    /// The transient error of a failed commit.
    pub(crate) fn failed(&self, why: impl Into<String>) -> Error {
        let target = format!("step {}", self.step);
        Error::new(ErrorKind::Transient, "commit", target, why)
    }

    /// The attempt whose folder has this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (step, rest) = name.strip_prefix(".step-")?.split_once('.')?;
        let (run, sequence) = rest.rsplit_once('-')?;
        // A folder that another program made is not an attempt, even if its name is similar.
        check_run(run).ok()?;
        let attempt = Self {
            step: step.parse().ok()?,
            run: run.to_owned(),
            sequence: sequence.parse().ok()?,
        };
        (attempt.folder() == name).then_some(attempt)
    }
}

/// Returns an error if the name of a run is not valid.
pub(crate) fn check_run(run: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !run.is_empty() && run.len() <= RUN_CHARS_MAX && run.chars().all(fits) {
        return Ok(());
    }
    let target = format!("{:?}", run.chars().take(RUN_CHARS_MAX).collect::<String>());
    let message = format!("its name must be 1 to {RUN_CHARS_MAX} letters, digits, `_` and `-`");
    Err(Error::new(ErrorKind::Invalid, "name a run", target, message))
}

/// Returns an error if a step number is too large.
pub(crate) fn check_step(step: u64) -> Result<()> {
    if step < STEP_MAX {
        return Ok(());
    }
    let message = "steps are below 10^18";
    Err(Error::new(ErrorKind::Invalid, "save step", step, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_name_and_nothing_else_is_read_as_one() {
        for step in [0, 7, 1000, STEP_MAX - 1] {
            assert_eq!(step_of(&step_folder(step)), Some(step));
        }
        for name in ["step-007", "step-+7", "step-", ".step-7", "step-7.old", "step--1"] {
            assert_eq!(step_of(name), None, "{name}");
        }
        assert_eq!(step_of(&format!("step-{STEP_MAX}")), None);
    }

    #[test]
    fn an_attempt_is_read_from_its_folder_s_name_even_where_the_run_has_dashes() {
        let attempt = Attempt {
            step: 30,
            run: "slurm-123-2".to_owned(),
            sequence: 4,
        };
        assert_eq!(Attempt::of(&attempt.folder()), Some(attempt));
        assert_eq!(Attempt::of(".step-1"), None);
        assert_eq!(Attempt::of("step-1.a-1"), None);
    }

    #[test]
    fn records_are_read_from_their_names_and_nothing_else_is_one() {
        let nonce = "0123456789abcdef".to_owned();
        let removal = Removal { step: 7, nonce };
        assert_eq!(Removal::of_intent(&removal.intent()).unwrap(), removal);
        assert_eq!(Removal::of_decision(&removal.decision()).unwrap(), removal);
        assert_eq!(Removal::of_decision(&removal.intent()), None);
        assert_eq!(Removal::of_intent(".removal-7-x"), None);
        let attempt = Attempt::of(".step-9.a-b-3").unwrap();
        let hold = Hold { step: 7, attempt };
        assert_eq!(Hold::of(&hold.name()).unwrap(), hold);
        assert_eq!(Hold::of(".hold-7"), None);
        assert_eq!(tag_of(&tag_file("v1.0")), Some("v1.0"));
        assert!(check_tag("../x").is_err() && check_tag("").is_err());
    }

    #[test]
    fn a_run_s_name_that_would_lead_out_of_the_folder_is_refused() {
        assert!(check_run("slurm_12-3").is_ok());
        for run in ["", "../x", "a/b", "a.b", &"r".repeat(65)] {
            assert!(check_run(run).is_err(), "{run}");
        }
    }
}
