//! The rendezvous of all ranks of a save: how their reports reach the coordinator, through the store alone.
//!
//! All ranks use the folder of their attempt, whose name contains the run and the sequence number. A run that crashed
//! and was restarted under the same name finds the files of its dead ranks there. So only files for the live
//! coordinator count: it announces itself with a file named after its nonce, and each rank puts its report for that
//! nonce. A dead rank has no file for a new nonce. Ranks may arrive before the coordinator, and may see the
//! announcement of a dead one first: they report to every coordinator that they find.
//!
//! A rank that has seen a commit reports to no other coordinator from then on: it belongs to that start of the job.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::{
    Progress,
    store::{Durability, Store, StoreExt},
};

use super::{
    manifest::MANIFEST_BYTES_MAX,
    name::{Attempt, announced, announcement, failure_file, part_file},
    records::{if_there, names, put},
    shard_report::ShardReport,
    steps::Steps,
};

/// The interval of polls of the folder. It starts short, because ranks mostly finish together.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(100);

/// The limits of a wait: a timeout, and a progress that can be cancelled.
#[derive(Clone, Debug)]
pub(crate) struct WaitLimit {
    pub(crate) timeout: Duration,
    pub(crate) progress: Arc<Progress>,
}

impl WaitLimit {
    /// Polls `look` until it returns a value. `None` after the timeout.
    fn until<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        let start = Instant::now();
        let mut pause = POLL_MIN;
        loop {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if self.progress.is_cancelled() {
                let why = "it was interrupted";
                return Err(Error::new(ErrorKind::Cancelled, "wait for", "the ranks", why));
            }
            if start.elapsed() >= self.timeout {
                return Ok(None);
            }
            std::thread::sleep(pause.min(self.timeout));
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

/// The nonce of the coordinator that a rank belongs to, known after the first commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedCoordinator(Arc<Lock<Option<String>>>);

impl TrustedCoordinator {
    fn allows(&self, coordinator: &str) -> bool {
        let known = self.0.lock();
        known.as_ref().is_none_or(|known| known == coordinator)
    }

    /// Sets it after a commit, if the rank reported to only one coordinator.
    fn settle(&self, answered: BTreeSet<String>) {
        let mut known = self.0.lock();
        if answered.len() == 1 {
            *known = answered.into_iter().next();
        }
    }
}

/// The side of the rendezvous that runs on every rank except the coordinator.
#[derive(Debug)]
pub(crate) struct Rendezvous<'a> {
    pub(crate) store: &'a Steps,
    pub(crate) attempt: &'a Attempt,
    pub(crate) rank: u32,
    pub(crate) trusted: &'a TrustedCoordinator,
    pub(crate) wait: &'a WaitLimit,
}

impl Rendezvous<'_> {
    /// Reports to every coordinator until one has committed or abandoned the attempt.
    pub(crate) fn attend(&self, report: &ShardReport) -> Result<()> {
        let text = report.text();
        let mut answered = BTreeSet::new();
        // Whether another process, dead or alive, has reported as this rank.
        let mut is_taken = false;
        let mut is_left_out = false;
        let committed = self.wait.until(|| {
            let Some(records) = self.store.coordination().records(self.attempt)? else {
                return Ok(match self.find_step(report)? {
                    Found::Unknown => None,
                    found => Some(found == Found::With),
                });
            };
            // A late rank may put new records after the commit. Once the step exists, no other step with its number is
            // committed.
            if records.may_be_committed {
                let found = self.find_step(report)?;
                is_left_out = found == Found::Without;
                if is_left_out || found == Found::With {
                    return Ok(Some(!is_left_out));
                }
            }
            for coordinator in self.coordinators(&*records.store)? {
                if answered.contains(&coordinator) {
                    continue;
                }
                let name = part_file(self.rank, &coordinator);
                match put(&*records.store, &name, &text, Durability::Synced) {
                    Ok(is_new) => is_taken |= !is_new,
                    // The coordinator is done, which the next poll shows.
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    Err(error) => return Err(error),
                }
                answered.insert(coordinator);
            }
            Ok(None)
        })?;
        match committed {
            Some(true) => {
                self.trusted.settle(answered);
                Ok(())
            }
            Some(false) if is_taken => {
                let target = format!("rank {} of run {}", self.rank, self.attempt.run);
                let message = "another process saves as that rank";
                let hint = "end what is left of an earlier start, and give each start a name of its own";
                Err(Error::new(ErrorKind::Busy, "save as", target, message).with_hint(hint))
            }
            Some(false) if is_left_out => Err(self
                .attempt
                .failed("it was committed without this rank, which came too late or belongs to another job")),
            Some(false) => Err(given_up(self.attempt)),
            None => Err(self.attempt.failed("the coordinator did not commit it in time")),
        }
    }

    /// Tells the coordinator that this rank could not write its shard, so that it does not wait. Returns the error of
    /// this rank.
    pub(crate) fn decline(&self, error: Error) -> Error {
        let text = error.to_string();
        let told = self.wait.until(|| {
            let Some(records) = self.store.coordination().records(self.attempt)? else {
                return Ok(Some(false));
            };
            let coordinators = self.coordinators(&*records.store)?;
            for coordinator in &coordinators {
                let name = failure_file(self.rank, coordinator);
                put(&*records.store, &name, &text, Durability::Unsynced)?;
            }
            Ok((!coordinators.is_empty()).then_some(true))
        });
        match told {
            // The write failed because the folder was removed.
            Ok(Some(false)) => given_up(self.attempt),
            // If the coordinator cannot be told, its timeout expires.
            _ => error,
        }
    }

    /// The announced coordinators that this rank may report to.
    fn coordinators(&self, folder: &dyn Store) -> Result<Vec<String>> {
        let names = if_there(names(folder))?.unwrap_or_default();
        let found = names.iter().filter_map(|name| announced(name));
        let found = found.filter(|nonce| self.trusted.allows(nonce));
        Ok(found.map(str::to_owned).collect())
    }

    /// Whether the step was committed, and with this rank's shard. A rename is atomic: once the attempt's folder is
    /// gone, the step exists or the attempt was abandoned.
    fn find_step(&self, report: &ShardReport) -> Result<Found> {
        match self.store.find_manifest(self.attempt.step) {
            Ok(Some(manifest)) => match manifest.shards.get(self.rank as usize) {
                Some(shard) if *shard == report.shard => Ok(Found::With),
                _ => Ok(Found::Without),
            },
            Ok(None) => Ok(Found::None),
            // Asked again later, because the step may exist.
            Err(error) if error.kind() == ErrorKind::Transient => Ok(Found::Unknown),
            Err(error) => Err(error),
        }
    }
}

/// Whether a step was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It was committed with this rank's shard.
    With,
    /// It was committed without this rank's shard.
    Without,
    /// It was not committed.
    None,
    /// The store does not answer.
    Unknown,
}

/// The error of a rank whose coordinator removed the attempt's folder.
fn given_up(attempt: &Attempt) -> Error {
    attempt.failed("the coordinator gave it up")
}

/// Announces the coordinator of an attempt to its ranks, and removes announcements of dead coordinators.
pub(crate) fn announce(folder: &dyn Store, coordinator: &str) -> Result<()> {
    let name = announcement(coordinator);
    for other in names(folder)? {
        if announced(&other).is_some() && other != name {
            folder.remove(other.as_ref(), Durability::Unsynced)?;
        }
    }
    put(folder, &name, "", Durability::Unsynced).map(drop)
}

/// Waits until all other ranks have reported to the coordinator, whose own report is `own`.
pub(crate) fn gather(folder: &dyn Store, own: ShardReport, wait: &WaitLimit) -> Result<Vec<ShardReport>> {
    let (attempt, world) = (own.attempt.clone(), own.world);
    let (coordinator, first) = (own.writer.clone(), own.shard.rank as usize);
    let mut reports: Vec<Option<ShardReport>> = vec![None; world as usize];
    reports[first] = Some(own);
    let whole = wait.until(|| {
        if reports.iter().all(Option::is_some) {
            return Ok(Some(()));
        }
        // Listed each time, because a network file system may cache that a name does not exist.
        let names: BTreeSet<_> = names(folder)?.into_iter().collect();
        for (rank, place) in (0..).zip(&mut reports).filter(|(_, place)| place.is_none()) {
            let report = part_file(rank, &coordinator);
            let failure = failure_file(rank, &coordinator);
            if names.contains(&report) {
                *place = Some(read_report(folder, &report, &attempt, rank)?);
            } else if names.contains(&failure) {
                return Err(failed_rank(folder, &failure, &attempt, rank));
            }
        }
        Ok(reports.iter().all(Option::is_some).then_some(()))
    })?;
    if whole.is_some() {
        return Ok(reports.into_iter().flatten().collect());
    }
    let absent = reports.iter().zip(0..).filter(|(p, _)| p.is_none());
    let absent: Vec<_> = absent.map(|(_, rank): (_, u32)| rank).collect();
    let shown: Vec<_> = absent.iter().take(8).map(u32::to_string).collect();
    let more = if absent.len() > 8 { ", …" } else { "" };
    let (after, count, shown) = (wait.timeout, absent.len(), shown.join(", "));
    let message = format!("after {after:?} nothing came from {count} of {world} ranks: {shown}{more}");
    let hint = "look whether those ranks are alive, or allow more time";
    Err(attempt.failed(message).with_hint(hint))
}

/// The error that a rank reported before it gave up.
fn failed_rank(folder: &dyn Store, name: &str, attempt: &Attempt, rank: u32) -> Error {
    let said = folder.get(name.as_ref(), 1 << 16).unwrap_or_default();
    let said: String = String::from_utf8_lossy(&said).chars().take(1000).collect();
    attempt.failed(format!("rank {rank} failed: {said}"))
}

fn read_report(folder: &dyn Store, name: &str, attempt: &Attempt, rank: u32) -> Result<ShardReport> {
    let path = folder.describe(name.as_ref());
    let report = ShardReport::parse(&path, &folder.get(name.as_ref(), MANIFEST_BYTES_MAX)?)?;
    if report.attempt != *attempt || report.shard.rank != rank {
        let message = "it is of another save or rank than its name says";
        return Err(Error::new(ErrorKind::Corrupt, "read", path, message));
    }
    Ok(report)
}
