//! Copying files and folders, some dozens at a time, through the ring.
//!
//! A few batches are under way together: while lanes move the bytes of one, the objects of the next are opened and
//! created, and those of the one before are committed. So lanes wait for no batch to end, and memory and descriptors
//! are bounded however many objects there are.

use std::{
    collections::{BTreeSet, VecDeque},
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Mode, fchmod, symlinkat, unlinkat},
    io::Errno,
};
use straightway_core::{Choice, Error, Extent, Kind, Receipt, Result};
use straightway_io::{
    Ask, Books, Executor, Objects, Progress, Store, Ticket, draft,
    store::{Draft, Like, Location, Missing},
};
use straightway_sys::limit;

use crate::errand::{Errand, Folder, Link, Pair};

/// Files copied by one job, where that many may be open.
const FILES_PER_JOB: usize = 64;

/// Jobs under way together: one whose bytes move, one that is being made, and one that is being committed.
const JOBS_AT_ONCE: usize = 3;

/// What the copies of one job have in memory until they are committed, where their store keeps short ones there.
const KEPT_BYTES_PER_JOB: u64 = 64 << 20;

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
    /// Copies everything. Each object appears under its name when it is whole and durable. Below the target that the
    /// user named no link is followed.
    pub fn run(&self, errand: &Errand) -> Result<Receipt> {
        let tree = Tree::open(errand)?;
        let made = make_folders(&tree, &errand.folders)?;
        let targets = errand.pairs.iter().map(|p| p.target.as_path());
        // Who copies what a killed writer left wants to have it.
        let rescues = errand.pairs.iter().any(|p| draft::is_draft(&p.source.name));
        if !rescues && tree.store.folder().is_none() {
            tree.store.sweep();
        } else if !rescues {
            // A folder that is not there yet has nothing to sweep.
            let folders = tree.folders_of(targets).into_iter();
            folders
                .filter_map(|folder| folder.below(Missing::Refuse).ok())
                .for_each(|f| f.sweep());
        }
        let of_one_store = |a: &Pair, b: &Pair| Arc::ptr_eq(&a.source.store, &b.source.store);
        let files_max =
            FILES_PER_JOB * JOBS_AT_ONCE.min(errand.pairs.len().div_ceil(FILES_PER_JOB));
        let at_once = limit::files_at_once(DESCRIPTORS_EACH, files_max);
        let per_job = at_once.div_ceil(JOBS_AT_ONCE).min(FILES_PER_JOB);
        // Where few files may be open, there are fewer jobs.
        let jobs_max = (at_once / per_job).max(1);
        let batches = errand.pairs.chunk_by(of_one_store);
        let kept_max = tree.store.kept_bytes_max();
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
                finish(&tree, &mut running, &mut books)?;
            }
            running.push_back(self.begin(&tree, pairs)?);
        }
        while !running.is_empty() {
            finish(&tree, &mut running, &mut books)?;
        }
        let receipt = books.close();
        for link in &errand.links {
            make_link(&tree, link)?;
        }
        // Names are durable once their folders are: of what was made here, each is synced with its mode below.
        let made_in = made.iter().map(|folder| folder.target.as_path());
        let linked = errand.links.iter().map(|l| l.target.as_path());
        for folder in tree.folders_of(made_in.chain(linked)) {
            with_folder(&folder, straightway_sys::Folder::sync)?;
        }
        // Last and from the inside out: a folder that nobody may write takes no more files.
        let mut made = made.into_iter().rev();
        made.try_for_each(|folder| keep_mode(&tree, folder))?;
        Ok(receipt)
    }

    /// Begins to copy some objects of one store.
    fn begin(&self, tree: &Tree, pairs: &[Pair]) -> Result<Batch> {
        let names: Vec<_> = pairs.iter().map(Pair::named).collect();
        let sources = pairs[0].source.store.open(&names)?;
        let mut drafts: Vec<Box<dyn Draft>> = Vec::new();
        let mut extents = Vec::new();
        for ((number, pair), source) in (0..).zip(pairs).zip(&sources) {
            let bytes = source.object().bytes;
            // Only file systems have holes.
            let data = match tree.store.folder() {
                Some(_) => source.data_extents()?,
                None => whole(bytes),
            };
            let like = Like::Copy {
                of: &**source,
                has_holes: data != [Extent::new(0, bytes)],
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

    /// Copies objects without their bytes passing through this machine, if the stores can.
    fn copy_within(&self, tree: &Tree, pairs: &[Pair], books: &mut Books) -> Result<bool> {
        let named = |pair: &Pair| (pair.named(), tree.at(&pair.target).name.into_os_string());
        let objects: Vec<_> = pairs.iter().map(named).collect();
        if self.progress.is_cancelled()
            || !tree.store.copy_within(&*pairs[0].source.store, &objects)?
        {
            return Ok(false);
        }
        let bytes = pairs.iter().map(|pair| pair.bytes).sum();
        self.progress.add(bytes);
        books.add_served(bytes);
        Ok(true)
    }
}

/// Pairs of one store, in batches.
struct Batches<'a> {
    pairs: &'a [Pair],
    /// The most in a batch.
    files_max: usize,
    /// Copies up to this long are in memory until they are committed.
    kept_max: u64,
}

impl<'a> Iterator for Batches<'a> {
    type Item = &'a [Pair];

    fn next(&mut self) -> Option<Self::Item> {
        let mut kept_bytes = 0;
        let mut fits = |pair: &Pair| {
            kept_bytes += if pair.bytes <= self.kept_max {
                pair.bytes
            } else {
                0
            };
            kept_bytes <= KEPT_BYTES_PER_JOB
        };
        let count = self
            .pairs
            .iter()
            .take(self.files_max)
            .take_while(|pair| fits(pair))
            .count();
        // One that is longer than all may have goes alone.
        let (batch, rest) = self.pairs.split_at_checked(count.max(1))?;
        self.pairs = rest;
        Some(batch)
    }
}

/// All of an object.
fn whole(bytes: u64) -> Vec<Extent> {
    let whole = Extent::new(0, bytes);
    (!whole.is_empty()).then_some(whole).into_iter().collect()
}

/// Objects that are being copied. Dropped, its job stops and its drafts are gone.
struct Batch {
    ticket: Ticket,
    drafts: Vec<Box<dyn Draft>>,
}

/// Waits for the oldest batch, and makes its copies appear.
fn finish(tree: &Tree, running: &mut VecDeque<Batch>, books: &mut Books) -> Result<()> {
    let Some(Batch { ticket, drafts }) = running.pop_front() else {
        return Ok(());
    };
    ticket.enter(books)?;
    tree.store.commit_each(drafts)
}

/// What is made below the place that the user named. Of a file system it is reached through the descriptors of folders,
/// and no link is followed.
struct Tree {
    store: Arc<dyn Store>,
    base: Location,
}

impl Tree {
    fn open(errand: &Errand) -> Result<Self> {
        let base = errand.base.clone();
        let is_deep = |pair: &Pair| pair.target.parent() != Some(&base.name);
        let missing = if errand.folders.is_empty() && !errand.pairs.iter().any(is_deep) {
            Missing::Refuse
        } else {
            Missing::Create
        };
        let store = base.below(missing)?;
        Ok(Self { store, base })
    }

    /// What an errand calls by this name.
    fn at(&self, target: &Path) -> Location {
        // A path in the current folder may be written without its dot.
        let name = target.strip_prefix(&self.base.name).unwrap_or(target);
        Location {
            store: Arc::clone(&self.store),
            name: name.to_owned(),
        }
    }

    /// The folders that these are in, each once.
    fn folders_of<'a>(&self, targets: impl Iterator<Item = &'a Path>) -> Vec<Location> {
        let names: BTreeSet<_> = targets
            .map(|target| self.at(target).parent().name)
            .collect();
        names.into_iter().map(|name| self.at(&name)).collect()
    }
}

/// Makes the folders that are not there yet, and answers which those are.
fn make_folders<'a>(tree: &Tree, folders: &'a [Folder]) -> Result<Vec<&'a Folder>> {
    let mut made = Vec::new();
    for folder in folders {
        let at = tree.at(&folder.target);
        match at.below(Missing::Refuse) {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::NotFound => {
                at.below(Missing::Create)?;
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
    let at = tree.at(&link.target);
    let name = at.name.file_name().ok_or(Errno::INVAL).map_err(failed)?;
    with_folder(&at.parent(), |folder| {
        let _ = unlinkat(folder, name, AtFlags::empty());
        symlinkat(&link.points_to, folder, name).map_err(failed)
    })
}

/// Gives a new folder the permissions of the original, and makes it durable. It is opened before: after, that may be
/// forbidden.
fn keep_mode(tree: &Tree, folder: &Folder) -> Result<()> {
    let failed = |e: Errno| Error::os("set the permissions of", folder.target.display(), e.into());
    with_folder(&tree.at(&folder.target), |opened| {
        fchmod(opened, Mode::from_raw_mode(folder.mode)).map_err(failed)?;
        opened.sync()
    })
}

/// Calls on a folder. Only file systems are asked to make folders and links.
fn with_folder<T>(
    at: &Location,
    call: impl FnOnce(&straightway_sys::Folder) -> Result<T>,
) -> Result<T> {
    let inside = at.below(Missing::Refuse)?;
    call(inside.folder().expect("it is a folder of a file system"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_a_batch_keeps_in_memory_is_bounded() {
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
        let pairs: Vec<_> = [short; 100]
            .into_iter()
            .chain([1 << 40, 5, short])
            .map(pair)
            .collect();
        let batches = Batches {
            pairs: &pairs,
            files_max: 64,
            kept_max: 8 << 20,
        };
        let batches: Vec<_> = batches.collect();
        assert_eq!(batches.concat().len(), pairs.len());
        for batch in batches {
            let kept = batch
                .iter()
                .map(|pair| pair.bytes)
                .filter(|bytes| *bytes <= 8 << 20);
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
