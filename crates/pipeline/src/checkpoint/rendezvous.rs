//! How the parts of all ranks come to the coordinator, by way of the file system alone.
//!
//! All ranks of a save meet in the folder of their attempt, whose name carries the run and the sequence. A run that
//! crashed and was started again under the same name finds what its dead ranks left there. So nothing counts that was
//! not said to the coordinator that is alive: it announces itself by a file with a nonce that it alone has, and each
//! rank answers that nonce with its part. A dead rank answers no new nonce. Ranks may come before the coordinator, and
//! may find the announcement of a dead one first: they answer every one that they find.
//!
//! A rank that has seen a commit answers no other coordinator from then on: it belongs to that start of the job.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind, Result};
use straightway_io::{
    Progress,
    store::{Durability, Missing, Store},
};

use super::{
    manifest::MANIFEST_BYTES_MAX,
    name::{Attempt, BEGUN, announced, announcement, failure_file, part_file},
    part::Part,
    steps::{Steps, if_there, names, put},
};

/// How often the folder is looked at: soon at first, as ranks mostly end together.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(100);

/// How long to wait, and the switch that ends the waiting.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    pub(crate) timeout: Duration,
    pub(crate) progress: Arc<Progress>,
}

impl Patience {
    /// Asks `look` until it answers. `None` where the time is up.
    fn until<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let start = Instant::now();
        let mut pause = POLL_MIN;
        loop {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if self.progress.is_cancelled() {
                let why = "it was interrupted";
                return Err(Error::new(Kind::Cancelled, "wait for", "the ranks", why));
            }
            if start.elapsed() >= self.timeout {
                return Ok(None);
            }
            std::thread::sleep(pause.min(self.timeout));
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

/// The coordinator that a rank belongs to, once a commit has shown which.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allegiance(Arc<Mutex<Option<String>>>);

impl Allegiance {
    fn allows(&self, coordinator: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().is_none_or(|known| known == coordinator)
    }

    /// Settles it after a commit, if only one coordinator was answered.
    fn settle(&self, answered: BTreeSet<String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() == 1 {
            *known = answered.into_iter().next();
        }
    }
}

/// An attempt as one of its ranks other than the coordinator sees it.
#[derive(Debug)]
pub(crate) struct Meeting<'a> {
    pub(crate) store: &'a Steps,
    pub(crate) attempt: &'a Attempt,
    pub(crate) rank: u32,
    pub(crate) allegiance: &'a Allegiance,
    pub(crate) patience: &'a Patience,
}

impl Meeting<'_> {
    /// Answers every coordinator with this rank's part until one has committed the attempt, or given it up.
    pub(crate) fn attend(&self, part: &Part) -> Result<()> {
        let text = part.text();
        let mut answered = BTreeSet::new();
        // Whether somebody else had answered: a dead process of this rank, or one that is alive.
        let mut is_taken = false;
        let mut is_left_out = false;
        let committed = self.patience.until(|| {
            let Some(folder) = self.folder()? else {
                return Ok(match self.find_step(part)? {
                    Found::Unknown => None,
                    found => Some(found == Found::With),
                });
            };
            // Where the commit is not a rename, the step may be there before the records are gone, and a rank that comes
            // late puts records where none were left. Once there is a step, no other of that number is committed.
            if folder.folder().is_none() {
                let found = self.find_step(part)?;
                is_left_out = found == Found::Without;
                if is_left_out || found == Found::With {
                    return Ok(Some(!is_left_out));
                }
            }
            for coordinator in self.coordinators(&*folder)? {
                if answered.contains(&coordinator) {
                    continue;
                }
                let name = part_file(self.rank, &coordinator);
                match put(&*folder, &name, &text, Durability::Synced) {
                    Ok(is_new) => is_taken |= !is_new,
                    // The coordinator is done, which the next look shows.
                    Err(error) if error.kind() == Kind::NotFound => break,
                    Err(error) => return Err(error),
                }
                answered.insert(coordinator);
            }
            Ok(None)
        })?;
        match committed {
            Some(true) => {
                self.allegiance.settle(answered);
                Ok(())
            }
            Some(false) if is_taken => {
                let target = format!("rank {} of run {}", self.rank, self.attempt.run);
                let message = "another process saves as that rank";
                let hint =
                    "end what is left of an earlier start, and give each start a name of its own";
                Err(Error::new(Kind::Invalid, "save as", target, message).with_hint(hint))
            }
            Some(false) if is_left_out => Err(self.attempt.failed(
                "it was committed without this rank, which came too late or belongs to another job",
            )),
            Some(false) => Err(given_up(self.attempt)),
            None => Err(self
                .attempt
                .failed("the coordinator did not commit it in time")),
        }
    }

    /// Tells the coordinator that this rank could not write its shard, so that it need not wait. Answers what the rank
    /// fails with.
    pub(crate) fn decline(&self, error: Error) -> Error {
        let text = error.to_string();
        let told = self.patience.until(|| {
            let Some(folder) = self.folder()? else {
                return Ok(Some(false));
            };
            let coordinators = self.coordinators(&*folder)?;
            for coordinator in &coordinators {
                let name = failure_file(self.rank, coordinator);
                put(&*folder, &name, &text, Durability::Unsynced)?;
            }
            Ok((!coordinators.is_empty()).then_some(true))
        });
        match told {
            // Whatever failed here, it failed because the folder went away under it.
            Ok(Some(false)) => given_up(self.attempt),
            // If it cannot be told, the coordinator's time-out says it.
            _ => error,
        }
    }

    /// The records of the attempt; `None` where they are gone. A store without folders has them as long as it has the
    /// one that each rank puts first: records that a rank puts after the others were removed bring nothing back.
    fn folder(&self) -> Result<Option<Arc<dyn Store>>> {
        let root = self.store.root();
        let found = if_there(root.below(self.attempt.folder().as_ref(), Missing::Refuse))?;
        let is_over = |found: &Arc<dyn Store>| {
            let names = names(&**found)?;
            Ok::<_, Error>(!names.iter().any(|name| name == BEGUN))
        };
        Ok(match found {
            Some(found) if found.folder().is_none() && is_over(&found)? => None,
            found => found,
        })
    }

    /// The coordinators that have announced themselves and may be answered.
    fn coordinators(&self, folder: &dyn Store) -> Result<Vec<String>> {
        let names = if_there(names(folder))?.unwrap_or_default();
        let found = names.iter().filter_map(|name| announced(name));
        let found = found.filter(|nonce| self.allegiance.allows(nonce));
        Ok(found.map(str::to_owned).collect())
    }

    /// Whether the step was committed, with this rank's own shard in it. A rename is one thing: where the folder of the
    /// attempt is gone, the step is there by now, or it was given up.
    fn find_step(&self, part: &Part) -> Result<Found> {
        match self.store.manifest(self.attempt.step) {
            Ok(manifest) => match manifest.shards.get(self.rank as usize) {
                Some(shard) if *shard == part.shard => Ok(Found::With),
                _ => Ok(Found::Without),
            },
            Err(error) if error.kind() == Kind::NotFound => Ok(Found::None),
            // It is asked again: the step may be there.
            Err(error) if error.kind() == Kind::Transient => Ok(Found::Unknown),
            Err(error) => Err(error),
        }
    }
}

/// Whether a step was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It was, with this rank's shard.
    With,
    /// It was, without it.
    Without,
    /// It was not.
    None,
    /// The store does not answer.
    Unknown,
}

/// What a rank is told whose coordinator removed the folder they worked in.
fn given_up(attempt: &Attempt) -> Error {
    attempt.failed("the coordinator gave it up")
}

/// Announces the coordinator of an attempt to its ranks, in the place of one that died.
pub(crate) fn announce(folder: &dyn Store, coordinator: &str) -> Result<()> {
    let name = announcement(coordinator);
    for other in names(folder)? {
        if announced(&other).is_some() && other != name {
            folder.remove(other.as_ref(), Durability::Unsynced)?;
        }
    }
    put(folder, &name, "", Durability::Unsynced).map(drop)
}

/// Waits until all other ranks have answered the coordinator whose own part this is.
pub(crate) fn gather(folder: &dyn Store, own: Part, patience: &Patience) -> Result<Vec<Part>> {
    let (attempt, world) = (own.attempt.clone(), own.world);
    let (coordinator, first) = (own.writer.clone(), own.shard.rank as usize);
    let mut parts: Vec<Option<Part>> = vec![None; world as usize];
    parts[first] = Some(own);
    let whole = patience.until(|| {
        if parts.iter().all(Option::is_some) {
            return Ok(Some(()));
        }
        // Listed anew each time: a network file system may remember that a name was not there.
        let names: BTreeSet<_> = names(folder)?.into_iter().collect();
        for (rank, place) in (0..).zip(&mut parts).filter(|(_, place)| place.is_none()) {
            let part = part_file(rank, &coordinator);
            let failure = failure_file(rank, &coordinator);
            if names.contains(&part) {
                *place = Some(read_part(folder, &part, &attempt, rank)?);
            } else if names.contains(&failure) {
                return Err(failed_rank(folder, &failure, &attempt, rank));
            }
        }
        Ok(parts.iter().all(Option::is_some).then_some(()))
    })?;
    if whole.is_some() {
        return Ok(parts.into_iter().flatten().collect());
    }
    let absent = parts.iter().zip(0..).filter(|(p, _)| p.is_none());
    let absent: Vec<_> = absent.map(|(_, rank): (_, u32)| rank).collect();
    let shown: Vec<_> = absent.iter().take(8).map(u32::to_string).collect();
    let more = if absent.len() > 8 { ", …" } else { "" };
    let (after, count, shown) = (patience.timeout, absent.len(), shown.join(", "));
    let message =
        format!("after {after:?} nothing came from {count} of {world} ranks: {shown}{more}");
    let hint = "look whether those ranks are alive, or allow more time";
    Err(attempt.failed(message).with_hint(hint))
}

/// What a rank said before it gave up.
fn failed_rank(folder: &dyn Store, name: &str, attempt: &Attempt, rank: u32) -> Error {
    let said = folder.get(name.as_ref(), 1 << 16).unwrap_or_default();
    let said: String = String::from_utf8_lossy(&said).chars().take(1000).collect();
    attempt.failed(format!("rank {rank} failed: {said}"))
}

fn read_part(folder: &dyn Store, name: &str, attempt: &Attempt, rank: u32) -> Result<Part> {
    let path = folder.describe(name.as_ref());
    let part = Part::parse(&path, &folder.get(name.as_ref(), MANIFEST_BYTES_MAX)?)?;
    if part.attempt != *attempt || part.shard.rank != rank {
        let message = "it is of another save or rank than its name says";
        return Err(Error::new(Kind::Corrupt, "read", path, message));
    }
    Ok(part)
}
