//! Copying files and folders, some dozens at a time, through the ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Mode, fchmod, symlinkat, unlinkat},
    io::Errno,
};
use straightway_core::{Choice, Error, Extent, Kind, Receipt, Result};
use straightway_io::{Executor, File, FileDraft, Job, Progress, draft};
use straightway_sys::{Tree, limit};

use crate::errand::{Errand, Folder, Link, Pair};

/// Files copied by one job, where that many may be open.
const FILES_PER_JOB: usize = 64;

/// Descriptors of a file, of its copy and of the folder of that.
const DESCRIPTORS_EACH: u64 = 5;

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
    /// Copies everything. Each file appears under its name when it is whole and durable. Below the target that the
    /// user named no link is followed.
    pub fn run(&self, errand: &Errand) -> Result<Receipt> {
        if !errand.folders.is_empty() {
            fs::create_dir_all(&errand.base)
                .map_err(|e| Error::os("create", errand.base.display(), e))?;
        }
        let tree = Tree::open(&errand.base)?;
        let made = make_folders(&tree, &errand.folders)?;
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
            .chunks(limit::files_at_once(DESCRIPTORS_EACH, FILES_PER_JOB))
            .map(|pairs| self.batch(&tree, pairs));
        let receipt = self.executor.run_all(batches)?;
        for link in &errand.links {
            make_link(&tree, link)?;
        }
        // Names are durable once their folders are: of what was made here, each is synced with its mode below.
        let parents = made.iter().map(|folder| draft::folder_of(&folder.target));
        let linked = errand.links.iter().map(|l| draft::folder_of(&l.target));
        parents
            .chain(linked)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .try_for_each(|folder| draft::sync_opened(tree.folder(folder)?, folder))?;
        // Last and from the inside out: a folder that nobody may write takes no more files.
        let mut made = made.into_iter().rev();
        made.try_for_each(|folder| keep_mode(&tree, folder))?;
        Ok(receipt)
    }

    /// A job for some files, and what makes them appear when it is done.
    fn batch(
        &self,
        tree: &Tree,
        pairs: &[Pair],
    ) -> Result<(Job, impl FnOnce() -> Result<()> + use<>)> {
        let mut files = Vec::new();
        let mut drafts = Vec::new();
        let mut extents = Vec::new();
        let mut folders: BTreeMap<&Path, Arc<OwnedFd>> = BTreeMap::new();
        for (number, pair) in (0..).zip(pairs) {
            let file = File::open(&pair.source)?;
            let data = file.data_extents()?;
            let has_holes = data != [Extent::new(0, file.bytes())];
            let folder = draft::folder_of(&pair.target);
            let folder = match folders.get(folder) {
                Some(opened) => Arc::clone(opened),
                None => Arc::clone(
                    folders
                        .entry(folder)
                        .or_insert(Arc::new(tree.folder(folder)?)),
                ),
            };
            let draft = FileDraft::copy_of(&file, &pair.target, &folder, has_holes)?;
            extents.extend(data.into_iter().map(|extent| (number, extent)));
            files.push(Arc::new(file));
            drafts.push(draft);
        }
        let twins: Vec<_> = drafts.iter().map(|d| Arc::clone(d.file())).collect();
        let job = Job::relay(files, twins, extents, self.choice, self.executor.settings())?;
        let job = job.with_progress(&self.progress);
        Ok((job, || FileDraft::commit_all(drafts)))
    }
}

/// Makes the folders that are not there yet, and answers which those are.
fn make_folders<'a>(tree: &Tree, folders: &'a [Folder]) -> Result<Vec<&'a Folder>> {
    let mut made = Vec::new();
    for folder in folders {
        match tree.folder(&folder.target) {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NotFound => {
                tree.make_folder(&folder.target)?;
                made.push(folder);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// Makes a link. One that is there already is made anew, as a file would be.
fn make_link(tree: &Tree, link: &Link) -> Result<()> {
    let failed = |e: Errno| Error::os("create", link.target.display(), e.into());
    let folder = tree.folder(draft::folder_of(&link.target))?;
    let name = link
        .target
        .file_name()
        .ok_or(Errno::INVAL)
        .map_err(failed)?;
    let _ = unlinkat(&folder, name, AtFlags::empty());
    symlinkat(&link.points_to, &folder, name).map_err(failed)
}

/// Gives a new folder the permissions of the original, and makes it durable. It is opened before: after, that may be
/// forbidden.
fn keep_mode(tree: &Tree, folder: &Folder) -> Result<()> {
    let failed = |e: Errno| Error::os("set the permissions of", folder.target.display(), e.into());
    let opened = tree.folder(&folder.target)?;
    fchmod(&opened, Mode::from_raw_mode(folder.mode)).map_err(failed)?;
    draft::sync_opened(&opened, &folder.target)
}
