//! The protocol that removes a step while other processes may tag it or save a step that references it.
//!
//! It needs no lock. A store must offer put-if-absent, get, list and remove, as object stores do.
//!
//! - A remover puts an *intent* under a unique name, and then looks for reasons to keep the step: tags, holds, steps
//!   that reference it. If there are none, it puts the *decision* of its removal, "remove". Only the first put of a
//!   decision succeeds. If it is the remover's, the step is gone from then on: lists leave it out, and any process may
//!   delete its files. Before that, no file of it is touched.
//! - A process that needs the step first puts its reason (a tag, or the *hold* of a save) and then looks for intents.
//!   For each it puts the decision "keep". If the decision is already "remove", the step is gone, and the tag or the
//!   save fails.
//!
//! Either the remover searches after the reason was put and finds it, or the intent was put before the other process
//! searches and is found there. The decision settles which was first. A crash at any point is safe: an intent without a
//! decision removes nothing, and any process can carry out a decision.
//!
//! Records are deleted in a fixed order: the intent, then the decision. So a decision is valid only if its intent
//! exists when it is read *after* the decision. A remover that stalled until its records were deleted puts its decision
//! without an intent, detects that, and gives up. A reason is valid only if the step still has its manifest after all
//! decisions were put, because a completed removal may have deleted its records.
//!
//! A decision names its folder (by inode) and manifest (by checksum): a step that is saved again under the same number
//! is a different one.

use std::fmt;

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::store::Durability;

use super::{
    name::{Attempt, Hold, Removal},
    sum::Sum,
};

#[cfg(test)]
mod tests;

/// The maximum number of attempts of a removal that other processes stop.
const TRIES: usize = 4;

/// The decision that stops a removal.
const KEEP: &str = "keep";

/// The store operations that the protocol needs.
pub(crate) trait Ledger {
    /// An open step, valid even if its name changes.
    type Held;

    /// All names: of records, steps and attempts.
    fn names(&self) -> Result<Vec<String>>;
    /// Puts a record if it does not exist. Returns whether it was put.
    fn put(&self, name: &str, text: &str, durability: Durability) -> Result<bool>;
    /// The text of a record.
    fn get(&self, name: &str) -> Result<Option<String>>;
    /// Removes a record, if it is there.
    fn discard(&self, name: &str) -> Result<()>;
    /// Opens the step with this number.
    fn open(&self, step: u64) -> Result<Option<Self::Held>>;
    /// The identity of this step among all that have had its number.
    fn identity(&self, held: &Self::Held) -> Result<StepIdentity>;
    /// Its tags.
    fn tags(&self, held: &Self::Held) -> Result<Vec<String>>;
    /// The reason why another listed step needs it, if one does.
    fn dependant(&self, step: u64) -> Result<Option<String>>;
    /// Deletes the step's files and its name, if it still has this identity. A newer step of that name is not touched.
    fn erase(&self, step: u64, held: &Self::Held, identity: &StepIdentity) -> Result<()>;
}

/// The identity of a step: its folder and its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepIdentity {
    /// The folder's inode number; 0 in a store without folders.
    pub(crate) inode: u64,
    /// The checksum of the manifest; `None` if there is no manifest.
    pub(crate) manifest: Option<Sum>,
}

impl StepIdentity {
    /// Whether `other` is the same step, or what an interrupted deletion left of it.
    fn covers(&self, other: &Self) -> bool {
        let is_left = other.manifest.is_none();
        self.inode == other.inode && (is_left || self.manifest == other.manifest)
    }

    fn parse(text: &str) -> Option<Self> {
        let (inode, sum) = text.split_once(' ')?;
        let manifest = match sum {
            "-" => None,
            digits => Some(Sum(u64::from_str_radix(digits, 16).ok()?)),
        };
        let inode = inode.parse().ok()?;
        Some(Self { inode, manifest })
    }
}

impl fmt::Display for StepIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.manifest {
            Some(sum) => write!(f, "{} {sum}", self.inode),
            None => write!(f, "{} -", self.inode),
        }
    }
}

/// The outcome of a removal that ran without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The step is gone.
    Removed,
    /// The step stays, for this reason.
    Kept(String),
}

/// The decision of a removal.
enum Decision {
    Keep,
    Remove(StepIdentity),
    /// The records were deleted.
    Retired,
}

/// Removes a step, unless it is tagged or others need it.
pub(crate) fn remove<L: Ledger>(ledger: &L, step: u64, nonce: impl Fn() -> String) -> Result<Outcome> {
    let missing = |message: &str| {
        let target = format!("step {step}");
        Err(Error::new(ErrorKind::NotFound, "remove", target, message))
    };
    let Some(held) = ledger.open(step)? else {
        return missing("there is no such step");
    };
    let identity = ledger.identity(&held)?;
    for _ in 0..TRIES {
        let nonce = nonce();
        let removal = Removal { step, nonce };
        ledger.put(&removal.intent(), "", Durability::Unsynced)?;
        match reason(ledger, &removal, &held, &identity) {
            Ok(None) => {}
            // A step that was saved anew under this number is a different step, which this call does not remove.
            Ok(Some(Reason::Moved)) => {
                retire(ledger, &removal)?;
                return missing("another process removed it meanwhile");
            }
            Ok(Some(Reason::Needed(why))) => {
                retire(ledger, &removal)?;
                return Ok(Outcome::Kept(why));
            }
            Err(error) => {
                let _ = retire(ledger, &removal);
                return Err(error);
            }
        }
        // An error from here on leaves the records: other processes may be carrying out the decision.
        if decide(ledger, &removal, &identity)? {
            ledger.erase(step, &held, &identity)?;
            retire(ledger, &removal)?;
            return Ok(Outcome::Removed);
        }
        retire(ledger, &removal)?;
    }
    let message = "other processes stopped its removal repeatedly";
    Err(Error::new(ErrorKind::Busy, "remove", format!("step {step}"), message)
        .with_hint("try again when no job starts, tags or saves there"))
}

/// Why a removal stops.
enum Reason {
    /// The step with this number is not the one that was opened.
    Moved,
    /// The step is needed.
    Needed(String),
}

/// The reason to keep the step of an intent, if there is one.
fn reason<L: Ledger>(ledger: &L, removal: &Removal, held: &L::Held, identity: &StepIdentity) -> Result<Option<Reason>> {
    let step = removal.step;
    // Checked again after the intent was put: a process that saves this step anew from here on finds the intent.
    let is_same = match ledger.open(step)? {
        Some(now) => ledger.identity(&now)? == *identity,
        None => false,
    };
    if !is_same {
        return Ok(Some(Reason::Moved));
    }
    if let Some(tag) = ledger.tags(held)?.first() {
        return Ok(Some(Reason::Needed(format!("it is tagged {tag:?}"))));
    }
    // Holds are checked before steps: a hold is removed only after the step of its save exists.
    let names = ledger.names()?;
    let mut holds = names.iter().filter_map(|name| Hold::of(name));
    // A hold of a save whose folder is gone is void: the save was committed or abandoned.
    let is_live = |hold: &Hold| hold.step == step && names.contains(&hold.attempt.folder());
    if let Some(hold) = holds.find(is_live) {
        let save = hold.attempt.step;
        let why = format!("a save of step {save} that is under way refers to it");
        return Ok(Some(Reason::Needed(why)));
    }
    Ok(ledger.dependant(step)?.map(Reason::Needed))
}

/// Puts the decision to remove. Returns whether it is valid.
fn decide<L: Ledger>(ledger: &L, removal: &Removal, identity: &StepIdentity) -> Result<bool> {
    let text = format!("remove {identity}");
    if !ledger.put(&removal.decision(), &text, Durability::Synced)? {
        return Ok(false);
    }
    // If the intent is gone, another process has stopped this removal and deleted its records.
    Ok(ledger.get(&removal.intent())?.is_some())
}

/// Keeps a step: `put` puts the reason, and all undecided removals are stopped. Returns whether the step stays.
///
/// After an error, or if the step is removed, the reason is not deleted: another process may have been promised the
/// same tag.
pub(crate) fn keep<L: Ledger>(ledger: &L, step: u64, put: impl FnOnce(&L::Held) -> Result<()>) -> Result<bool> {
    let Some(held) = ledger.open(step)? else {
        return Ok(false);
    };
    match put(&held) {
        // The step's folder is gone.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        put => put?,
    }
    veto(ledger, step, &held)
}

/// Keeps all of `steps` for a save until [`release`]. Returns the first step that is gone, if any.
pub(crate) fn hold<L: Ledger>(ledger: &L, attempt: &Attempt, steps: &[u64]) -> Result<Option<u64>> {
    for &step in steps {
        let attempt = attempt.clone();
        let name = Hold { step, attempt }.name();
        let put = |_: &L::Held| ledger.put(&name, "", Durability::Unsynced).map(drop);
        if !keep(ledger, step, put)? {
            return Ok(Some(step));
        }
    }
    Ok(None)
}

/// Removes the holds of [`hold`].
pub(crate) fn release<L: Ledger>(ledger: &L, attempt: &Attempt, steps: &[u64]) -> Result<()> {
    for &step in steps {
        let attempt = attempt.clone();
        ledger.discard(&Hold { step, attempt }.name())?;
    }
    Ok(())
}

/// Stops all undecided removals of a step. Returns whether the step stays.
fn veto<L: Ledger>(ledger: &L, step: u64, held: &L::Held) -> Result<bool> {
    for removal in intents(&ledger.names()?, Some(step)) {
        match stop(ledger, &removal)? {
            Decision::Remove(identity) if identity.covers(&ledger.identity(held)?) => {
                return Ok(false);
            }
            Decision::Keep if ledger.get(&removal.intent())?.is_none() => {
                // The remover had given up before, so no other process deletes this decision soon.
                ledger.discard(&removal.decision())?;
            }
            _ => {}
        }
    }
    Ok(ledger.identity(held)?.manifest.is_some())
}

/// Puts the decision to keep if there is none, and returns the valid decision.
fn stop<L: Ledger>(ledger: &L, removal: &Removal) -> Result<Decision> {
    if ledger.put(&removal.decision(), KEEP, Durability::Unsynced)? {
        return Ok(Decision::Keep);
    }
    decision(ledger, removal)
}

fn decision<L: Ledger>(ledger: &L, removal: &Removal) -> Result<Decision> {
    let Some(text) = ledger.get(&removal.decision())? else {
        return Ok(Decision::Retired);
    };
    // A record damaged by a power loss was not "remove": that is synced before anything is deleted.
    let Some(identity) = text.strip_prefix("remove ").and_then(StepIdentity::parse) else {
        return Ok(Decision::Keep);
    };
    Ok(match ledger.get(&removal.intent())? {
        Some(_) => Decision::Remove(identity),
        None => Decision::Retired,
    })
}

/// Whether a valid decision removes the step, even if it still exists. `names` are all names in the store.
pub(crate) fn is_removed<L: Ledger>(ledger: &L, names: &[String], step: u64) -> Result<bool> {
    let decisions = names.iter().filter_map(|name| Removal::of_decision(name));
    for removal in decisions.filter(|removal| removal.step == step) {
        if let Decision::Remove(identity) = decision(ledger, &removal)?
            && let Some(held) = ledger.open(step)?
            && identity.covers(&ledger.identity(&held)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Carries out decided removals and stops the others, of one step or of all. Returns the intents that were deleted.
///
/// A live remover tries again when it finds itself stopped.
pub(crate) fn settle<L: Ledger>(ledger: &L, step: Option<u64>) -> Result<Vec<String>> {
    let names = ledger.names()?;
    let mut gone = Vec::new();
    for removal in intents(&names, step) {
        if let Decision::Remove(identity) = stop(ledger, &removal)?
            && let Some(held) = ledger.open(removal.step)?
            && identity.covers(&ledger.identity(&held)?)
        {
            ledger.erase(removal.step, &held, &identity)?;
        }
        retire(ledger, &removal)?;
        gone.push(removal.intent());
    }
    let decisions = names.iter().filter_map(|name| Removal::of_decision(name));
    for removal in decisions.filter(|r| step.is_none_or(|step| step == r.step)) {
        // Read by name, because a list may miss an intent that was put during the listing.
        if ledger.get(&removal.intent())?.is_none() {
            ledger.discard(&removal.decision())?;
        }
    }
    Ok(gone)
}

/// Deletes the records of a finished removal.
fn retire<L: Ledger>(ledger: &L, removal: &Removal) -> Result<()> {
    ledger.discard(&removal.intent())?;
    ledger.discard(&removal.decision())
}

/// The removals that have an intent, of one step or of all.
fn intents(names: &[String], step: Option<u64>) -> Vec<Removal> {
    let all = names.iter().filter_map(|name| Removal::of_intent(name));
    all.filter(|r| step.is_none_or(|step| step == r.step)).collect()
}
