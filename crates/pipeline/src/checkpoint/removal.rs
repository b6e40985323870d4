//! How a step is removed while others tag it, or save what refers to it.
//!
//! Nothing is locked. A store has to offer put-if-absent, get, list and remove, as object stores do.
//!
//! - A remover puts an *intent* under a name that only it has, and then looks for reasons to keep the step: tags,
//!   holds, steps that refer to it. If there are none, it puts the *decision* of its removal, "remove". Only the first
//!   put of a decision succeeds. If that is the remover's, the step is gone from then on: lists leave it out, and
//!   anybody may delete its files. Until then not a byte of it is touched.
//! - Whoever needs the step puts the reason first (a tag, or the *hold* of a save) and then looks for intents. For
//!   each it puts the decision "keep". If the decision "remove" stands already, the step is gone, and the tag or the
//!   save is refused.
//!
//! Either the remover's search comes after the reason was put and finds it, or the intent was put before the other's
//! search and is found there; the decision settles who was first. No crash in between harms: an intent without a
//! decision removes nothing, and a decision can be carried out by anyone.
//!
//! Records are retired in one order: the intent, then the decision. So a decision counts only if its intent is there
//! when it is looked for *after* the decision was read. A remover that stalled so long that its records were retired
//! puts its decision without an intent, finds that out, and gives up. A reason counts only if the step still has its
//! manifest after all decisions were put, as a removal that was carried out may have retired its records.
//!
//! A decision names the very folder and manifest that it is about: a step that is saved again under the same number
//! is another one.

use std::fmt;

use straightway_core::{Error, Kind, Result};
use straightway_io::store::Durability;

use super::{
    name::{Attempt, Hold, Removal},
    sum::Sum,
};

#[cfg(test)]
mod tests;

/// How often a removal that others stopped is begun again.
const TRIES: usize = 4;

/// The decision that stops a removal.
const KEEP: &str = "keep";

/// What the protocol asks of a store.
pub(crate) trait Ledger {
    /// A step that is held open, whatever becomes of its name.
    type Held;

    /// All names: of records, steps and attempts.
    fn names(&self) -> Result<Vec<String>>;
    /// Puts a record unless it is there. Answers whether it did.
    fn put(&self, name: &str, text: &str, durability: Durability) -> Result<bool>;
    /// The text of a record.
    fn get(&self, name: &str) -> Result<Option<String>>;
    /// Removes a record, if it is there.
    fn discard(&self, name: &str) -> Result<()>;
    /// Opens what has the name of a step.
    fn open(&self, step: u64) -> Result<Option<Self::Held>>;
    /// Which one of all that have had its number it is.
    fn identity(&self, held: &Self::Held) -> Result<Identity>;
    /// Its tags.
    fn tags(&self, held: &Self::Held) -> Result<Vec<String>>;
    /// Why the other steps that are listed need it, if they do.
    fn dependant(&self, step: u64) -> Result<Option<String>>;
    /// Deletes its files, the manifest first, and its name, if that is still its own. What has another identity by now
    /// stays.
    fn erase(&self, step: u64, held: &Self::Held, identity: &Identity) -> Result<()>;
}

/// Which folder and which manifest it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The folder's number.
    pub(crate) inode: u64,
    /// The checksum of the manifest; `None` where there is none.
    pub(crate) manifest: Option<Sum>,
}

impl Identity {
    /// Whether `other` is the same step, or what a broken-off deletion left of it.
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

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.manifest {
            Some(sum) => write!(f, "{} {sum}", self.inode),
            None => write!(f, "{} -", self.inode),
        }
    }
}

/// What became of a removal that ran without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The step is gone.
    Removed,
    /// The step stays, for this reason.
    Kept(String),
}

/// What stands in the decision of a removal.
enum Decision {
    Keep,
    Remove(Identity),
    /// The records were retired.
    Retired,
}

/// Removes a step, unless it is tagged or others need it.
pub(crate) fn remove<L: Ledger>(
    ledger: &L,
    step: u64,
    nonce: impl Fn() -> String,
) -> Result<Outcome> {
    let missing = |message: &str| {
        let target = format!("step {step}");
        Err(Error::new(Kind::NotFound, "remove", target, message))
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
            // What was saved anew under its number is another step, and not for this call to remove.
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
        // An error from here on leaves the records: others may be carrying the decision out.
        if decide(ledger, &removal, &identity)? {
            ledger.erase(step, &held, &identity)?;
            retire(ledger, &removal)?;
            return Ok(Outcome::Removed);
        }
        retire(ledger, &removal)?;
    }
    let message = "other processes stopped its removal again and again";
    Err(
        Error::new(Kind::Transient, "remove", format!("step {step}"), message)
            .with_hint("try again when no job starts, tags or saves there"),
    )
}

/// Why a removal does not go on.
enum Reason {
    /// What has the step's name is not what was looked at.
    Moved,
    /// The step is needed.
    Needed(String),
}

/// Why a step that an intent stands for has to stay, if it has to.
fn reason<L: Ledger>(
    ledger: &L,
    removal: &Removal,
    held: &L::Held,
    identity: &Identity,
) -> Result<Option<Reason>> {
    let step = removal.step;
    // Looked at again after the intent was put: whoever saves this step anew from here on finds the intent.
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
    // Holds before steps: a hold goes only after the step of its save has come.
    let names = ledger.names()?;
    let mut holds = names.iter().filter_map(|name| Hold::of(name));
    // The hold of a save whose folder is gone is over: the save was committed, or given up.
    let is_live = |hold: &Hold| hold.step == step && names.contains(&hold.attempt.folder());
    if let Some(hold) = holds.find(is_live) {
        let save = hold.attempt.step;
        let why = format!("a save of step {save} that is under way refers to it");
        return Ok(Some(Reason::Needed(why)));
    }
    Ok(ledger.dependant(step)?.map(Reason::Needed))
}

/// Puts the decision to remove. Answers whether it stands.
fn decide<L: Ledger>(ledger: &L, removal: &Removal, identity: &Identity) -> Result<bool> {
    let text = format!("remove {identity}");
    if !ledger.put(&removal.decision(), &text, Durability::Synced)? {
        return Ok(false);
    }
    // Where the intent is gone, somebody had stopped this removal and retired its records.
    Ok(ledger.get(&removal.intent())?.is_some())
}

/// Keeps a step: `put` puts what keeps it, and all removals that are not decided are stopped. Answers whether the step
/// stays.
///
/// After an error, or where the step goes, what was put is left: another process may have been promised the same tag.
pub(crate) fn keep<L: Ledger>(
    ledger: &L,
    step: u64,
    put: impl FnOnce(&L::Held) -> Result<()>,
) -> Result<bool> {
    let Some(held) = ledger.open(step)? else {
        return Ok(false);
    };
    match put(&held) {
        // The folder is gone that it was put into.
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        put => put?,
    }
    veto(ledger, step, &held)
}

/// Keeps all of `steps` for a save until [`release`]. Answers the first that is gone, if one is.
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

/// Lets go of what [`hold`] holds.
pub(crate) fn release<L: Ledger>(ledger: &L, attempt: &Attempt, steps: &[u64]) -> Result<()> {
    for &step in steps {
        let attempt = attempt.clone();
        ledger.discard(&Hold { step, attempt }.name())?;
    }
    Ok(())
}

/// Stops all removals of a step that are not decided. Answers whether the step stays.
fn veto<L: Ledger>(ledger: &L, step: u64, held: &L::Held) -> Result<bool> {
    for removal in intents(&ledger.names()?, Some(step)) {
        match stop(ledger, &removal)? {
            Decision::Remove(identity) if identity.covers(&ledger.identity(held)?) => {
                return Ok(false);
            }
            Decision::Keep if ledger.get(&removal.intent())?.is_none() => {
                // The remover had given up before, and nobody else retires this decision soon.
                ledger.discard(&removal.decision())?;
            }
            _ => {}
        }
    }
    Ok(ledger.identity(held)?.manifest.is_some())
}

/// Puts the decision to keep unless there is one, and answers which there is.
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
    // What a loss of power damaged was not "remove": that is synced before anything is deleted.
    let Some(identity) = text.strip_prefix("remove ").and_then(Identity::parse) else {
        return Ok(Decision::Keep);
    };
    Ok(match ledger.get(&removal.intent())? {
        Some(_) => Decision::Remove(identity),
        None => Decision::Retired,
    })
}

/// Whether a step that is there counts as gone. `names` are all names.
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

/// Carries out the removals that are decided and stops the others, of one step or of all. Answers which records are
/// gone.
///
/// A remover that is alive begins again when it finds itself stopped.
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
        // Asked for by name: a list may miss an intent that was put while it was made.
        if ledger.get(&removal.intent())?.is_none() {
            ledger.discard(&removal.decision())?;
        }
    }
    Ok(gone)
}

/// Removes the records of a removal that is over.
fn retire<L: Ledger>(ledger: &L, removal: &Removal) -> Result<()> {
    ledger.discard(&removal.intent())?;
    ledger.discard(&removal.decision())
}

/// The removals that are announced, of one step or of all.
fn intents(names: &[String], step: Option<u64>) -> Vec<Removal> {
    let all = names.iter().filter_map(|name| Removal::of_intent(name));
    all.filter(|r| step.is_none_or(|step| step == r.step))
        .collect()
}
