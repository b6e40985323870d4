//! A multipart upload: an object is stored in parts, and the commit turns them into the object atomically.
//!
//! A write of exactly one part is sent without a copy. Other writes are buffered until their part is complete: headers,
//! the unaligned ends of jobs, and chunks smaller than a part. Bytes that are never written are zero.
//!
//! An object no longer than one part is buffered whole and stored by one request at its commit, so that it is not
//! visible before.

mod blocking;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, MutexGuard, OnceLock},
};

use straightway_core::{Direction, ErrorKind, Extent, Lock, Object, Result, Survey};
use straightway_io::{Handle, parallel, request::Io, store::own_handle};

use crate::{client::Client, origin::Origin, part::StoredPart, remote::Remote, service::Service};

/// An object being written.
pub struct Upload {
    remote: Arc<Remote>,
    bytes: u64,
    part_bytes: u64,
    /// The parts on the server. Empty if the whole object is buffered here.
    stored: Vec<OnceLock<StoredPart>>,
    buffers: Lock<BTreeMap<u32, PartBuffer>>,
}

/// The buffer of a part that is not complete.
#[derive(Debug)]
struct PartBuffer {
    bytes: Vec<u8>,
    /// The written ranges: sorted, neither overlapping nor adjacent.
    written: Vec<Range<usize>>,
}

/// The decision what to do with the bytes of a write.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// They were buffered; nothing is sent yet.
    Buffered,
    /// They are exactly this part, and are sent from the I/O.
    Whole(u32),
    /// They completed this part, which is sent from its buffer.
    Completes(u32, Vec<u8>),
}

impl Upload {
    /// An upload of `bytes` in parts of `part_bytes`. The last part may be shorter.
    ///
    /// # Panics
    ///
    /// If `part_bytes` is 0, or if there are 2^32 parts or more.
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
            buffers: Lock::default(),
        }
    }

    /// Downcasts a handle to an upload.
    pub fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        own_handle(handle)
    }

    /// Its name in errors.
    pub fn name(&self) -> &str {
        self.remote.name()
    }

    /// Its final length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the whole object is buffered until its commit.
    pub fn is_buffered(&self) -> bool {
        self.stored.is_empty()
    }

    /// Writes bytes at `offset`, such as a header. Sends the parts that they complete, and returns once these are
    /// stored.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.bytes) else {
            let why = format!("it ends at byte {}", self.bytes);
            return Err(self
                .remote
                .failed(ErrorKind::Invalid, &why, "begin the upload with a larger size"));
        };
        self.buffer(offset, bytes.len(), |from, there| {
            there.copy_from_slice(&bytes[from..from + there.len()]);
        })?;
        for number in offset / self.part_bytes..end.div_ceil(self.part_bytes) {
            let number = u32::try_from(number).expect("it is inside the object");
            if let Some(whole) = self.take_whole(number) {
                self.send(number, &whole)?;
            }
        }
        Ok(())
    }

    /// Takes the bytes of a buffered object, which its commit stores.
    pub fn take_buffered(&self) -> Vec<u8> {
        let buffer = self.lock().remove(&0).map(|buffer| buffer.bytes);
        buffer.unwrap_or_else(|| vec![0; self.part_length(0)])
    }

    /// Sends the parts that are still buffered or were never written, on up to `FINISHERS_MAX` threads. Returns all
    /// parts in order. The object ends at `end`, which may be before the length that the upload was begun with.
    ///
    /// # Panics
    ///
    /// If `end` is beyond that length.
    pub fn finish(&self, end: u64) -> Result<Vec<StoredPart>> {
        assert!(end <= self.bytes, "it ends inside its length");
        let parts = usize::try_from(end.div_ceil(self.part_bytes)).expect("parts are counted by 32 bits");
        let own = &self.stored[..parts];
        let missing: Vec<_> = (0..)
            .zip(own)
            .filter(|(_, stored)| stored.get().is_none())
            .map(|(number, _)| number)
            .collect();
        parallel::try_each(missing.into_iter(), FINISHERS_MAX, |number| {
            let buffer = self.lock().remove(&number).map(|buffer| buffer.bytes);
            let mut bytes = buffer.unwrap_or_else(|| vec![0; self.part_length(number)]);
            let rest = end - u64::from(number) * self.part_bytes;
            bytes.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
            self.send(number, &bytes).map(drop)
        })?;
        let all: Option<Vec<_>> = own.iter().map(|stored| stored.get().copied()).collect();
        // Also if bytes beyond the end were sent.
        let is_whole = |all: &Vec<StoredPart>| all.iter().map(|stored| stored.part.bytes).sum::<u64>() == end;
        all.filter(is_whole).ok_or_else(|| {
            let why = "a part of it was not stored, or not in its length";
            self.remote.failed(ErrorKind::Transient, why, "write it again")
        })
    }

    /// The final object, which requests refer to.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Records a stored part. A part that was sent twice is recorded once.
    pub(crate) fn note(&self, stored: StoredPart) {
        let _ = self.stored[stored.part.number as usize].set(stored);
    }

    /// Decides what to do with a write, and buffers its bytes unless they are exactly one part.
    pub(crate) fn admit(&self, io: &Io) -> Result<Admitted> {
        // A write in whole blocks may extend past the end.
        let end = io.offset.saturating_add(io.bytes as u64).min(self.bytes);
        if end <= io.offset {
            return Ok(Admitted::Buffered);
        }
        let number = u32::try_from(io.offset / self.part_bytes).expect("it is inside the object");
        let start = u64::from(number) * self.part_bytes;
        let length = end - io.offset;
        if !self.is_buffered() && start == io.offset && length == self.part_length(number) as u64 {
            self.check_unsent(number)?;
            return Ok(Admitted::Whole(number));
        }
        let length = usize::try_from(length).expect("it fits into an I/O");
        self.buffer(io.offset, length, |from, there| io.spill_from(from, there))?;
        Ok(match self.take_whole(number) {
            Some(bytes) => Admitted::Completes(number, bytes),
            None => Admitted::Buffered,
        })
    }

    /// Buffers `length` bytes at `offset`. `copy` gets the position of the first byte to copy, and the destination.
    fn buffer(&self, offset: u64, length: usize, copy: impl Fn(usize, &mut [u8])) -> Result<()> {
        let mut done = 0;
        let mut all = self.lock();
        while done < length {
            let at = offset + done as u64;
            let number = u32::try_from(at / self.part_bytes).expect("it is inside the object");
            self.check_unsent(number)?;
            let inside = usize::try_from(at % self.part_bytes).expect("a part fits into memory");
            let part_length = self.part_length(number);
            let end = part_length.min(inside + length - done);
            let buffer = all.entry(number).or_insert_with(|| PartBuffer {
                bytes: vec![0; part_length],
                written: Vec::new(),
            });
            copy(done, &mut buffer.bytes[inside..end]);
            buffer.note(inside..end);
            done += end - inside;
        }
        Ok(())
    }

    /// Takes the buffer of a part, if the part is complete and the object is not buffered whole.
    fn take_whole(&self, number: u32) -> Option<Vec<u8>> {
        let mut all = self.lock();
        let is_whole = !self.is_buffered() && all.get(&number).is_some_and(PartBuffer::is_whole);
        is_whole.then(|| all.remove(&number))?.map(|buffer| buffer.bytes)
    }

    /// Fails if the server has stored the part already.
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
        Err(self.remote.failed(ErrorKind::Invalid, &why, hint))
    }

    /// The length of a part.
    pub(crate) fn part_length(&self, number: u32) -> usize {
        let start = u64::from(number) * self.part_bytes;
        let bytes = self.part_bytes.min(self.bytes - start);
        usize::try_from(bytes).expect("a part fits into memory")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, PartBuffer>> {
        self.buffers.lock()
    }
}

/// The most threads that send remaining parts at a commit.
const FINISHERS_MAX: usize = 8;

impl PartBuffer {
    /// Records that a range was written.
    fn note(&mut self, new: Range<usize>) {
        let touches = |old: &Range<usize>| old.start <= new.end && new.start <= old.end;
        let joined = self.written.iter().filter(|old| touches(old));
        let joined = joined.fold(new.clone(), |all, old| all.start.min(old.start)..all.end.max(old.end));
        self.written.retain(|old| !touches(old));
        let at = self.written.partition_point(|old| old.start < joined.start);
        self.written.insert(at, joined);
    }

    fn is_whole(&self) -> bool {
        matches!(&self.written[..], [all] if all.len() == self.bytes.len())
    }
}

impl Handle for Upload {
    /// Chunks that are exactly one part are sent without a copy.
    fn survey(&self, hull: Option<Extent>, direction: Direction) -> Result<Survey> {
        Ok(Survey {
            part_bytes: (!self.is_buffered()).then_some(self.part_bytes),
            ..self.remote.survey(hull, direction)?
        })
    }

    fn object(&self) -> Object {
        Object::new(self.name().to_owned(), self.bytes)
    }

    fn read_exact_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        let why = "it is still being written, and cannot be read before its commit";
        Err(self.remote.failed(ErrorKind::Unsupported, why, "commit it first"))
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
    fn a_part_is_complete_when_all_its_bytes_were_written_in_any_order() {
        let mut buffer = PartBuffer {
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
            buffer.note(range);
            assert_eq!(buffer.is_whole(), is_whole, "{:?}", buffer.written);
        }
        buffer.note(3..7);
        assert!(buffer.is_whole());
    }
}
