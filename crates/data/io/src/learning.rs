//! Learning: which of two methods is faster on this machine and drive, where no profile says so.
//!
//! The first large transfer of a kind runs its first chunks by both methods in turn, and the rest by the faster one
//! (`executor/trial.rs`). The caller that makes a [`Learning`] stores the results: this module knows no drives and
//! writes no files. The transfer planner receives the answer like any other setting.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use straightway_core::{Error, ErrorKind, Lock, Result};

/// A kind of work that can be done by two methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// Reads from a drive into host memory: [`Method::Direct`] or [`Method::Ring`].
    Read,
    /// Writes to a file system in memory: [`Method::Calls`] or [`Method::Mapping`].
    Write,
    /// Copies between files of one file system in memory: the same methods as for writes.
    Copy,
}

/// A method of moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// DMA into the region.
    Direct,
    /// DMA into the ring, then a copy into the region.
    Ring,
    /// System calls, with one lane per file: the kernel admits one writer at a time to a file.
    Calls,
    /// A mapping of the file, used by all lanes.
    Mapping,
}

impl WorkKind {
    /// All kinds of work.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Copy];

    /// The two methods for this kind of work. The first is the default where nothing is known.
    pub fn methods(self) -> [Method; 2] {
        match self {
            Self::Read => [Method::Direct, Method::Ring],
            Self::Write | Self::Copy => [Method::Calls, Method::Mapping],
        }
    }
}

/// The faster method for each kind of work.
pub type Lessons = BTreeMap<WorkKind, Method>;

type Load = Box<dyn Fn() -> Lessons + Send + Sync>;
type Keep = Box<dyn Fn(WorkKind, Method) + Send + Sync>;

/// Shorter transfers neither look up a method nor learn one: the lookup takes a millisecond.
const BYTES_MIN: u64 = 512 << 20;

/// The known faster methods for one drive. Clones share them.
#[derive(Clone)]
pub struct Learning {
    known: Arc<Known>,
    bytes_min: u64,
}

struct Known {
    load: Load,
    keep: Keep,
    lessons: OnceLock<Lock<Lessons>>,
}

impl Learning {
    /// Creates a `Learning`. `load` returns what is known already and is called on first use; `keep` stores new
    /// results.
    pub fn new(
        load: impl Fn() -> Lessons + Send + Sync + 'static,
        keep: impl Fn(WorkKind, Method) + Send + Sync + 'static,
    ) -> Self {
        let known = Arc::new(Known {
            load: Box::new(load),
            keep: Box::new(keep),
            lessons: OnceLock::new(),
        });
        Self {
            known,
            bytes_min: BYTES_MIN,
        }
    }

    /// Sets the size from which transfers look up and learn.
    #[must_use]
    pub fn from_bytes(self, bytes_min: u64) -> Self {
        Self { bytes_min, ..self }
    }

    /// The size from which transfers look up and learn.
    pub(crate) fn bytes_min(&self) -> u64 {
        self.bytes_min
    }

    /// The faster method, if it is known.
    pub fn known(&self, work: WorkKind) -> Option<Method> {
        let known = self.lessons().lock();
        // A loaded file may hold anything: a method that does not belong to this kind of work is ignored.
        let method = known.get(&work).copied();
        method.filter(|method| work.methods().contains(method))
    }

    /// Records the faster method.
    pub fn learn(&self, work: WorkKind, method: Method) {
        self.lessons().lock().insert(work, method);
        (self.known.keep)(work, method);
    }

    fn lessons(&self) -> &Lock<Lessons> {
        let known = &self.known;
        known.lessons.get_or_init(|| Lock::new((known.load)()))
    }
}

impl fmt::Debug for Learning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Learning").field(&self.known.lessons.get()).finish()
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Calls => "calls",
            Self::Mapping => "mapping",
        })
    }
}

impl FromStr for WorkKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|work| work.to_string() == text);
        found.ok_or_else(|| {
            let message = "it is not read, write or copy";
            Error::new(ErrorKind::Invalid, "parse the kind of work", text, message)
        })
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = WorkKind::ALL.into_iter().flat_map(WorkKind::methods);
        let found = all.find(|method| method.to_string() == text);
        found.ok_or_else(|| {
            let message = "it is not direct, ring, calls or mapping";
            Error::new(ErrorKind::Invalid, "parse the method", text, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_are_loaded_once_and_new_ones_are_kept() {
        let kept: Arc<Lock<Vec<_>>> = Arc::default();
        let sink = Arc::clone(&kept);
        let learning = Learning::new(
            || Lessons::from([(WorkKind::Read, Method::Mapping), (WorkKind::Copy, Method::Mapping)]),
            move |work, method| sink.lock().push((work, method)),
        );
        assert_eq!(
            learning.known(WorkKind::Read),
            None,
            "a mapping is not a method for reads"
        );
        assert_eq!(learning.known(WorkKind::Copy), Some(Method::Mapping));
        learning.clone().learn(WorkKind::Read, Method::Ring);
        assert_eq!(learning.known(WorkKind::Read), Some(Method::Ring));
        assert_eq!(*kept.lock(), [(WorkKind::Read, Method::Ring)]);
    }

    #[test]
    fn work_kinds_and_methods_parse_what_they_display() {
        for work in WorkKind::ALL {
            assert_eq!(work.to_string().parse::<WorkKind>().unwrap(), work);
            for method in work.methods() {
                assert_eq!(method.to_string().parse::<Method>().unwrap(), method);
            }
        }
        assert!("x".parse::<WorkKind>().is_err() && "".parse::<Method>().is_err());
    }
}
