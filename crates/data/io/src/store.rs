//! Stores: where objects are, and all operations on them except moving their bytes.
//!
//! A [`Store`] is the control plane: it opens, lists, creates, commits, puts and removes objects by name, and makes the
//! [`Engine`]s that lanes move bytes with. The operations that a store supports are data ([`Verbs`]). A verb that it
//! does not declare is not implemented, and calling it returns an error that names the store and the verb.
//!
//! A name is one part or several with `/` between them; no part is empty, `.` or `..`. [`Store::below`] returns the
//! store of all names under one prefix: a folder of a file system, or a key prefix. Programs coordinate by `put` with
//! [`Condition::IfAbsent`], `list` and `remove`, which file systems and object stores both have.

pub mod files;
mod location;
mod medium;
mod pages;
pub(crate) mod pair;
mod registry;
mod tuning;
mod verb;

use std::{
    any::Any,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use straightway_core::{Direction, Error, ErrorKind, Extent, Place, Result, Survey};
pub use straightway_sys::{Folder, folder::Durability};

use crate::{engine::Engine, settings::Settings, track::Track};

pub use crate::handle::{Handle, Tag, file};

pub use files::Files;
pub use location::{Location, file_identity, is_same_file};
pub use medium::Medium;
pub use pages::pages;
pub use registry::Registry;
pub use tuning::Tuning;
pub use verb::{Verb, Verbs};

/// The most names that [`list_all`] lists, and that a tree may have which is copied or removed. More are refused, not
/// read in part.
pub const NAMES_MAX: usize = straightway_sys::folder::NAMES_MAX;

/// The deepest nesting of folders that [`Store::clear`] accepts.
const DEPTH_MAX: usize = 64;

/// A kind of store.
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// The name of an object of this store in messages; with an empty name, that of the store.
    fn describe(&self, name: &OsStr) -> String;

    /// An address that no other store has. It includes the service's address where `describe` omits it.
    fn address(&self) -> String {
        self.describe(OsStr::new(""))
    }

    /// The operations that it supports.
    fn verbs(&self) -> Verbs;

    /// Opens objects for reading, all or none.
    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>>;

    /// Makes the engine of one lane. Called on the lane's thread.
    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>>;

    /// The family of stores whose engines can serve it. Stores of one family share their lanes.
    fn family(&self) -> &'static str;

    /// Returns what is known of each object before a transfer is planned. Where a hull is given, the survey also says
    /// which of its bytes are in a cache that is faster than the store.
    fn survey(&self, objects: &[Arc<dyn Handle>], _hulls: &[Option<Extent>], _: Direction) -> Result<Vec<Survey>> {
        Ok(vec![Survey::default(); objects.len()])
    }

    /// Waits until the bytes written to objects are durable. Objects that are committed later need no further sync.
    fn sync(&self, _written: &[Arc<dyn Handle>]) -> Result<()> {
        Ok(())
    }

    /// Returns an error if one of these open objects has changed since it was opened. A store that can ask for several
    /// objects at once overrides it.
    fn check_unchanged(&self, objects: &[Arc<dyn Handle>]) -> Result<()> {
        let mut objects = objects.iter();
        objects.try_for_each(|object| object.check_unchanged())
    }

    /// The chunk size and queue depth that suit it. Not used for local files: their drives are measured ([`Medium`]).
    fn tuning(&self) -> Tuning {
        Tuning::default()
    }

    /// Objects up to this length stay in memory from creation to commit.
    fn kept_bytes_max(&self) -> u64 {
        0
    }

    /// Reads a whole small object of at most `bytes_max` bytes.
    fn get(&self, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
        get_whole(self, name, bytes_max)
    }

    /// Lists one page of names, in byte order. A name that exists throughout the listing is listed.
    fn list(&self, _: &ListPage) -> Result<Listing> {
        Err(self.lacks(Verb::List))
    }

    /// The store of all objects whose names begin with `folder/`. Where folders exist on their own, a missing one is
    /// created, or is an error.
    fn below(&self, _folder: &OsStr, _missing: Missing) -> Result<Arc<dyn Store>> {
        Err(self.lacks(Verb::List))
    }

    /// Begins an object of `bytes` bytes, which is not visible until it is committed.
    fn create(&self, _name: &OsStr, _bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        Err(self.lacks(Verb::Create))
    }

    /// Makes objects visible and durable, in this order, replacing those of the same names. The last one is the commit
    /// point: a reader that sees it sees all. After an error, no new name is visible.
    fn commit(&self, _: Vec<Box<dyn Draft>>) -> Result<()> {
        Err(self.lacks(Verb::Create))
    }

    /// Makes independent objects visible and durable. After an error some may be visible.
    fn commit_each(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        let mut drafts = drafts.into_iter();
        drafts.try_for_each(|draft| self.commit(vec![draft]))
    }

    /// Copies objects of `from` to names in this store without moving their bytes through this machine, replacing
    /// objects of those names. Returns `false`, with nothing copied, where that is not possible.
    fn copy_within(&self, _from: &dyn Store, _objects: &[(Named, OsString)]) -> Result<bool> {
        Ok(false)
    }

    /// Removes drafts directly below this store whose writers were killed, where that can be determined.
    fn sweep(&self) {}

    /// Removes all drafts below this store that are older than `age`, whether or not their writers are alive. Returns
    /// their names. Stores whose drafts end with their writers have none.
    fn sweep_drafts(&self, _age: Duration) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Writes a small object at once, if the condition holds. Returns whether it was written.
    fn put(&self, _name: &OsStr, _bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        Err(self.lacks(on.verb()))
    }

    /// Removes an object, or an empty folder where folders exist. A missing object is not an error.
    fn remove(&self, _name: &OsStr, _: Durability) -> Result<()> {
        Err(self.lacks(Verb::Remove))
    }

    /// Removes an object if its version is still this one. Returns whether it was removed.
    fn remove_if_match(&self, _name: &OsStr, _: &Tag, _: Durability) -> Result<bool> {
        Err(self.lacks(Verb::RemoveIfMatch))
    }

    /// Removes all objects whose names begin with `folder/`, and the folder.
    fn clear(&self, folder: &OsStr) -> Result<()> {
        clear_below(self, folder, DEPTH_MAX)
    }

    /// The path of an object that is a local file.
    fn path(&self, _name: &OsStr) -> Option<PathBuf> {
        None
    }

    /// The local folder behind this store. Folders have safeguards that object stores lack: locks that end with their
    /// process, a unique number, and rename.
    fn folder(&self) -> Option<&Folder> {
        None
    }

    /// The error for a verb that is not declared.
    fn lacks(&self, verb: Verb) -> Error {
        let store = self.describe(OsStr::new(""));
        let message = "this kind of store does not support it";
        Error::new(ErrorKind::Unsupported, verb.name(), store, message)
    }
}

const _: [&dyn Store; 0] = [];

/// An object that is being written. Dropped before its commit, it leaves nothing behind.
pub trait Draft: Any + fmt::Debug + Send {
    /// The handle that lanes write to.
    fn handle(&self) -> Arc<dyn Handle>;

    /// Writes all of `bytes` at `offset`. For headers and other small data.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
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
}

/// How a missing folder is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is created.
    Create,
    /// It is an error.
    Refuse,
}

/// A request for one page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// [`Listing::next`] of the previous page.
    pub after: Option<OsString>,
    /// The most names to list. A store may list fewer.
    pub names_max: usize,
}

/// One page of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Objects whose names have one part.
    pub objects: Vec<Named>,
    /// The first parts of all other names.
    pub folders: Vec<OsString>,
    /// The start of the next page; `None` at the end.
    pub next: Option<OsString>,
}

impl Listing {
    /// Cuts one page out of all `names`. Names of folders end with a slash, as in an object store.
    pub fn of(mut names: Vec<String>, page: &ListPage) -> Self {
        let after = page.after.as_deref();
        names.retain(|name| after.is_none_or(|after| OsStr::new(name) > after));
        names.sort_unstable();
        let is_more = names.len() > page.names_max;
        names.truncate(page.names_max);
        let next = names.last().filter(|_| is_more).map(OsString::from);
        let (folders, objects): (Vec<_>, Vec<_>) = names.into_iter().partition(|n| n.ends_with('/'));
        let folder = |name: String| name.trim_end_matches('/').into();
        Self {
            objects: objects.into_iter().map(Named::new).collect(),
            folders: folders.into_iter().map(folder).collect(),
            next,
        }
    }
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

/// Opens one object for reading.
pub fn open_one<S: Store + ?Sized>(store: &S, name: &OsStr) -> Result<Arc<dyn Handle>> {
    let mut opened = store.open(&[Named::new(name)])?;
    Ok(opened.pop().expect("one handle for each name"))
}

/// The default of [`Store::get`].
fn get_whole<S: Store + ?Sized>(store: &S, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
    read_whole(store, &*open_one(store, name)?, name, bytes_max)
}

/// Reads a whole open object of at most `bytes_max` bytes.
pub fn read_whole<S: Store + ?Sized>(store: &S, handle: &dyn Handle, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
    let bytes = handle.object().bytes;
    if bytes > bytes_max {
        let message = format!("it is longer than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::Corrupt, "read", store.describe(name), message));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    handle.read_exact_at(0, &mut content)?;
    Ok(content)
}

/// Lists all names in a store, page by page. Pages that do not advance, or too many names, are an error.
pub fn list_all<S: Store + ?Sized>(store: &S) -> Result<Listing> {
    let mut all = Listing::default();
    for page in pages(store, NAMES_MAX) {
        let page = page?;
        all.objects.extend(page.objects);
        all.folders.extend(page.folders);
        if all.objects.len() + all.folders.len() > NAMES_MAX {
            return Err(too_many_names(store.describe(OsStr::new("")), NAMES_MAX));
        }
    }
    Ok(all)
}

/// The error of a listing of `store` with more than `names_max` names. A faulty service may list names forever.
pub fn too_many_names(store: String, names_max: usize) -> Error {
    let message = format!("it has more than {names_max} names below it, or its service lists names without end");
    Error::new(ErrorKind::Invalid, "list", store, message).with_hint("name a longer prefix or a folder below it")
}

fn clear_below<S: Store + ?Sized>(store: &S, folder: &OsStr, depth: usize) -> Result<()> {
    if depth == 0 {
        let message = format!("its folders are nested more than {DEPTH_MAX} deep");
        return Err(Error::new(ErrorKind::Invalid, "clear", store.describe(folder), message));
    }
    let inside = store.below(folder, Missing::Refuse)?;
    let listing = list_all(&*inside)?;
    for object in listing.objects {
        inside.remove(&object.name, Durability::Unsynced)?;
    }
    for below in listing.folders {
        clear_below(&*inside, &below, depth - 1)?;
    }
    store.remove(folder, Durability::Unsynced)
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
