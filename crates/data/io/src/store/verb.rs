//! The operations of a store, as data.

use straightway_core::{Error, ErrorKind};

/// An optional operation of a store. Opening objects is not optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `list` and `below`.
    List,
    /// `create` and `commit`.
    Create,
    /// `put` with [`Condition::Always`](super::Condition::Always).
    Put,
    /// `put` with [`Condition::IfAbsent`](super::Condition::IfAbsent).
    PutIfAbsent,
    /// `put` with [`Condition::IfMatch`](super::Condition::IfMatch); its handles have tags.
    PutIfMatch,
    /// `remove_all` of objects and trees.
    Remove,
    /// `remove_all` of versions; its handles have tags.
    RemoveIfMatch,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 7] = [
        Self::List,
        Self::Create,
        Self::Put,
        Self::PutIfAbsent,
        Self::PutIfMatch,
        Self::Remove,
        Self::RemoveIfMatch,
    ];

    /// The verb as error messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Create => "create objects in",
            Self::Put => "put objects into",
            Self::PutIfAbsent => "put-if-absent into",
            Self::PutIfMatch => "put-if-match into",
            Self::Remove => "remove objects from",
            Self::RemoveIfMatch => "remove-if-match from",
        }
    }

    /// The error for a verb that a store does not declare.
    pub fn missing_in(self, store: String) -> Error {
        let message = "this kind of store does not support it";
        Error::new(ErrorKind::Unsupported, self.name(), store, message)
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbs(u8);

impl Verbs {
    /// The set of `verbs`.
    pub const fn of(verbs: &[Verb]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < verbs.len() {
            set |= 1 << verbs[at] as u8;
            at += 1;
        }
        Self(set)
    }

    /// Whether the set contains `verb`.
    pub fn has(self, verb: Verb) -> bool {
        self.0 & (1 << verb as u8) != 0
    }
}
