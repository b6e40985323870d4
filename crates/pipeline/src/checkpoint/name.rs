//! What the folders and files of checkpoints are called.
//!
//! Only what [`step_of`] reads is a step. Everything unfinished has a name that begins with a dot.

use straightway_core::{Error, Kind, Result};

/// Steps are below this: 18 digits, more than any clock or counter of samples gets to.
pub const STEP_MAX: u64 = 1_000_000_000_000_000_000;

/// The longest name that a run may have.
const RUN_CHARS_MAX: usize = 64;

/// The file whose presence makes a folder a checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";

/// What somebody calls a step.
pub(crate) const TAGS: &str = "tags.json";

/// What steps are called while they are removed.
pub(crate) const TRASH: &str = ".trash-";

/// The file that the job that saves holds a lock on.
pub(crate) const LOCK: &str = ".lock";

/// The name of a step's folder.
pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step}")
}

/// The step whose folder has this name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let step = digits.parse().ok()?;
    // One name for each step: `step-007` and `step-+7` are none.
    (step < STEP_MAX && step_folder(step) == name).then_some(step)
}

/// The shard of a rank: a safetensors file, or chunks that only the manifest makes sense of.
pub(crate) fn shard_file(rank: u32, world: u32, is_plain: bool) -> String {
    let suffix = if is_plain { "safetensors" } else { "chunks" };
    format!("rank-{rank:05}-of-{world:05}.{suffix}")
}

/// Whether a file of a step may be there where no shard refers to another step: any but those that only the
/// manifest makes sense of.
pub(crate) fn is_plain_shard(name: &str) -> bool {
    !name.ends_with(".chunks")
}

/// What a rank says of its shard until the commit.
pub(crate) fn part_file(rank: u32) -> String {
    format!("part-{rank:05}.json")
}

/// What a rank leaves that could not write its shard, and why.
pub(crate) fn failure_file(rank: u32) -> String {
    format!("failed-{rank:05}.txt")
}

/// A parity file.
pub(crate) fn parity_file(number: usize) -> String {
    format!("parity-{number:05}.bin")
}

/// Whether a manifest may name such a file: one in the step's own folder, and visible.
pub(crate) fn is_file_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(fits)
}

/// One save of one run: what all its ranks agree on, and no other save has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The step that is saved.
    pub step: u64,
    /// The run of the job: letters, digits, `_` and `-`.
    pub run: String,
    /// Counts the saves of the run.
    pub sequence: u64,
}

impl Attempt {
    /// The name of the folder that it works in.
    pub(crate) fn folder(&self) -> String {
        let Self {
            step,
            run,
            sequence,
        } = self;
        format!(".step-{step}.{run}-{sequence}")
    }

    /// The attempt whose folder has this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (step, rest) = name.strip_prefix(".step-")?.split_once('.')?;
        let (run, sequence) = rest.rsplit_once('-')?;
        let attempt = Self {
            step: step.parse().ok()?,
            run: run.to_owned(),
            sequence: sequence.parse().ok()?,
        };
        (attempt.folder() == name).then_some(attempt)
    }
}

/// Refuses what cannot be the name of a run.
pub(crate) fn check_run(run: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !run.is_empty() && run.len() <= RUN_CHARS_MAX && run.chars().all(fits) {
        return Ok(());
    }
    let target = format!("{:?}", run.chars().take(RUN_CHARS_MAX).collect::<String>());
    let message = format!("1 to {RUN_CHARS_MAX} letters, digits, `_` and `-` are meant");
    Err(Error::new(Kind::Invalid, "name a run", target, message))
}

/// Refuses what cannot be a step.
pub(crate) fn check_step(step: u64) -> Result<()> {
    if step < STEP_MAX {
        return Ok(());
    }
    let message = "steps are below 10^18";
    Err(Error::new(Kind::Invalid, "save step", step, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_name_and_nothing_else_is_read_as_one() {
        for step in [0, 7, 1000, STEP_MAX - 1] {
            assert_eq!(step_of(&step_folder(step)), Some(step));
        }
        for name in [
            "step-007",
            "step-+7",
            "step-",
            ".step-7",
            "step-7.old",
            "step--1",
        ] {
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
    fn a_run_s_name_that_would_lead_out_of_the_folder_is_refused() {
        assert!(check_run("slurm_12-3").is_ok());
        for run in ["", "../x", "a/b", "a.b", &"r".repeat(65)] {
            assert!(check_run(run).is_err(), "{run}");
        }
    }
}
