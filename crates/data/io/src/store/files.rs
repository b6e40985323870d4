//! The store of local files.
//!
//! Without a root, names are the user's paths: symlinks in them are followed, and missing folders are an error. Below a
//! root, which a stranger may have prepared, everything is reached through descriptors of folders and no symlink is
//! followed ([`Folder`]); folders are created as needed.
//!
//! Drafts lie next to their targets under hidden names, which are not listed. Entries that are not regular files are
//! listed and can be removed, but not opened. The tag of a file opened by path is its inode with its size and
//! timestamps. Files below a root have no tags, because checksums cover what is read there. No file system supports a
//! conditional replace.
use std::{ffi::OsStr, fs, io, path::Path, sync::Arc};

use rustix::fs::FileType;
use straightway_core::{Alignment, Direction, Error, ErrorKind, Extent, Object, Place, Result, Survey};
use straightway_sys::{File, Folder, folder::Durability, residency};

use super::{
    CommitMode, Condition, Draft, Facts, Handle, LaneSpec, Like, ListPage, Listing, Local, Missing, Named, Removal,
    Store, StoreExt, Sweep, Tag, Verb, Verbs, check_each, file, own_draft, parts, text,
};
use crate::{
    draft::{FileDraft, is_draft, place, sweep},
    engine::{Engine, inline::Inline, mixed::Mixed, pool::Pool, ring::Ring},
    gds::GdsUse,
    request::Op,
    settings::{DriveEngine, Settings},
    track::Track,
};

/// Local files and folders.
#[derive(Clone, Debug, Default)]
pub struct Files {
    root: Option<Arc<Folder>>,
}

impl Files {
    /// The files below a folder. The path is the user's own, so symlinks in it are followed.
    pub fn below_path(folder: &Path, missing: Missing) -> Result<Self> {
        if missing == Missing::Create {
            fs::create_dir_all(folder).map_err(|e| Error::os("create", folder.display(), e))?;
        }
        let root = Some(Arc::new(Folder::open(folder)?));
        Ok(Self { root })
    }

    /// The folder of a name, and the name's last part.
    fn at<'a>(&self, name: &'a OsStr, missing: Missing) -> Result<(Arc<Folder>, &'a OsStr)> {
        let Some(root) = &self.root else {
            return place(Path::new(name));
        };
        let parts = parts(self, name)?;
        let (last, folders) = parts.split_last().expect("a name has a part");
        Ok((descend(root, folders, missing)?, last))
    }

    /// The same, with the last part as text.
    fn at_text<'a>(&self, name: &'a OsStr, missing: Missing) -> Result<(Arc<Folder>, &'a str)> {
        let (folder, name) = self.at(name, missing)?;
        Ok((folder, text(self, name)?))
    }

    fn remove_one(&self, removal: &Removal<'_>, how: Durability) -> Result<()> {
        let found = self.at_text(removal.name(), Missing::Refuse);
        let folder = match removal {
            Removal::Object(_) => {
                let (folder, name) = match found {
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                    found => found?,
                };
                match folder.kind(name)? {
                    Some(FileType::Directory) => drop(folder.remove_empty(name)?),
                    _ => folder.remove(name)?,
                }
                folder
            }
            Removal::Tree(_) => {
                let (folder, name) = found?;
                folder.remove_tree(name)?;
                folder
            }
            Removal::Version(..) => return Err(self.lacks(removal.verb())),
        };
        match how {
            Durability::Synced => folder.sync(),
            Durability::Unsynced => Ok(()),
        }
    }
}

/// The folder at the end of a chain of nested names.
fn descend(root: &Arc<Folder>, names: &[&OsStr], missing: Missing) -> Result<Arc<Folder>> {
    let mut folder = Arc::clone(root);
    for name in names {
        folder = Arc::new(match missing {
            Missing::Create => folder.create_folder(name)?,
            Missing::Refuse => folder.open_folder(name)?,
        });
    }
    Ok(folder)
}

impl Store for Files {
    fn describe(&self, name: &OsStr) -> String {
        let path = self.path(name);
        path.expect("a file has one").display().to_string()
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            local: self.root.as_deref().map_or(Local::Paths, Local::Below),
            ..Facts::of("files")
        }
    }

    fn verbs(&self) -> Verbs {
        Verbs::of(&[Verb::List, Verb::Create, Verb::Put, Verb::PutIfAbsent, Verb::Remove])
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let one = |object: &Named| -> Result<Arc<dyn Handle>> {
            let file = match &self.root {
                Some(_) => {
                    let (folder, name) = self.at_text(&object.name, Missing::Refuse)?;
                    File::open_in(&folder, name)?
                }
                None => File::open(Path::new(&object.name))?,
            };
            if object.tag.is_some() && object.tag != file.tag() {
                let message = "it was replaced or written to since it was first opened";
                let path = file.path().display();
                return Err(Error::new(ErrorKind::Precondition, "read", path, message)
                    .with_hint("wait until nobody writes to it, and open it again"));
            }
            Ok(Arc::new(file))
        };
        objects.iter().map(one).collect()
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        let settings = lane.settings;
        Ok(match (lane.track, lane.place) {
            (Track::Drive, Place::Gpu(_)) if settings.gds != GdsUse::Off => {
                let (gds, depth) = (lane.gds.clone(), settings.depth);
                Box::new(Mixed::with_cufile(drive_engine(settings, lane.depth())?, gds, depth))
            }
            (Track::Drive, _) => drive_engine(settings, lane.depth())?,
            (Track::Cached, _) => Box::new(Inline::files(1)),
            (Track::Checked, _) => {
                let (own, depth) = (*settings, lane.depth());
                Box::new(Mixed::new(depth, move || drive_engine(&own, depth)))
            }
        })
    }

    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        if after == Op::Read {
            return check_each(objects);
        }
        let files = objects.iter().map(file).collect::<Result<Vec<_>>>()?;
        // Writes in whole blocks reach past the end.
        files.iter().try_for_each(|f| f.truncate(f.bytes()))?;
        File::sync_all(&files)
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        let entries = match &self.root {
            Some(root) => root.entries()?,
            None => Folder::open(Path::new("."))?.entries()?,
        };
        let entries = entries.into_iter().filter(|(name, _)| !is_draft(Path::new(name)));
        let name = |(name, kind): (String, FileType)| match kind {
            FileType::Directory => name + "/",
            _ => name,
        };
        Ok(Listing::of(entries.map(name).collect(), page))
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        let Some(root) = &self.root else {
            return Ok(Arc::new(Self::below_path(Path::new(folder), missing)?));
        };
        let root = Some(descend(root, &parts(self, folder)?, missing)?);
        Ok(Arc::new(Self { root }))
    }

    fn create(&self, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        if self.root.is_none() {
            return Ok(Box::new(FileDraft::at(Path::new(name), bytes, like)?));
        }
        let (folder, name) = self.at(name, Missing::Create)?;
        Ok(Box::new(FileDraft::create(&folder, name, bytes, like)?))
    }

    fn commit(&self, drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        let own = drafts.into_iter().map(own_draft::<FileDraft>);
        let own = own.collect::<Result<_>>()?;
        match mode {
            CommitMode::InOrder => FileDraft::commit_in_order(own),
            CommitMode::Each => FileDraft::commit_all(own),
        }
    }

    /// A file's draft is locked while its writer lives, so its age says nothing.
    fn sweep(&self, which: Sweep) -> Result<Vec<String>> {
        if let (Sweep::Dead, Some(root)) = (which, &self.root) {
            sweep(root);
        }
        Ok(Vec::new())
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, how: Durability) -> Result<bool> {
        match on {
            Condition::Always => {
                let draft = self.create(name, bytes.len() as u64, &Like::Replaced)?;
                draft.write_all_at(0, bytes)?;
                self.commit(vec![draft], CommitMode::InOrder).map(|()| true)
            }
            Condition::IfAbsent => {
                let (folder, name) = self.at_text(name, Missing::Create)?;
                folder.put_if_absent(name, bytes, how)
            }
            Condition::IfMatch(_) => Err(self.lacks(Verb::PutIfMatch)),
        }
    }

    fn remove_all(&self, removals: &[Removal<'_>], how: Durability) -> Result<Vec<bool>> {
        let one = |removal: &Removal<'_>| self.remove_one(removal, how).map(|()| true);
        removals.iter().map(one).collect()
    }
}

/// Makes the engine for a drive.
fn drive_engine(settings: &Settings, depth: u32) -> Result<Box<dyn Engine>> {
    Ok(match settings.engine {
        DriveEngine::Ring => Box::new(Ring::new(depth)?),
        DriveEngine::Pool => Box::new(Pool::new(depth)?),
        DriveEngine::Auto => match Ring::new(depth) {
            Ok(ring) => Box::new(ring),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(%error, "using the thread pool instead");
                Box::new(Pool::instead(depth, &error)?)
            }
            Err(error) => return Err(error),
        },
    })
}

impl Handle for File {
    fn object(&self) -> Object {
        Self::object(self)
    }

    fn tag(&self) -> Option<Tag> {
        self.identity().map(Tag::File)
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Self::read_exact_at(self, offset, bytes)
    }

    fn check_unchanged(&self) -> Result<()> {
        Self::check_unchanged(self)
    }

    fn survey(&self, hull: Option<Extent>, direction: Direction) -> Result<Survey> {
        let mut survey = Self::survey(self);
        if let (Ok(_), Some(hull)) = (survey.usable(), hull) {
            survey.resident = match direction {
                // A read reports bytes that were not resident after all; across, the kernel does the read.
                Direction::In => residency::resident_by_sample(self, hull),
                Direction::Out | Direction::Across => residency::resident(self, hull),
            };
        }
        Ok(survey)
    }

    fn data_extents(&self) -> Result<Vec<Extent>> {
        Self::data_extents(self)
    }

    fn file(&self) -> Option<&File> {
        Some(self)
    }

    fn block_bytes(&self) -> u64 {
        self.alignment()
            .map_or(Alignment::PAGE_BYTES, |alignment| alignment.object_bytes)
    }

    fn room_bytes(&self) -> u64 {
        Self::room_bytes(self)
    }

    fn reserve_up_to(&self, end: u64) -> Result<()> {
        Self::reserve_up_to(self, end)
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        match source.downcast::<Error>() {
            Ok(error) => error,
            Err(source) => Self::error(self, operation, source),
        }
    }
}
