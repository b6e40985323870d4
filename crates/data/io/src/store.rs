//! Stores: where objects are, and all operations on them except moving their bytes.
//!
//! A [`Store`] is the control plane: it opens, lists, creates, commits, puts and removes objects by name, and makes the
//! [`Engine`]s that lanes move bytes with. The operations that a store supports are data ([`Verbs`]). A verb that it
//! does not declare is not implemented, and calling it returns an error that names the store and the verb.
//!
//! A name is one part or several with `/` between them; no part is empty, `.` or `..`. [`Store::below`] returns the
//! store of all names under one prefix: a folder of a file system, or a key prefix. Programs coordinate by `put` with
//! [`Condition::IfAbsent`], `list` and `remove`, which file systems and object stores both have.

mod ext;
mod facts;
pub mod files;
mod listing;
mod location;
mod medium;
mod missing;
mod pages;
pub(crate) mod pair;
mod registry;
mod removal;
mod tuning;
mod verb;

use std::{
    any::Any,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use straightway_core::{Error, ErrorKind, Place, Result};
pub use straightway_sys::{Folder, folder::Durability};

use crate::{engine::Engine, gds::Gds, request::Op, settings::Settings, track::Track};

pub use crate::handle::{Handle, Tag, file, own_handle};

pub use ext::{StoreExt, open_one, read_whole};
pub use facts::{Facts, Local};
pub use files::Files;
pub use listing::{ListPage, Listing};
pub use location::{Location, file_identity, is_same_file};
pub use medium::Medium;
pub use missing::with_meant;
pub use pages::{NAMES_MAX, list_all, pages, too_many_names};
pub use registry::Registry;
pub use removal::{Removal, clear_below};
pub use tuning::Tuning;
pub use verb::{Verb, Verbs};

/// A kind of store. [`StoreExt`] has the conveniences that follow from these methods.
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// The name of an object of this store in messages; with an empty name, that of the store.
    fn describe(&self, name: &OsStr) -> String;

    /// What does not change about it.
    fn facts(&self) -> Facts<'_>;

    /// The operations that it supports.
    fn verbs(&self) -> Verbs;

    /// Opens objects for reading, all or none.
    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>>;

    /// Makes the engine of one lane. Called on the lane's thread.
    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>>;

    /// Ends a transfer with these open objects. After reads: returns an error if one of them has changed since it was
    /// opened. After writes: waits until the bytes are durable; objects that are committed later need no further call.
    fn settle(&self, after: Op, objects: &[Arc<dyn Handle>]) -> Result<()> {
        match after {
            Op::Read => check_each(objects),
            Op::Write => Ok(()),
        }
    }

    /// Lists one page of names, in byte order. A name that exists throughout the listing is listed.
    fn list(&self, _: &ListPage) -> Result<Listing> {
        Err(Verb::List.missing_in(self.describe(OsStr::new(""))))
    }

    /// The store of all objects whose names begin with `folder/`. Where folders exist on their own, a missing one is
    /// created, or is an error.
    fn below(&self, _folder: &OsStr, _missing: Missing) -> Result<Arc<dyn Store>> {
        Err(Verb::List.missing_in(self.describe(OsStr::new(""))))
    }

    /// Begins an object of `bytes` bytes, which is not visible until it is committed.
    fn create(&self, _name: &OsStr, _bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        Err(Verb::Create.missing_in(self.describe(OsStr::new(""))))
    }

    /// Makes objects visible and durable, replacing those of the same names.
    fn commit(&self, _: Vec<Box<dyn Draft>>, _: CommitMode) -> Result<()> {
        Err(Verb::Create.missing_in(self.describe(OsStr::new(""))))
    }

    /// Writes a small object at once, if the condition holds. Returns whether it was written.
    fn put(&self, _name: &OsStr, _bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        Err(on.verb().missing_in(self.describe(OsStr::new(""))))
    }

    /// Removes objects in this order. Returns for each whether its condition held. After an error some may be removed.
    fn remove_all(&self, removals: &[Removal<'_>], _: Durability) -> Result<Vec<bool>> {
        match removals.first() {
            None => Ok(Vec::new()),
            Some(first) => Err(first.verb().missing_in(self.describe(OsStr::new("")))),
        }
    }

    /// Removes drafts below this store that nobody will commit. Returns their names. Stores whose drafts end with their
    /// writers have none.
    fn sweep(&self, _: Sweep) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Copies objects of `from` to names in this store without moving their bytes through this machine, replacing
    /// objects of those names. Returns `false`, with nothing copied, where that is not possible.
    fn copy_within(&self, _from: &dyn Store, _objects: &[(Named, OsString)]) -> Result<bool> {
        Ok(false)
    }
}

const _: [&dyn Store; 0] = [];

/// An object that is being written. Dropped before its commit, it leaves nothing behind.
pub trait Draft: Any + fmt::Debug + Send {
    /// The handle that lanes write to.
    fn handle(&self) -> Arc<dyn Handle>;

    /// Writes all of `bytes` at `offset`. For headers and other small data.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Sets the final length, for a writer that learns it only at the end. An object of a file system is begun with
    /// length 0 for that, and any other with the longest length that it may get.
    fn end_at(&mut self, _bytes: u64) -> Result<()> {
        let message = "its store has to know the length of an object at its start";
        let name = self.handle().object().name;
        Err(Error::new(ErrorKind::Unsupported, "write", name, message))
    }

    /// Makes the object at least `end` bytes long. Stores that must know the length from the start refuse.
    fn grow(&self, end: u64) -> Result<()> {
        let object = self.handle().object();
        if end <= object.bytes {
            return Ok(());
        }
        let message = format!(
            "it was begun with {} bytes, and byte {end} is to be written",
            object.bytes
        );
        Err(Error::new(ErrorKind::Invalid, "write to", object.name, message)
            .with_hint("open it with its final length (⟦size⟧)"))
    }
}

const _: [&dyn Draft; 0] = [];

/// An object's name, with metadata from a listing or a manifest. A tag requests that version only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its name in the store.
    pub name: OsString,
    /// Its length, if known.
    pub bytes: Option<u64>,
    /// Its version, if known.
    pub tag: Option<Tag>,
    /// When it was put, by the store's clock, if a listing said so.
    pub modified: Option<SystemTime>,
}

impl Named {
    /// An object with only its name.
    pub fn new(name: impl Into<OsString>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// The object whose permissions and holes a new object takes over, or whose place it takes. Stores without these ignore
/// it.
#[derive(Clone, Copy, Debug)]
pub enum Like<'a> {
    /// The object that it replaces, if there is one.
    Replaced,
    /// The object of this name in the same folder, which the new one replaces under its own name.
    InsteadOf(&'a OsStr),
    /// The source of a copy.
    Copy {
        /// The source.
        of: &'a dyn Handle,
        /// Whether it has holes.
        has_holes: bool,
    },
    /// The existing local file of that name, which is written in place: its other bytes stay, and it has its name all
    /// the time. Only a store of files has this.
    InPlace,
    /// The block device of that name, which is overwritten in place. A store of files writes to a device only for this,
    /// and only `--to-device` asks for it.
    Device,
}

/// The condition of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Unconditional.
    Always,
    /// No object has that name.
    IfAbsent,
    /// The object of that name has this version.
    IfMatch(Tag),
}

impl Condition {
    /// The verb of a put with this condition.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Always => Verb::Put,
            Self::IfAbsent => Verb::PutIfAbsent,
            Self::IfMatch(_) => Verb::PutIfMatch,
        }
    }

    /// Whether it holds for an object of this version, or without an object.
    pub fn holds(&self, there: Option<&Tag>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => there.is_none(),
            Self::IfMatch(tag) => there == Some(tag),
        }
    }
}

/// How several drafts are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// In their order. The last one is the commit point: a reader that sees it sees all. After an error, no new name is
    /// visible.
    InOrder,
    /// Each on its own. After an error some may be visible.
    Each,
}

/// The drafts that a sweep removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Those directly below the store whose writers were killed, where that can be determined.
    Dead,
    /// All that are older, whether or not their writers are alive.
    OlderThan(Duration),
}

/// How a missing folder is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is created.
    Create,
    /// It is an error.
    Refuse,
}

/// What an engine has to serve.
#[derive(Clone, Copy, Debug)]
pub struct LaneSpec<'a> {
    /// The lane's track.
    pub track: Track,
    /// The memory that its lane serves.
    pub place: Place,
    /// The executor's settings.
    pub settings: &'a Settings,
    /// The executor's handle to GPUDirect Storage.
    pub gds: &'a Gds,
}

impl LaneSpec<'_> {
    /// The number of I/Os in flight that the engine has to support.
    pub fn depth(&self) -> u32 {
        match self.track {
            Track::Drive => self.settings.depth.max(self.settings.write_depth),
            Track::Cached | Track::Checked => self.settings.depth,
        }
    }
}

/// Returns an error if one of these open objects has changed, asking each of them.
pub fn check_each(objects: &[Arc<dyn Handle>]) -> Result<()> {
    objects.iter().try_for_each(|object| object.check_unchanged())
}

/// Converts a draft back to the type of the store that commits it.
pub fn own_draft<D: Draft>(draft: Box<dyn Draft>) -> Result<D> {
    let name = draft.handle().object().name;
    let own = (draft as Box<dyn Any>).downcast::<D>();
    own.map(|own| *own).map_err(|_| {
        let message = "it is a draft of another store";
        Error::new(ErrorKind::Invalid, "commit", name, message)
    })
}

/// The parts of a name, or an error if it is not a valid name.
pub fn parts<'a>(store: &dyn Store, name: &'a OsStr) -> Result<Vec<&'a OsStr>> {
    let parts: Vec<_> = name.as_bytes().split(|byte| *byte == b'/').collect();
    let fits = |part: &&[u8]| !matches!(*part, b"" | b"." | b"..") && !part.contains(&0);
    if parts.iter().all(fits) {
        return Ok(parts.into_iter().map(OsStr::from_bytes).collect());
    }
    let message = "a name has parts with `/` between them, none of them empty, `.` or `..`";
    let name = store.describe(name);
    Err(Error::new(ErrorKind::Invalid, "use the name", name, message))
}

/// A name as text, or an error if it is not UTF-8.
pub fn text<'a>(store: &dyn Store, name: &'a OsStr) -> Result<&'a str> {
    name.to_str().ok_or_else(|| {
        let message = "its name is not UTF-8";
        Error::new(ErrorKind::Invalid, "use", store.describe(name), message)
    })
}
