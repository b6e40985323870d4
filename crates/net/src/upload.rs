//! An object in the making on a web server: it is stored in parts, which become the object at once when all are there.
//!
//! A write that is exactly one part is sent as it is. Bytes of anything else are kept here until their part is whole:
//! headers, the ragged edges of jobs, and chunks that are smaller than a part. What is never written is zero.
//!
//! An object that is not longer than a part is kept whole, and stored by one request at its commit: nobody may see it
//! before.

mod blocking;
mod tag;

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use straightway_core::{Kind, Object, Result, Survey};
use straightway_io::{Handle, request::Io};

use crate::{client::Client, origin::Origin, remote::Remote, service::Service};

pub use tag::PartTag;

/// A part of an object as a request has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which one, from 0 on.
    pub number: u32,
    /// How long it is.
    pub bytes: u64,
    /// Its CRC-64/NVME.
    pub sum: u64,
    /// Its MD5, where the service asks for it.
    pub digest: Option<Md5>,
}

/// An MD5.
pub type Md5 = [u8; 16];

/// A part that the server has.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// The part.
    pub part: Part,
    /// What the server calls it.
    pub tag: PartTag,
}

/// An object in the making.
pub struct Upload {
    remote: Arc<Remote>,
    bytes: u64,
    part_bytes: u64,
    /// What the server has. Empty where all of the object is kept here.
    stored: Vec<OnceLock<Stored>>,
    kept: Mutex<BTreeMap<u32, Kept>>,
}

/// A part of which some bytes are here.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    /// Which of them were written: in order, and apart.
    written: Vec<Range<usize>>,
}

/// What is to be done with the bytes of a write.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// Nothing: they are kept.
    Kept,
    /// They are sent as this part.
    Whole(u32),
    /// They were the last that were missing of this part, which is sent.
    Completes(u32, Vec<u8>),
}

impl Upload {
    /// An object of `bytes` in parts of `part_bytes`, of which the last may be shorter.
    ///
    /// # Panics
    ///
    /// Where parts have no bytes, or there are 2^32 of them.
    pub fn new(
        name: String,
        bytes: u64,
        part_bytes: u64,
        origin: &Arc<Origin>,
        service: Arc<dyn Service>,
        client: &Client,
    ) -> Self {
        let parts = if bytes <= part_bytes {
            0
        } else {
            u32::try_from(bytes.div_ceil(part_bytes)).expect("parts are counted by 32 bits")
        };
        let remote = Remote::known(name, bytes, None, origin, service, client).into_target();
        Self {
            remote: Arc::new(remote),
            bytes,
            part_bytes,
            stored: (0..parts).map(|_| OnceLock::new()).collect(),
            kept: Mutex::default(),
        }
    }

    /// The upload that a handle is, if it is one.
    pub fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
        any.downcast().ok()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        self.remote.name()
    }

    /// How long it will be.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all of it is kept until its commit.
    pub fn is_kept(&self) -> bool {
        self.stored.is_empty()
    }

    /// What the planner should know of it: chunks that are parts are sent without a copy.
    pub fn survey(&self) -> Survey {
        Survey {
            part_bytes: (!self.is_kept()).then_some(self.part_bytes),
            ..self.remote.survey()
        }
    }

    /// Keeps bytes that are written at `offset`: for headers and the like.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.bytes) {
            let why = format!("it ends at byte {}", self.bytes);
            return Err(self.remote.failed(Kind::Invalid, &why, "begin it longer"));
        }
        self.keep(offset, bytes.len(), |from, there| {
            there.copy_from_slice(&bytes[from..from + there.len()]);
        })
    }

    /// All of an object that is kept: its commit is to store it.
    pub fn take_kept(&self) -> Vec<u8> {
        let kept = self.lock().remove(&0).map(|kept| kept.bytes);
        kept.unwrap_or_else(|| vec![0; self.part_length(0)])
    }

    /// Sends what is still kept, and what was never written, on the caller's thread. Answers all parts in order.
    pub fn finish(&self) -> Result<Vec<Stored>> {
        let missing: Vec<_> = (0..)
            .zip(&self.stored)
            .filter(|(_, stored)| stored.get().is_none())
            .map(|(number, _)| number)
            .collect();
        crate::together(&missing, FINISHERS_MAX, |number| {
            let kept = self.lock().remove(number).map(|kept| kept.bytes);
            let bytes = kept.unwrap_or_else(|| vec![0; self.part_length(*number)]);
            self.send(*number, &bytes).map(drop)
        })?;
        let all = self.stored.iter().map(|stored| stored.get().copied());
        all.collect::<Option<_>>().ok_or_else(|| {
            let why = "a part of it was not stored";
            self.remote.failed(Kind::Transient, why, "write it again")
        })
    }

    /// The object that it will be, for requests.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Notes that the server has a part. One that was sent twice is the same part.
    pub(crate) fn note(&self, stored: Stored) {
        let _ = self.stored[stored.part.number as usize].set(stored);
    }

    /// Decides what is to be done with a write, and keeps its bytes unless they are sent.
    pub(crate) fn admit(&self, io: &Io) -> Result<Admitted> {
        // What is written in whole blocks reaches past the end.
        let end = io.offset.saturating_add(io.bytes as u64).min(self.bytes);
        if end <= io.offset {
            return Ok(Admitted::Kept);
        }
        let number = u32::try_from(io.offset / self.part_bytes).expect("it is inside the object");
        let start = u64::from(number) * self.part_bytes;
        let length = end - io.offset;
        if !self.is_kept() && start == io.offset && length == self.part_length(number) as u64 {
            self.check_unsent(number)?;
            return Ok(Admitted::Whole(number));
        }
        let length = usize::try_from(length).expect("it fits into an I/O");
        self.keep(io.offset, length, |from, there| io.spill_from(from, there))?;
        Ok(match self.take_whole(number) {
            Some(bytes) => Admitted::Completes(number, bytes),
            None => Admitted::Kept,
        })
    }

    /// Keeps `length` bytes at `offset`. `copy` is told which of them to copy, by the first, and where to.
    fn keep(&self, offset: u64, length: usize, copy: impl Fn(usize, &mut [u8])) -> Result<()> {
        let mut done = 0;
        let mut all = self.lock();
        while done < length {
            let at = offset + done as u64;
            let number = u32::try_from(at / self.part_bytes).expect("it is inside the object");
            self.check_unsent(number)?;
            let inside = usize::try_from(at % self.part_bytes).expect("a part fits into memory");
            let part_length = self.part_length(number);
            let end = part_length.min(inside + length - done);
            let kept = all.entry(number).or_insert_with(|| Kept {
                bytes: vec![0; part_length],
                written: Vec::new(),
            });
            copy(done, &mut kept.bytes[inside..end]);
            kept.note(inside..end);
            done += end - inside;
        }
        Ok(())
    }

    /// Takes a part of an object in parts, if all of it was written.
    fn take_whole(&self, number: u32) -> Option<Vec<u8>> {
        let mut all = self.lock();
        let is_whole = !self.is_kept() && all.get(&number).is_some_and(Kept::is_whole);
        is_whole
            .then(|| all.remove(&number))?
            .map(|kept| kept.bytes)
    }

    /// A part that the server has cannot be written to.
    fn check_unsent(&self, number: u32) -> Result<()> {
        let is_sent = self
            .stored
            .get(number as usize)
            .is_some_and(|stored| stored.get().is_some());
        if !is_sent {
            return Ok(());
        }
        let why = format!("its part {} was stored already", number + 1);
        let hint = "write each byte of an object once";
        Err(self.remote.failed(Kind::Invalid, &why, hint))
    }

    /// How long a part is.
    pub(crate) fn part_length(&self, number: u32) -> usize {
        let start = u64::from(number) * self.part_bytes;
        let bytes = self.part_bytes.min(self.bytes - start);
        usize::try_from(bytes).expect("a part fits into memory")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads that send what is left at a commit.
const FINISHERS_MAX: usize = 8;

impl Kept {
    /// Notes that bytes were written.
    fn note(&mut self, new: Range<usize>) {
        let touches = |old: &Range<usize>| old.start <= new.end && new.start <= old.end;
        let joined = self.written.iter().filter(|old| touches(old));
        let joined = joined.fold(new.clone(), |all, old| {
            all.start.min(old.start)..all.end.max(old.end)
        });
        self.written.retain(|old| !touches(old));
        let at = self.written.partition_point(|old| old.start < joined.start);
        self.written.insert(at, joined);
    }

    fn is_whole(&self) -> bool {
        matches!(&self.written[..], [all] if all.len() == self.bytes.len())
    }
}

impl Handle for Upload {
    fn object(&self) -> Object {
        Object::new(self.name().to_owned(), self.bytes)
    }

    fn read_exact_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        let why = "it is in the making, and cannot be read before its commit";
        Err(self
            .remote
            .failed(Kind::Unsupported, why, "commit it first"))
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = self.stored.iter().filter(|stored| stored.get().is_some());
        f.debug_struct("Upload")
            .field("name", &self.name())
            .field("bytes", &self.bytes)
            .field("part_bytes", &self.part_bytes)
            .field("stored", &there.count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_whole_when_all_its_bytes_were_written_in_any_order() {
        let mut kept = Kept {
            bytes: vec![0; 10],
            written: Vec::new(),
        };
        for (range, is_whole) in [
            (4..6, false),
            (0..2, false),
            (8..10, false),
            (1..4, false),
            (6..8, true),
        ] {
            kept.note(range);
            assert_eq!(kept.is_whole(), is_whole, "{:?}", kept.written);
        }
        kept.note(3..7);
        assert!(kept.is_whole());
    }
}
