//! The commit: all ranks' parts become a manifest, and the folder that they worked in becomes a step.
//!
//! Ranks may share nothing but the file system. Each leaves its part in the attempt's folder; rank 0
//! waits until all are there, or the time is up. Names carry the run and the sequence of the save, so what an
//! earlier attempt left behind is never looked at.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind, Result};
use straightway_io::{Draft, Progress, draft::sync_folder};

use super::{
    manifest::{Manifest, read_bounded},
    name::{Attempt, MANIFEST, failure_file, part_file},
    parity,
    part::{Part, merge},
    store::{Store, remove_folder, rename_new},
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
                let message = "it was interrupted";
                return Err(Error::new(
                    Kind::Cancelled,
                    "wait for",
                    "the ranks",
                    message,
                ));
            }
            if start.elapsed() >= self.timeout {
                return Ok(None);
            }
            std::thread::sleep(pause.min(self.timeout));
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

impl Store {
    /// The folder that an attempt works in.
    pub(crate) fn attempt_path(&self, attempt: &Attempt) -> PathBuf {
        self.folder().join(attempt.folder())
    }

    /// Makes the folder that an attempt works in; another rank may have made it.
    pub(crate) fn begin(&self, attempt: &Attempt) -> Result<PathBuf> {
        let path = self.attempt_path(attempt);
        match fs::create_dir(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::os("create", path.display(), e))
            }
            _ => Ok(path),
        }
    }

    /// Refuses a step that is there.
    pub(crate) fn check_new(&self, step: u64) -> Result<()> {
        if !self.step_path(step).exists() {
            return Ok(());
        }
        let target = format!("step {step} to {}", self.folder().display());
        let message = "that step is there already";
        Err(Error::new(Kind::Invalid, "save", target, message)
            .with_hint("remove it first, or save under another number"))
    }

    /// Makes a step of an attempt whose shards are all durable, from the parts of all ranks.
    ///
    /// With `parity`, that many parity files are made of the shards first.
    pub fn commit(&self, parts: Vec<Part>, metadata: &str, parity: usize) -> Result<Manifest> {
        let attempt = match parts.first() {
            Some(part) => part.attempt.clone(),
            None => {
                return Err(Error::new(
                    Kind::Invalid,
                    "commit",
                    "a step",
                    "it has no parts",
                ));
            }
        };
        let (path, step) = (self.attempt_path(&attempt), attempt.step);
        let mut manifest = merge(parts, metadata)?;
        self.check_new(step)?;
        self.check_files(&path, &manifest)?;
        if parity > 0 {
            manifest.parity = parity::protect(self, &path, &manifest, parity)?;
            manifest = manifest.checked(&path.display().to_string())?;
        }
        write_file(&path.join(MANIFEST), &manifest.text())?;
        for rank in 0..manifest.world {
            // It has done its work; if it stays, nobody minds.
            let _ = fs::remove_file(path.join(part_file(rank)));
        }
        let target = self.step_path(step);
        rename_new(&path, &target).map_err(|error| match error.kind() {
            Kind::Invalid => self.check_new(step).err().unwrap_or(error),
            _ => error,
        })?;
        sync_folder(self.folder())?;
        self.check_references(&manifest).inspect_err(|_| {
            // Its parent was removed meanwhile, so it is no step. What cannot be taken back is
            // found by whoever reads it.
            let _ = rename_new(&target, &path);
        })?;
        Ok(manifest)
    }

    /// Checks that the files of all shards are there and as long as they must be.
    fn check_files(&self, path: &Path, manifest: &Manifest) -> Result<()> {
        for shard in &manifest.shards {
            let wanted = manifest.file_bytes(shard);
            let file = path.join(&shard.file);
            let found = fs::metadata(&file).map_err(|e| Error::os("open", file.display(), e))?;
            if found.len() != wanted {
                let message = format!("it has {} bytes, and {wanted} are meant", found.len());
                return Err(Error::new(Kind::Corrupt, "commit", file.display(), message));
            }
        }
        self.check_references(manifest)
    }

    /// Checks that the steps are there which a manifest refers to.
    fn check_references(&self, manifest: &Manifest) -> Result<()> {
        for step in manifest.referenced() {
            if !Manifest::is_in(&self.step_path(step)) {
                let target = format!("step {}", manifest.step);
                let message = format!("step {step}, which it refers to, was removed meanwhile");
                return Err(Error::new(Kind::Transient, "commit", target, message)
                    .with_hint("save it again"));
            }
        }
        Ok(())
    }

    /// Waits for the parts of all ranks.
    pub(crate) fn gather(
        &self,
        attempt: &Attempt,
        world: u32,
        patience: &Patience,
    ) -> Result<Vec<Part>> {
        let path = self.attempt_path(attempt);
        let mut parts: Vec<Option<Part>> = vec![None; world as usize];
        let whole = patience.until(|| {
            // Listed anew each time: a network file system may remember that a name was not there.
            let listed = fs::read_dir(&path).map_err(|e| Error::os("list", path.display(), e))?;
            let names: Vec<_> = listed.flatten().map(|entry| entry.file_name()).collect();
            for (rank, place) in (0..).zip(&mut parts).filter(|(_, place)| place.is_none()) {
                let (part, failure) = (part_file(rank), failure_file(rank));
                if names.iter().any(|n| *n == *part) {
                    *place = Some(read_part(&path.join(part), attempt, rank)?);
                } else if names.iter().any(|n| *n == *failure) {
                    return Err(failed_rank(&path.join(failure), attempt, rank));
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
        let target = format!("step {}", attempt.step);
        let message = format!(
            "after {:?} nothing came from {} of {world} ranks: {}{more}",
            patience.timeout,
            absent.len(),
            shown.join(", ")
        );
        Err(Error::new(Kind::Transient, "commit", target, message)
            .with_hint("look whether those ranks are alive, or allow more time"))
    }

    /// Waits until the coordinator has committed an attempt, or given it up.
    pub(crate) fn await_commit(&self, attempt: &Attempt, patience: &Patience) -> Result<()> {
        let path = self.attempt_path(attempt);
        let committed = patience.until(|| {
            if path.exists() {
                return Ok(None);
            }
            // Renamed to the step, or removed: a rename is one thing, so it is there by now.
            match self.manifest(attempt.step) {
                Ok(manifest) if manifest.run == attempt.run => Ok(Some(())),
                _ => Err(given_up(attempt)),
            }
        })?;
        committed.ok_or_else(|| {
            let target = format!("step {}", attempt.step);
            let message = "the coordinator did not commit it in time";
            Error::new(Kind::Transient, "commit", target, message)
        })
    }

    /// Leaves a rank's part for the coordinator.
    pub(crate) fn publish(&self, part: &Part) -> Result<()> {
        let path = self.attempt_path(&part.attempt);
        write_file(&path.join(part_file(part.shard.rank)), &part.text())
    }

    /// Tells the coordinator that a rank could not write its shard, so that it need not wait.
    pub(crate) fn report(&self, attempt: &Attempt, rank: u32, error: &Error) {
        // If even that cannot be written, the time-out says it.
        let path = self.attempt_path(attempt).join(failure_file(rank));
        let _ = write_file(&path, &error.to_string());
    }

    /// Removes all that an attempt wrote that will not be committed.
    pub fn abandon(&self, attempt: &Attempt) {
        // It is hidden and never looked at again; what stays is swept by the next run.
        let _ = remove_folder(&self.attempt_path(attempt));
    }
}

/// What a rank is told whose coordinator removed the folder they worked in.
pub(crate) fn given_up(attempt: &Attempt) -> Error {
    let target = format!("step {}", attempt.step);
    let message = "the coordinator gave it up";
    Error::new(Kind::Transient, "commit", target, message)
}

/// What a rank said before it gave up.
fn failed_rank(path: &Path, attempt: &Attempt, rank: u32) -> Error {
    let said = read_bounded(path).unwrap_or_default();
    let said: String = String::from_utf8_lossy(&said).chars().take(1000).collect();
    let target = format!("step {}", attempt.step);
    let message = format!("rank {rank} failed: {said}");
    Error::new(Kind::Transient, "commit", target, message)
}

fn read_part(path: &Path, attempt: &Attempt, rank: u32) -> Result<Part> {
    let name = path.display().to_string();
    let part = Part::parse(&name, &read_bounded(path)?)?;
    if part.attempt != *attempt || part.shard.rank != rank {
        let message = "it is of another save or rank than its name says";
        return Err(Error::new(Kind::Corrupt, "read", name, message));
    }
    Ok(part)
}

/// Writes a small file that appears when it is whole and durable.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let draft = Draft::new(path, text.len() as u64)?;
    draft.file().write_all_at(0, text.as_bytes())?;
    draft.file().truncate(text.len() as u64)?;
    draft.file().sync()?;
    draft.commit()
}
