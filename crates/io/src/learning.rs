//! Learning: which of two ways is faster on this machine and drive, for work that no profile speaks of.
//!
//! The first large transfer of a kind runs its first chunks both ways, in turn, and the rest the faster way
//! (`executor/trial.rs`). What was found out is kept by whoever made the [`Learning`]: this room knows neither drives nor
//! files of its own. The planner is given the answer as any other setting.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use straightway_core::{Error, Kind, Result};

/// A kind of work that there are two ways for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// Reads from a drive into host memory: [`Way::Direct`] or [`Way::Ring`].
    Read,
    /// Writes to a file system in memory: [`Way::Calls`] or [`Way::Mapping`].
    Write,
    /// Copies between files of one file system in memory: as writes.
    Copy,
}

/// A way to do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// By DMA into the region.
    Direct,
    /// By DMA into the ring, and by a copy into the region.
    Ring,
    /// By system calls: one lane for each file, since the kernel lets one writer at a time into a file.
    Calls,
    /// Through a mapping of the file, by all lanes.
    Mapping,
}

impl Work {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Copy];

    /// Its two ways. The first is taken where nothing is known.
    pub fn ways(self) -> [Way; 2] {
        match self {
            Self::Read => [Way::Direct, Way::Ring],
            Self::Write | Self::Copy => [Way::Calls, Way::Mapping],
        }
    }
}

/// What was learnt by kind of work.
pub type Lessons = BTreeMap<Work, Way>;

type Load = Box<dyn Fn() -> Lessons + Send + Sync>;
type Keep = Box<dyn Fn(Work, Way) + Send + Sync>;

/// Shorter transfers neither ask what is known nor learn: looking it up takes a millisecond.
const BYTES_MIN: u64 = 256 << 20;

/// What is known of one drive. Clones share it.
#[derive(Clone)]
pub struct Learning {
    known: Arc<Known>,
    bytes_min: u64,
}

struct Known {
    load: Load,
    keep: Keep,
    lessons: OnceLock<Mutex<Lessons>>,
}

impl Learning {
    /// What `load` says is known already, asked for when it first matters; what is learnt is given to `keep`.
    pub fn new(
        load: impl Fn() -> Lessons + Send + Sync + 'static,
        keep: impl Fn(Work, Way) + Send + Sync + 'static,
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

    /// The same for transfers of so many bytes and more, where that is another number than usual.
    #[must_use]
    pub fn from_bytes(self, bytes_min: u64) -> Self {
        Self { bytes_min, ..self }
    }

    /// From how many bytes on a transfer asks and learns.
    pub(crate) fn bytes_min(&self) -> u64 {
        self.bytes_min
    }

    /// The faster way, if that is known.
    pub fn known(&self, work: Work) -> Option<Way> {
        let lessons = self.lessons().lock();
        let known = lessons.unwrap_or_else(PoisonError::into_inner);
        // A file may say anything: a way that is none of this work is not known.
        let way = known.get(&work).copied();
        way.filter(|way| work.ways().contains(way))
    }

    /// Keeps what was found out.
    pub fn learn(&self, work: Work, way: Way) {
        let lessons = self.lessons().lock();
        lessons
            .unwrap_or_else(PoisonError::into_inner)
            .insert(work, way);
        (self.known.keep)(work, way);
    }

    fn lessons(&self) -> &Mutex<Lessons> {
        let known = &self.known;
        known.lessons.get_or_init(|| Mutex::new((known.load)()))
    }
}

impl fmt::Debug for Learning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Learning")
            .field(&self.known.lessons.get())
            .finish()
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Copy => "copy",
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Calls => "calls",
            Self::Mapping => "mapping",
        })
    }
}

impl FromStr for Work {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|work| work.to_string() == text);
        found.ok_or_else(|| Error::new(Kind::Invalid, "know work", text, "there is none"))
    }
}

impl FromStr for Way {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Work::ALL.into_iter().flat_map(Work::ways);
        let found = all.find(|way| way.to_string() == text);
        found.ok_or_else(|| Error::new(Kind::Invalid, "know a way", text, "there is none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_asked_for_once_and_what_is_learnt_is_kept() {
        let kept: Arc<Mutex<Vec<_>>> = Arc::default();
        let sink = Arc::clone(&kept);
        let learning = Learning::new(
            || Lessons::from([(Work::Read, Way::Mapping), (Work::Copy, Way::Mapping)]),
            move |work, way| sink.lock().unwrap().push((work, way)),
        );
        assert_eq!(
            learning.known(Work::Read),
            None,
            "a mapping is no way to read"
        );
        assert_eq!(learning.known(Work::Copy), Some(Way::Mapping));
        learning.clone().learn(Work::Read, Way::Ring);
        assert_eq!(learning.known(Work::Read), Some(Way::Ring));
        assert_eq!(*kept.lock().unwrap(), [(Work::Read, Way::Ring)]);
    }

    #[test]
    fn words_are_read_as_they_are_shown() {
        for work in Work::ALL {
            assert_eq!(work.to_string().parse::<Work>().unwrap(), work);
            for way in work.ways() {
                assert_eq!(way.to_string().parse::<Way>().unwrap(), way);
            }
        }
        assert!("x".parse::<Work>().is_err() && "".parse::<Way>().is_err());
    }
}
