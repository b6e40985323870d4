//! Copying files and folders, some dozens at a time, through the ring.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt, sync::Arc};

use straightway_core::{Choice, Error, Extent, Receipt, Result};
use straightway_io::{Draft, Executor, File, Job, Progress, draft};

use crate::errand::{Errand, Folder, Pair};

/// Files copied by one job. Each holds four descriptors open, and 1024 is a common limit.
const FILES_PER_JOB: usize = 64;

/// Copies what an errand says.
#[derive(Debug)]
pub struct Copier<'a> {
    /// What runs the jobs.
    pub executor: &'a Executor,
    /// Which route the bytes are to take.
    pub choice: Choice,
    /// How far it has come, over all files.
    pub progress: Arc<Progress>,
}

impl Copier<'_> {
    /// Copies everything. Each file appears under its name when it is whole and durable.
    pub fn run(&self, errand: &Errand) -> Result<Receipt> {
        let made = make_folders(&errand.folders)?;
        let targets = errand.pairs.iter().map(|p| draft::folder_of(&p.target));
        // Who copies what a killed writer left wants to have it.
        let rescues = errand.pairs.iter().any(|p| draft::is_draft(&p.source));
        if !rescues {
            targets
                .collect::<BTreeSet<_>>()
                .into_iter()
                .for_each(draft::sweep);
        }
        let batches = errand
            .pairs
            .chunks(FILES_PER_JOB)
            .map(|pairs| self.batch(pairs));
        let receipt = self.executor.run_all(batches)?;
        for link in &errand.links {
            // A link that is there already is made anew, as a file would be.
            let _ = fs::remove_file(&link.target);
            std::os::unix::fs::symlink(&link.points_to, &link.target)
                .map_err(|e| Error::os("create", link.target.display(), e))?;
        }
        // Names are durable once their folders are: of what was made here, each is synced with its mode below.
        let parents = made.iter().map(|folder| draft::folder_of(&folder.target));
        let linked = errand.links.iter().map(|l| draft::folder_of(&l.target));
        parents
            .chain(linked)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .try_for_each(draft::sync_folder)?;
        // Last and from the inside out: a folder that nobody may write takes no more files.
        made.into_iter().rev().try_for_each(keep_mode)?;
        Ok(receipt)
    }

    /// A job for some files, and what makes them appear when it is done.
    fn batch(&self, pairs: &[Pair]) -> Result<(Job, impl FnOnce() -> Result<()> + use<>)> {
        let mut files = Vec::new();
        let mut drafts = Vec::new();
        let mut extents = Vec::new();
        for (number, pair) in (0..).zip(pairs) {
            let file = File::open(&pair.source)?;
            let data = file.data_extents()?;
            let has_holes = data != [Extent::new(0, file.bytes())];
            let draft = Draft::copy_of(&file, &pair.target, has_holes)?;
            extents.extend(data.into_iter().map(|extent| (number, extent)));
            files.push(Arc::new(file));
            drafts.push(draft);
        }
        let twins = drafts.iter().map(|d| Arc::clone(d.file())).collect();
        let job = Job::relay(files, twins, extents, self.choice, self.executor.settings())?;
        let job = job.with_progress(&self.progress);
        Ok((job, || Draft::commit_all(drafts)))
    }
}

/// Makes the folders that are not there yet, and answers which those are.
fn make_folders(folders: &[Folder]) -> Result<Vec<&Folder>> {
    let mut made = Vec::new();
    for folder in folders {
        let there = folder.target.is_dir();
        fs::create_dir_all(&folder.target)
            .map_err(|e| Error::os("create", folder.target.display(), e))?;
        if !there {
            made.push(folder);
        }
    }
    Ok(made)
}

/// Gives a new folder the permissions of the original, and makes it durable. It is opened before: after, that may be
/// forbidden.
fn keep_mode(folder: &Folder) -> Result<()> {
    let failed = |e| Error::os("set the permissions of", folder.target.display(), e);
    let opened = fs::File::open(&folder.target).map_err(failed)?;
    let mode = fs::Permissions::from_mode(folder.mode);
    opened.set_permissions(mode).map_err(failed)?;
    draft::sync_opened(&opened, &folder.target)
}
