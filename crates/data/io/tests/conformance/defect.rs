//! A store with one defect, to show that the suite detects it.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
};

use straightway_core::{Object, Result};
use straightway_io::{
    engine::Engine,
    store::{
        CommitMode, Condition, Draft, Durability, Facts, Handle, LaneSpec, Like, ListPage, Listing, Missing, Named,
        Removal, Store, StoreExt, Tag, Verb, Verbs,
    },
};

/// The defect of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// None: the wrapper alone conforms.
    None,
    /// A declared verb is not implemented.
    Skips(Verb),
    /// An undeclared verb works.
    Hides(Verb),
    /// A put-if-absent replaces an existing object.
    ReplacesIfAbsent,
    /// A put-if-match replaces any version.
    IgnoresTag,
    /// A put appends to the object.
    Appends,
    /// A page leaves its last name out.
    LosesName,
    /// Pages are not in order.
    Unordered,
    /// A page is longer than requested.
    LongPage,
    /// The last page always names a next one.
    EndlessPages,
    /// Objects are visible as soon as they are created.
    EarlyDraft,
    /// A commit makes the last object visible first.
    LastFirst,
    /// A failed commit leaves the objects before the failure.
    PartialCommit,
    /// Nothing is removed.
    RemovesNothing,
    /// A remove-if-match removes any version.
    RemovesAnyVersion,
    /// A clear leaves some objects.
    ClearsHalf,
    /// `%41` and `A` are the same name.
    DecodesNames,
    /// A read past the end returns zeros.
    FillsUp,
    /// A batch of removals leaves its last object.
    RemovesAllButLast,
    /// Objects that cannot be opened are left out.
    OpensSome,
    /// The store below a folder is the whole store.
    BelowIsAll,
    /// A handle does not notice that its object was replaced.
    NoticesNothing,
}

impl Defect {
    pub(crate) const ALL: [Self; 34] = [
        Self::None,
        Self::Skips(Verb::List),
        Self::Skips(Verb::Create),
        Self::Skips(Verb::Put),
        Self::Skips(Verb::PutIfAbsent),
        Self::Skips(Verb::PutIfMatch),
        Self::Skips(Verb::Remove),
        Self::Skips(Verb::RemoveIfMatch),
        Self::Hides(Verb::List),
        Self::Hides(Verb::Create),
        Self::Hides(Verb::Put),
        Self::Hides(Verb::PutIfAbsent),
        Self::Hides(Verb::PutIfMatch),
        Self::Hides(Verb::Remove),
        Self::Hides(Verb::RemoveIfMatch),
        Self::ReplacesIfAbsent,
        Self::IgnoresTag,
        Self::Appends,
        Self::LosesName,
        Self::Unordered,
        Self::LongPage,
        Self::EndlessPages,
        Self::EarlyDraft,
        Self::LastFirst,
        Self::PartialCommit,
        Self::RemovesNothing,
        Self::RemovesAnyVersion,
        Self::ClearsHalf,
        Self::DecodesNames,
        Self::FillsUp,
        Self::RemovesAllButLast,
        Self::OpensSome,
        Self::BelowIsAll,
        Self::NoticesNothing,
    ];
}

/// A store with one defect.
#[derive(Debug)]
pub(crate) struct DefectiveStore {
    inner: Arc<dyn Store>,
    defect: Defect,
}

impl DefectiveStore {
    pub(crate) fn new(inner: Arc<dyn Store>, defect: Defect) -> Self {
        Self { inner, defect }
    }

    fn name(&self, name: &OsStr) -> OsString {
        match (self.defect, name.to_str()) {
            (Defect::DecodesNames, Some(text)) => text.replace("%41", "A").into(),
            _ => name.to_owned(),
        }
    }

    fn check(&self, verb: Verb) -> Result<()> {
        match self.defect {
            Defect::Skips(skipped) if skipped == verb => Err(self.inner.lacks(verb)),
            _ => Ok(()),
        }
    }
}

impl Store for DefectiveStore {
    fn describe(&self, name: &OsStr) -> String {
        self.inner.describe(name)
    }

    fn facts(&self) -> Facts<'_> {
        self.inner.facts()
    }

    fn verbs(&self) -> Verbs {
        let is_declared = |verb: &Verb| self.inner.verbs().has(*verb) && self.defect != Defect::Hides(*verb);
        let declared: Vec<_> = Verb::ALL.into_iter().filter(is_declared).collect();
        Verbs::of(&declared)
    }

    fn open(&self, objects: &[Named]) -> Result<Vec<Arc<dyn Handle>>> {
        let mut opened = Vec::new();
        for object in objects {
            let name = self.name(&object.name);
            let found = self.inner.open(&[Named { name, ..object.clone() }]);
            match found {
                Err(_) if self.defect == Defect::OpensSome && objects.len() > 1 => {}
                found => {
                    let defect = self.defect;
                    let handles = found?.into_iter();
                    opened.extend(handles.map(|inner| Arc::new(DefectiveHandle { inner, defect }) as _));
                }
            }
        }
        Ok(opened)
    }

    fn engine(&self, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
        self.inner.engine(lane)
    }

    fn list(&self, page: &ListPage) -> Result<Listing> {
        self.check(Verb::List)?;
        let mut page = page.clone();
        if self.defect == Defect::LongPage {
            page.names_max = page.names_max.saturating_add(1);
        }
        let mut listing = self.inner.list(&page)?;
        match self.defect {
            Defect::LosesName => drop(listing.objects.pop()),
            Defect::Unordered => listing.objects.reverse(),
            Defect::EndlessPages if listing.next.is_none() => listing.next = Some(OsString::new()),
            _ => {}
        }
        Ok(listing)
    }

    fn below(&self, folder: &OsStr, missing: Missing) -> Result<Arc<dyn Store>> {
        self.check(Verb::List)?;
        let inner = match self.defect {
            Defect::BelowIsAll => Arc::clone(&self.inner),
            _ => self.inner.below(&self.name(folder), missing)?,
        };
        Ok(Arc::new(Self::new(inner, self.defect)))
    }

    fn create(&self, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Box<dyn Draft>> {
        self.check(Verb::Create)?;
        let name = self.name(name);
        if self.defect == Defect::EarlyDraft {
            self.inner.put(&name, b"", &Condition::Always, Durability::Synced)?;
        }
        self.inner.create(&name, bytes, like)
    }

    fn commit(&self, mut drafts: Vec<Box<dyn Draft>>, mode: CommitMode) -> Result<()> {
        self.check(Verb::Create)?;
        match self.defect {
            Defect::PartialCommit => {
                let mut drafts = drafts.into_iter();
                drafts.try_for_each(|draft| self.inner.commit(vec![draft], mode))
            }
            Defect::LastFirst => {
                drafts.reverse();
                for draft in drafts {
                    self.inner.commit(vec![draft], mode)?;
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Ok(())
            }
            _ => self.inner.commit(drafts, mode),
        }
    }

    fn put(&self, name: &OsStr, bytes: &[u8], on: &Condition, how: Durability) -> Result<bool> {
        self.check(on.verb())?;
        let name = self.name(name);
        let is_ignored = match on {
            Condition::Always => false,
            Condition::IfAbsent => self.defect == Defect::ReplacesIfAbsent,
            Condition::IfMatch(_) => self.defect == Defect::IgnoresTag,
        };
        let on = if is_ignored { &Condition::Always } else { on };
        if self.defect == Defect::Appends && *on == Condition::Always {
            let mut all = self.inner.get(&name, u64::MAX).unwrap_or_default();
            all.extend(bytes);
            return self.inner.put(&name, &all, on, how);
        }
        self.inner.put(&name, bytes, on, how)
    }

    fn remove_all(&self, removals: &[Removal<'_>], how: Durability) -> Result<Vec<bool>> {
        let mut done = Vec::new();
        for (number, removal) in removals.iter().enumerate() {
            self.check(removal.verb())?;
            let name = self.name(removal.name());
            let is_last = removals.len() > 1 && number + 1 == removals.len();
            let removal = match *removal {
                Removal::Object(_) if self.defect == Defect::RemovesNothing => None,
                Removal::Object(_) if self.defect == Defect::RemovesAllButLast && is_last => None,
                Removal::Version(..) if self.defect == Defect::RemovesAnyVersion => Some(Removal::Object(&name)),
                Removal::Tree(_) if self.defect == Defect::ClearsHalf => {
                    let below = self.inner.below(&name, Missing::Refuse)?;
                    below.remove(OsStr::new("y"), how)?;
                    None
                }
                Removal::Object(_) => Some(Removal::Object(&name)),
                Removal::Version(_, tag) => Some(Removal::Version(&name, tag)),
                Removal::Tree(_) => Some(Removal::Tree(&name)),
            };
            match removal {
                Some(removal) => done.extend(self.inner.remove_all(&[removal], how)?),
                None => done.push(true),
            }
        }
        Ok(done)
    }
}

#[derive(Debug)]
struct DefectiveHandle {
    inner: Arc<dyn Handle>,
    defect: Defect,
}

impl Handle for DefectiveHandle {
    fn object(&self) -> Object {
        self.inner.object()
    }

    fn tag(&self) -> Option<Tag> {
        self.inner.tag()
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self.inner.read_exact_at(offset, bytes) {
            Err(_) if self.defect == Defect::FillsUp => Ok(()),
            read => read,
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        match self.defect {
            Defect::NoticesNothing => Ok(()),
            _ => self.inner.check_unchanged(),
        }
    }
}
