//! Copies files and folders through the ring, dozens of files at a time.
//!
//! Up to three batches are in flight: while lanes move the bytes of one, the objects of the next are opened and
//! created, and those of the previous one are committed. So lanes do not idle between batches, and memory and file
//! descriptors are bounded for any number of objects.

use std::{
    collections::{BTreeSet, VecDeque},
    path::Path,
    sync::Arc,
};

use rustix::io::Errno;
use straightway_core::{Bytes, Choice, Error, ErrorKind, Extent, Receipt, Result, text::counted};
use straightway_io::{
    Ask, Books, Executor, Objects, Progress, Store, Ticket, draft,
    store::{CommitMode, Draft, Like, Location, Missing, StoreExt, Sweep},
};
use straightway_sys::limit;

use crate::{
    job::{CopiedFolder, CopiedLink, CopyJob, Pair},
    made::Made,
};

/// The maximum number of files per job, if the descriptor limit allows it.
const FILES_PER_JOB: usize = 64;

/// The maximum number of jobs in flight: one moves bytes, one is being prepared, one is being committed.
const JOBS_AT_ONCE: usize = 3;

/// The maximum bytes of one job's copies held in memory until the commit, in stores that buffer short objects.
const KEPT_BYTES_PER_JOB: u64 = 64 << 20;

/// File descriptors per copied file: the source, its copy and the copy's folder.
const DESCRIPTORS_EACH: u64 = 5;

/// Runs a [`CopyJob`].
#[derive(Debug)]
pub struct Copier<'a> {
    /// The executor that runs the transfers.
    pub executor: &'a Executor,
    /// The route to use.
    pub choice: Choice,
    /// The progress over all files.
    pub progress: Arc<Progress>,
}

impl Copier<'_> {
    /// Copies everything. Each object appears under its name once it is complete and durable. Links below the target
    /// that the user named are not followed. After an error, the folders that did not exist before are removed.
    pub fn run(&self, job: &CopyJob) -> Result<Receipt> {
        let mut made = Made::before(job);
        let copied = self.copy(job, &mut made);
        if copied.is_err() {
            made.undo(job);
        }
        let mut receipt = copied?;
        receipt.warnings.extend(job.nothing_to_move());
        Ok(receipt)
    }

    fn copy(&self, job: &CopyJob, made: &mut Made) -> Result<Receipt> {
        tracing::info!(
            "copying {}, {}, to {}",
            counted(job.pairs.len() as u64, "file"),
            Bytes(job.bytes()),
            job.base.describe()
        );
        let tree = Tree::open(job)?;
        let new_folders = make_folders(&tree, &job.folders)?;
        let targets = job.pairs.iter().map(|p| p.target.as_path());
        // A source that is the draft of a killed writer must not be swept away.
        let rescues = job.pairs.iter().any(|p| draft::is_draft(&p.source.name));
        if !rescues && tree.store.folder().is_none() {
            let _ = tree.store.sweep(Sweep::Dead);
        } else if !rescues {
            // A folder that does not exist yet has nothing to sweep.
            for folder in tree.folders_of(targets) {
                let _ = folder.below(Missing::Refuse).and_then(|f| f.sweep(Sweep::Dead));
            }
        }
        let of_one_store = |a: &Pair, b: &Pair| Arc::ptr_eq(&a.source.store, &b.source.store);
        let files_max = FILES_PER_JOB * JOBS_AT_ONCE.min(job.pairs.len().div_ceil(FILES_PER_JOB));
        let at_once = limit::files_at_once(DESCRIPTORS_EACH, files_max);
        let per_job = at_once.div_ceil(JOBS_AT_ONCE).min(FILES_PER_JOB);
        // A low descriptor limit means fewer jobs.
        let jobs_max = (at_once / per_job).max(1);
        let batches = job.pairs.chunk_by(of_one_store);
        let kept_max = tree.store.facts().kept_bytes_max;
        let batches = batches.flat_map(|pairs| Batches {
            pairs,
            files_max: per_job,
            kept_max,
        });
        let mut books = Books::default();
        let mut running = VecDeque::with_capacity(jobs_max);
        for pairs in batches {
            if self.choice == Choice::Auto && self.copy_within(&tree, pairs, &mut books)? {
                continue;
            }
            while running.len() >= jobs_max {
                finish(&tree, &mut running, &mut books, |drafts| made.note(job, drafts))?;
            }
            running.push_back(self.begin(&tree, pairs, job.onto_device)?);
        }
        while !running.is_empty() {
            finish(&tree, &mut running, &mut books, |drafts| made.note(job, drafts))?;
        }
        let receipt = books.close();
        for link in &job.links {
            make_link(&tree, link)?;
        }
        // A name is durable once its folder is synced. Folders created here are synced below, with their mode.
        let made_in = new_folders.iter().map(|folder| folder.target.as_path());
        let linked = job.links.iter().map(|l| l.target.as_path());
        for folder in tree.folders_of(made_in.chain(linked)) {
            with_folder(&folder, straightway_sys::Folder::sync)?;
        }
        // Last, and innermost first: no file can be created in a read-only folder.
        let mut innermost_first = new_folders.into_iter().rev();
        innermost_first.try_for_each(|folder| keep_rights(&tree, folder))?;
        Ok(receipt)
    }

    /// Starts the copy of a batch of objects from one store.
    fn begin(&self, tree: &Tree, pairs: &[Pair], onto_device: bool) -> Result<Batch> {
        let names: Vec<_> = pairs.iter().map(Pair::named).collect();
        let sources = pairs[0].source.store.open(&names)?;
        let mut drafts: Vec<Box<dyn Draft>> = Vec::new();
        let mut extents = Vec::new();
        for ((number, pair), source) in (0..).zip(pairs).zip(&sources) {
            let bytes = source.object().bytes;
            // Only files can have holes. On a device, old bytes would show in them.
            let data = match tree.store.folder() {
                Some(_) if !onto_device => source.data_extents()?,
                _ => whole(bytes),
            };
            let like = if onto_device {
                Like::Device
            } else {
                Like::Copy {
                    of: &**source,
                    has_holes: data != [Extent::new(0, bytes)],
                }
            };
            drafts.push(tree.at(&pair.target).create(bytes, &like)?);
            extents.extend(data.into_iter().map(|extent| (number, extent)));
        }
        let sources = Objects::new(Arc::clone(&pairs[0].source.store), sources);
        let twins = drafts.iter().map(|draft| draft.handle()).collect();
        let twins = Objects::new(Arc::clone(&tree.store), twins);
        let ask = Ask::new(self.choice, &self.progress);
        let ticket = self.executor.relay(sources, twins, extents, ask)?;
        Ok(Batch { ticket, drafts })
    }

    /// Copies objects inside the store, without moving their bytes through this machine. Returns false if the store
    /// cannot.
    fn copy_within(&self, tree: &Tree, pairs: &[Pair], books: &mut Books) -> Result<bool> {
        let named = |pair: &Pair| (pair.named(), tree.at(&pair.target).name.into_os_string());
        let objects: Vec<_> = pairs.iter().map(named).collect();
        if self.progress.is_cancelled() || !tree.store.copy_within(&*pairs[0].source.store, &objects)? {
            return Ok(false);
        }
        let bytes = pairs.iter().map(|pair| pair.bytes).sum();
        self.progress.add(bytes);
        books.add_served(bytes);
        Ok(true)
    }
}

/// An iterator over batches of pairs from one store.
struct Batches<'a> {
    pairs: &'a [Pair],
    /// The maximum number of files in a batch.
    files_max: usize,
    /// Copies of up to this length stay in memory until the commit.
    kept_max: u64,
}

impl<'a> Iterator for Batches<'a> {
    type Item = &'a [Pair];

    fn next(&mut self) -> Option<Self::Item> {
        let mut kept_bytes = 0;
        let mut fits = |pair: &Pair| {
            kept_bytes += if pair.bytes <= self.kept_max { pair.bytes } else { 0 };
            kept_bytes <= KEPT_BYTES_PER_JOB
        };
        let count = self
            .pairs
            .iter()
            .take(self.files_max)
            .take_while(|pair| fits(pair))
            .count();
        // An object over the memory limit is a batch of its own.
        let (batch, rest) = self.pairs.split_at_checked(count.max(1))?;
        self.pairs = rest;
        Some(batch)
    }
}

/// The extent of a whole object, or none if it is empty.
fn whole(bytes: u64) -> Vec<Extent> {
    let whole = Extent::new(0, bytes);
    (!whole.is_empty()).then_some(whole).into_iter().collect()
}

/// Objects that are being copied. Dropping this stops the job and removes its drafts.
struct Batch {
    ticket: Ticket,
    drafts: Vec<Box<dyn Draft>>,
}

/// Waits for the oldest batch and commits its copies, which `note` gets before.
fn finish(
    tree: &Tree,
    running: &mut VecDeque<Batch>,
    books: &mut Books,
    note: impl FnOnce(&[Box<dyn Draft>]),
) -> Result<()> {
    let Some(Batch { ticket, drafts }) = running.pop_front() else {
        return Ok(());
    };
    ticket.enter(books)?;
    note(&drafts);
    tree.store.commit(drafts, CommitMode::Each)
}

/// The tree below the target that the user named. In a file system it is accessed through folder descriptors, so that
/// no link is followed.
pub(crate) struct Tree {
    store: Arc<dyn Store>,
    base: Location,
}

impl Tree {
    fn open(job: &CopyJob) -> Result<Self> {
        let base = job.base.clone();
        let is_deep = |pair: &Pair| pair.target.parent() != Some(&base.name);
        let missing = if job.folders.is_empty() && !job.pairs.iter().any(is_deep) {
            Missing::Refuse
        } else {
            Missing::Create
        };
        let store = base.below(missing)?;
        Ok(Self { store, base })
    }

    /// The tree of a job, if its folder exists.
    pub(crate) fn open_existing(job: &CopyJob) -> Result<Self> {
        let base = job.base.clone();
        let store = base.below(Missing::Refuse)?;
        Ok(Self { store, base })
    }

    /// The location of a job's target path inside the tree.
    fn at(&self, target: &Path) -> Location {
        // A path in the current folder may lack its leading `./`.
        self.inside(target.strip_prefix(&self.base.name).unwrap_or(target))
    }

    /// The location of a name relative to the tree.
    pub(crate) fn inside(&self, name: &Path) -> Location {
        Location {
            store: Arc::clone(&self.store),
            name: name.to_owned(),
        }
    }

    /// The parent folders of these targets, without duplicates.
    fn folders_of<'a>(&self, targets: impl Iterator<Item = &'a Path>) -> Vec<Location> {
        let names: BTreeSet<_> = targets.map(|target| self.at(target).parent().name).collect();
        names.into_iter().map(|name| self.at(&name)).collect()
    }
}

/// Creates the folders that do not exist yet, and returns them.
fn make_folders<'a>(tree: &Tree, folders: &'a [CopiedFolder]) -> Result<Vec<&'a CopiedFolder>> {
    let mut made = Vec::new();
    for folder in folders {
        let at = tree.at(&folder.target);
        match at.below(Missing::Refuse) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                at.below(Missing::Create)?;
                made.push(folder);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// Creates a link. An existing file or link is replaced.
fn make_link(tree: &Tree, link: &CopiedLink) -> Result<()> {
    let at = tree.at(&link.target);
    let name = at.name.file_name().expect("a link of a tree has a name");
    with_folder(&at.parent(), |folder| draft::place_link(folder, name, &link.points_to))
}

/// Gives a new folder the permissions of the original, and syncs it. It is opened first, because the new mode may
/// forbid it.
fn keep_rights(tree: &Tree, folder: &CopiedFolder) -> Result<()> {
    let failed = |e: Errno| Error::os("set the permissions of", folder.target.display(), e.into());
    with_folder(&tree.at(&folder.target), |opened| {
        folder.rights.give(opened).map_err(failed)?;
        opened.sync()
    })
}

/// Calls `call` with an open folder. Folders and links only exist in file systems.
fn with_folder<T>(at: &Location, call: impl FnOnce(&straightway_sys::Folder) -> Result<T>) -> Result<T> {
    let inside = at.below(Missing::Refuse)?;
    call(inside.folder().expect("it is a folder of a file system"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_memory_of_a_batch_is_bounded() {
        let store: Arc<dyn Store> = Arc::new(straightway_memory::Memory::new("x"));
        let pair = |bytes: u64| Pair {
            source: Location {
                store: Arc::clone(&store),
                name: PathBuf::new(),
            },
            target: PathBuf::new(),
            bytes,
            tag: None,
        };
        let short = (8 << 20) - 1;
        let pairs: Vec<_> = [short; 100].into_iter().chain([1 << 40, 5, short]).map(pair).collect();
        let batches = Batches {
            pairs: &pairs,
            files_max: 64,
            kept_max: 8 << 20,
        };
        let batches: Vec<_> = batches.collect();
        assert_eq!(batches.concat().len(), pairs.len());
        for batch in batches {
            let kept = batch.iter().map(|pair| pair.bytes).filter(|bytes| *bytes <= 8 << 20);
            assert!(kept.sum::<u64>() <= KEPT_BYTES_PER_JOB && batch.len() <= 64);
        }
        let unbounded = Batches {
            pairs: &pairs,
            files_max: 64,
            kept_max: 0,
        };
        assert_eq!(unbounded.count(), 2);
    }
}
