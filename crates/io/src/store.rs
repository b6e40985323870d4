//! Stores: where objects are, and what can be done with them apart from moving their bytes.
//!
//! A [`Store`] is the control plane: it opens, lists, creates, commits, puts and removes objects by name, and makes the
//! [`Engine`]s that lanes move bytes with. What a store can do is data ([`Verbs`]). A verb that it does not declare is
//! not implemented, and calling it is an error that names the store and the verb.
//!
//! A name is one part or several with `/` between them; no part is empty, `.` or `..`. [`Store::below`] gives the
//! store of all names that begin with one part, as a folder of a file system or a prefix of keys. Programs coordinate
//! by `put` with [`Condition::IfAbsent`], `list` and `remove`, which file systems and object stores both have.

pub mod files;
mod location;
pub(crate) mod pair;
mod registry;
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

use straightway_core::{Direction, Error, Extent, Kind, Place, Result, Survey};
pub use straightway_sys::{Folder, folder::Durability};

use crate::{engine::Engine, settings::Settings, track::Track};

pub use crate::handle::{Handle, Tag, file};

pub use files::Files;
pub use location::Location;
pub use registry::Registry;
pub use verb::{Verb, Verbs};

/// The most objects that [`list_all`] lists. A folder with more is refused, not read in part.
pub const NAMES_MAX: usize = straightway_sys::folder::NAMES_MAX;

/// How deep [`Store::clear`] descends.
const DEPTH_MAX: usize = 64;

/// A kind of store.
pub trait Store: Any + fmt::Debug + Send + Sync {
    /// What messages call an object of this store; with an empty name, the store.
    fn describe(&self, name: &OsStr) -> String;

    /// Where it is, as no other store is: where messages leave out the address of a service, this has it.
    fn address(&self) -> String {
        self.describe(OsStr::new(""))
    }

    /// The verbs that it implements.
    fn verbs(&self) -> Verbs;

    /// Opens objects to read, all or none.
    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>>;

    /// The engine of one lane, created on the lane's thread.
    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>>;

    /// Which engines serve it: stores of one family share their lanes.
    fn family(&self) -> &'static str;

    /// What is known of each object before a transfer is planned. Where a hull is given, it is asked as well what of
    /// those bytes is in a cache that is faster than the store.
    fn survey(
        &self,
        objects: &[Arc<dyn Handle>],
        _hulls: &[Option<Extent>],
        _: Direction,
    ) -> Result<Vec<Survey>> {
        Ok(vec![Survey::default(); objects.len()])
    }

    /// Waits until what was written to objects is durable. Those that are committed later need no more.
    fn sync(&self, _written: &[Arc<dyn Handle>]) -> Result<()> {
        Ok(())
    }

    /// The sizes that suit it.
    fn tuning(&self) -> Tuning {
        Tuning::default()
    }

    /// Objects up to this long are kept in memory from their first byte to their commit.
    fn kept_bytes_max(&self) -> u64 {
        0
    }

    /// All bytes of a small object that has at most `bytes_max`.
    fn get(&self, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
        get_whole(self, name, bytes_max)
    }

    /// One page of the names in this store, in order of their bytes. Each name is listed that was there all the while.
    fn list(&self, _: &Page) -> Result<Listing> {
        Err(self.lacks(Verb::List))
    }

    /// The store of all objects whose names begin with `folder/`. Where folders exist on their own, a missing one is
    /// made, or is an error.
    fn below(&self, _folder: &OsStr, _missing: Missing) -> Result<Arc<dyn Store>> {
        Err(self.lacks(Verb::List))
    }

    /// Begins an object of `bytes`, which nobody sees until it is committed.
    fn create(&self, _name: &OsStr, _bytes: u64, _: &Like<'_>) -> Result<Box<dyn Draft>> {
        Err(self.lacks(Verb::Create))
    }

    /// Makes objects visible and durable, in this order, replacing those of the same names. The last one is the commit
    /// point: whoever sees it sees all. After an error none is visible that was not there before.
    fn commit(&self, _: Vec<Box<dyn Draft>>) -> Result<()> {
        Err(self.lacks(Verb::Create))
    }

    /// Makes objects visible and durable that have nothing to do with each other. After an error some may be visible.
    fn commit_each(&self, drafts: Vec<Box<dyn Draft>>) -> Result<()> {
        let mut drafts = drafts.into_iter();
        drafts.try_for_each(|draft| self.commit(vec![draft]))
    }

    /// Copies objects of `from` to names in this store without their bytes passing through this machine, replacing what
    /// has those names. `false` where that cannot be done; then nothing was.
    fn copy_within(&self, _from: &dyn Store, _objects: &[(Named, OsString)]) -> Result<bool> {
        Ok(false)
    }

    /// Removes what killed writers left of drafts directly below this store, as far as it can be told.
    fn sweep(&self) {}

    /// Removes all drafts below this store that were begun longer than `age` ago, be their writers alive or not. Answers
    /// what they were called. Stores whose drafts end with their writers have none.
    fn sweep_drafts(&self, _age: Duration) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Gives a small object its bytes at once, if the condition holds. Answers whether it did.
    fn put(&self, _name: &OsStr, _bytes: &[u8], on: &Condition, _: Durability) -> Result<bool> {
        Err(self.lacks(on.verb()))
    }

    /// Removes an object, or an empty folder where such exist. What is not there is removed.
    fn remove(&self, _name: &OsStr, _: Durability) -> Result<()> {
        Err(self.lacks(Verb::Remove))
    }

    /// Removes an object if it is still this version. Answers whether it did.
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

    /// The local folder that this store is. Folders have safeguards that object stores lack: locks that end with their
    /// process, a number that no other folder has, and a rename.
    fn folder(&self) -> Option<&Folder> {
        None
    }

    /// The error of a verb that is not declared.
    fn lacks(&self, verb: Verb) -> Error {
        let store = self.describe(OsStr::new(""));
        let message = "this kind of store does not support it";
        Error::new(Kind::Unsupported, verb.name(), store, message)
    }
}

const _: [&dyn Store; 0] = [];

/// An object in the making. Dropped before its commit, it leaves nothing behind.
pub trait Draft: Any + fmt::Debug + Send {
    /// What lanes write to.
    fn handle(&self) -> Arc<dyn Handle>;

    /// Writes all of `bytes` at `offset`: for headers and the like.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

const _: [&dyn Draft; 0] = [];

/// An object by name, with what a listing or a manifest said of it. A tag asks for that version only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its name in the store.
    pub name: OsString,
    /// Its length, where it is known already.
    pub bytes: Option<u64>,
    /// Its version, where it is known already.
    pub tag: Option<Tag>,
    /// When it was put, by the clock of the store, where a listing said.
    pub modified: Option<SystemTime>,
}

impl Named {
    /// An object of which only the name is known.
    pub fn new(name: impl Into<OsString>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// What a new object is like, where its store has permissions and holes. Others ignore it.
#[derive(Clone, Copy, Debug)]
pub enum Like<'a> {
    /// The object that it replaces, if there is one.
    Replaced,
    /// The object of this name in the same folder, whose place it takes under its own name.
    InsteadOf(&'a OsStr),
    /// The object that it is a copy of.
    Copy {
        /// That object.
        of: &'a dyn Handle,
        /// Whether parts of it are not stored.
        has_holes: bool,
    },
}

/// When a put takes place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    Always,
    /// Nothing has that name.
    IfAbsent,
    /// This version has that name.
    IfMatch(Tag),
}

impl Condition {
    /// The verb that a put with this condition is.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Always => Verb::Put,
            Self::IfAbsent => Verb::PutIfAbsent,
            Self::IfMatch(_) => Verb::PutIfMatch,
        }
    }
}

/// What becomes of a folder that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is made.
    Create,
    /// It is an error.
    Refuse,
}

/// Which part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// What [`Listing::next`] of the page before was.
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
    /// Where the next page begins; `None` at the end.
    pub next: Option<OsString>,
}

impl Listing {
    /// The page of all `names`, in which those of folders end with a slash, as an object store has them.
    pub fn of(mut names: Vec<String>, page: &Page) -> Self {
        let after = page.after.as_deref();
        names.retain(|name| after.is_none_or(|after| OsStr::new(name) > after));
        names.sort_unstable();
        let is_more = names.len() > page.names_max;
        names.truncate(page.names_max);
        let next = names.last().filter(|_| is_more).map(OsString::from);
        let (folders, objects): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|n| n.ends_with('/'));
        let folder = |name: String| name.trim_end_matches('/').into();
        Self {
            objects: objects.into_iter().map(Named::new).collect(),
            folders: folders.into_iter().map(folder).collect(),
            next,
        }
    }
}

/// What an engine is for.
#[derive(Clone, Copy, Debug)]
pub struct LaneSpec<'a> {
    /// Around the page cache, or through it.
    pub track: Track,
    /// The memory that its lane serves.
    pub place: Place,
    /// The executor's settings.
    pub settings: &'a Settings,
}

impl LaneSpec<'_> {
    /// How many I/Os the engine has to take at once.
    pub fn depth(&self) -> u32 {
        match self.track {
            Track::Drive => self.settings.depth.max(self.settings.write_depth),
            Track::Cached | Track::Checked => self.settings.depth,
        }
    }
}

/// The sizes that suit a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// I/Os in flight on each lane.
    pub depth: u32,
}

impl Default for Tuning {
    /// A drive's.
    fn default() -> Self {
        let Settings {
            chunk_bytes, depth, ..
        } = Settings::default();
        Self { chunk_bytes, depth }
    }
}

/// Opens one object to read.
pub fn open_one<S: Store + ?Sized>(store: &S, name: &OsStr) -> Result<Arc<dyn Handle>> {
    let mut opened = store.open(&[Named::new(name)])?;
    Ok(opened.pop().expect("one handle for each name"))
}

/// What [`Store::get`] does where a store has no shorter way.
fn get_whole<S: Store + ?Sized>(store: &S, name: &OsStr, bytes_max: u64) -> Result<Vec<u8>> {
    read_whole(store, &*open_one(store, name)?, name, bytes_max)
}

/// All bytes of an open object that has at most `bytes_max`.
pub fn read_whole<S: Store + ?Sized>(
    store: &S,
    handle: &dyn Handle,
    name: &OsStr,
    bytes_max: u64,
) -> Result<Vec<u8>> {
    let bytes = handle.object().bytes;
    if bytes > bytes_max {
        let message = format!("it is longer than {bytes_max} bytes");
        return Err(Error::new(
            Kind::Corrupt,
            "read",
            store.describe(name),
            message,
        ));
    }
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    handle.read_exact_at(0, &mut content)?;
    Ok(content)
}

/// All names in a store, page by page. Pages that do not advance, or too many names, are an error.
pub fn list_all<S: Store + ?Sized>(store: &S) -> Result<Listing> {
    let refuse = |kind, why: String| {
        let store = store.describe(OsStr::new(""));
        Err(Error::new(kind, "list", store, why))
    };
    let (mut all, mut after) = (Listing::default(), None);
    loop {
        let names_max = NAMES_MAX;
        let page = store.list(&Page {
            after: after.clone(),
            names_max,
        })?;
        all.objects.extend(page.objects);
        all.folders.extend(page.folders);
        if all.objects.len() + all.folders.len() > NAMES_MAX {
            return refuse(
                Kind::Invalid,
                format!("it has more than {NAMES_MAX} entries"),
            );
        }
        match page.next {
            None => return Ok(all),
            next if next <= after => {
                let why = "its pages do not advance";
                return refuse(Kind::Corrupt, why.to_owned());
            }
            next => after = next,
        }
    }
}

fn clear_below<S: Store + ?Sized>(store: &S, folder: &OsStr, depth: usize) -> Result<()> {
    if depth == 0 {
        let message = format!("folders lie more than {DEPTH_MAX} deep in it");
        return Err(Error::new(
            Kind::Invalid,
            "clear",
            store.describe(folder),
            message,
        ));
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

/// A draft as the store made it that is to commit it.
pub fn own_draft<D: Draft>(draft: Box<dyn Draft>) -> Result<D> {
    let name = draft.handle().object().name;
    let own = (draft as Box<dyn Any>).downcast::<D>();
    own.map(|own| *own).map_err(|_| {
        let message = "it is a draft of another store";
        Error::new(Kind::Invalid, "commit", name, message)
    })
}

/// The parts of a name, or an error for one that is none.
pub fn parts<'a>(store: &dyn Store, name: &'a OsStr) -> Result<Vec<&'a OsStr>> {
    let parts: Vec<_> = name.as_bytes().split(|byte| *byte == b'/').collect();
    let fits = |part: &&[u8]| !matches!(*part, b"" | b"." | b"..") && !part.contains(&0);
    if parts.iter().all(fits) {
        return Ok(parts.into_iter().map(OsStr::from_bytes).collect());
    }
    let message = "a name has parts with `/` between them, none of them empty, `.` or `..`";
    let name = store.describe(name);
    Err(Error::new(Kind::Invalid, "use the name", name, message))
}

/// A name that is text, or an error for one that is none.
pub fn text<'a>(store: &dyn Store, name: &'a OsStr) -> Result<&'a str> {
    name.to_str().ok_or_else(|| {
        let message = "its name is not text";
        Error::new(Kind::Invalid, "use", store.describe(name), message)
    })
}
