//! Streams: a copy from standard input, whose length is not known, and a copy to standard output.
//!
//! The object of a stream appears under its name when the stream has ended and all of it is durable. If the stream or the
//! copy fails, nothing appears. The end of a pipe looks the same whether its writer is done or was killed: that cannot be
//! told apart here.
//!
//! Memory is bounded: one window is filled or emptied while another is in flight.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Bytes, Direction, Error, ErrorKind, Extent, Receipt, Result, Route};
use straightway_io::{
    Ask, Books, Objects, Region, Ticket,
    store::{CommitMode, Draft, Like, Location},
};

use crate::Copier;

/// The most bytes of a stream to an object store, if the user expects no other size: 10,000 parts of 32 MiB.
pub const STREAM_BYTES_MAX: u64 = 10_000 * (32 << 20);

/// Bytes that are read or written at a time.
const WINDOW_BYTES: u64 = 64 << 20;

/// Bytes that are written to a file at a time.
const FILE_WINDOW_BYTES: usize = 1 << 20;

/// The name of the input in errors.
const INPUT: &str = "standard input";

/// The name of the output in errors.
const OUTPUT: &str = "standard output";

impl Copier<'_> {
    /// Copies a stream to a new object, up to its end. An object store has to know the most bytes at the start; a file
    /// may be of any length.
    pub fn receive(&self, input: &mut dyn Read, target: &Location, bytes_max: u64) -> Result<Receipt> {
        if target.path().is_some() {
            return self.receive_file(input, target);
        }
        let short_bytes = target.store.facts().kept_bytes_max;
        if short_bytes == 0 {
            let message = "a stream can be copied to a file or to a bucket";
            return Err(target.error(ErrorKind::Unsupported, "write", message));
        }
        let mut head = vec![0; window_index(short_bytes)];
        let filled = self.fill(input, &mut head)?;
        if filled == head.len() {
            return self.receive_parts(input, &head, target, bytes_max.max(short_bytes + 1));
        }
        let mut books = Books::default();
        let start = Instant::now();
        let draft = target.create(filled as u64, &Like::Replaced)?;
        draft.write_all_at(0, &head[..filled])?;
        target.store.commit(vec![draft], CommitMode::Each)?;
        self.progress.add(filled as u64);
        books.add_streamed(Route::Socket, filled as u64, start.elapsed(), Duration::ZERO);
        Ok(books.close())
    }

    fn receive_file(&self, input: &mut dyn Read, target: &Location) -> Result<Receipt> {
        let mut books = Books::default();
        let mut draft = target.create(0, &Like::Replaced)?;
        let mut window = vec![0; FILE_WINDOW_BYTES];
        let (mut end, mut writing) = (0, Duration::ZERO);
        loop {
            let filled = self.fill(input, &mut window)?;
            let start = Instant::now();
            draft.write_all_at(end, &window[..filled])?;
            writing += start.elapsed();
            end += filled as u64;
            self.progress.add(filled as u64);
            if filled < window.len() {
                break;
            }
        }
        draft.end_at(end)?;
        let start = Instant::now();
        target.store.commit(vec![draft], CommitMode::Each)?;
        books.add_streamed(Route::Buffered, end, writing, start.elapsed());
        Ok(books.close())
    }

    /// Copies a stream that begins with `head` to an object in parts. Lanes write whole parts; what is left at the end is
    /// sent with the commit.
    fn receive_parts(&self, input: &mut dyn Read, head: &[u8], target: &Location, bytes_max: u64) -> Result<Receipt> {
        let mut books = Books::default();
        let mut draft = target.create(bytes_max, &Like::Replaced)?;
        let survey = draft.handle().survey(None, Direction::Out)?;
        let Some(part_bytes) = survey.part_bytes else {
            let message = "its store takes no parts of an object";
            return Err(target.error(ErrorKind::Unsupported, "write", message));
        };
        let window_bytes = (WINDOW_BYTES / part_bytes).max(1) * part_bytes;
        let mut regions = [Region::host(window_bytes)?, Region::host(window_bytes)?].map(Arc::new);
        let (mut end, mut head) = (0, head);
        let mut in_flight: Option<Ticket> = None;
        for turn in 0.. {
            let region = &mut regions[turn % 2];
            let window = Arc::get_mut(region).expect("its write has ended").as_mut_slice();
            window[..head.len()].copy_from_slice(head);
            let filled = head.len() + self.fill(input, &mut window[head.len()..])?;
            let is_last = filled < window.len();
            head = &[];
            finish(&mut in_flight, &mut books)?;
            if end + filled as u64 > bytes_max {
                return Err(too_long(target, bytes_max));
            }
            let whole = filled as u64 / part_bytes * part_bytes;
            if whole > 0 {
                in_flight = Some(self.write(region, target, &*draft, Extent::new(end, whole))?);
            }
            if is_last {
                finish(&mut in_flight, &mut books)?;
                let rest = filled as u64 - whole;
                let window = Arc::get_mut(region).expect("its write has ended").as_slice();
                let start = Instant::now();
                draft.write_all_at(end + whole, &window[window_index(whole)..filled])?;
                draft.end_at(end + filled as u64)?;
                target.store.commit(vec![draft], CommitMode::Each)?;
                self.progress.add(rest);
                books.add_streamed(Route::Socket, rest, start.elapsed(), Duration::ZERO);
                break;
            }
            end += filled as u64;
        }
        Ok(books.close())
    }

    /// Writes the beginning of a region to an extent of a draft.
    fn write(&self, region: &Arc<Region>, target: &Location, draft: &dyn Draft, extent: Extent) -> Result<Ticket> {
        let objects = Objects::new(Arc::clone(&target.store), vec![draft.handle()]);
        let ask = Ask::new(self.choice, &self.progress);
        self.executor.write(region, objects, vec![extent.into()], ask)
    }

    /// Reads until `window` is full or the stream ends. Returns the number of bytes.
    fn fill(&self, input: &mut dyn Read, window: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < window.len() {
            let read = input.read(&mut window[filled..]);
            if self.progress.is_cancelled() {
                let message = "it was interrupted";
                return Err(Error::new(ErrorKind::Cancelled, "finish with", INPUT, message));
            }
            match read {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::os("read", INPUT, error)),
            }
        }
        Ok(filled)
    }

    /// Copies an object to a stream. An object that changes meanwhile is an error, after some of its bytes.
    pub fn send(&self, source: &Location, output: &mut dyn Write) -> Result<Receipt> {
        let handle = source.open()?;
        let bytes = handle.object().bytes;
        let objects = Objects::new(Arc::clone(&source.store), vec![handle]);
        let window_bytes = WINDOW_BYTES.min(bytes.max(1));
        let mut regions = [Region::host(window_bytes)?, Region::host(window_bytes)?].map(Arc::new);
        let mut books = Books::default();
        let window = |at: u64| Extent::new(at, window_bytes.min(bytes - at));
        let read = |extent: Extent, region: &Arc<Region>| {
            let ask = Ask::new(self.choice, &self.progress);
            self.executor.read(objects.clone(), vec![extent.into()], region, ask)
        };
        let mut in_flight = if bytes > 0 {
            Some(read(window(0), &regions[0])?)
        } else {
            None
        };
        let mut at = 0;
        for turn in 0.. {
            if at == bytes {
                break;
            }
            finish(&mut in_flight, &mut books)?;
            let extent = window(at);
            at = extent.end();
            if at < bytes {
                in_flight = Some(read(window(at), &regions[(turn + 1) % 2])?);
            }
            let ready = Arc::get_mut(&mut regions[turn % 2])
                .expect("its read has ended")
                .as_slice();
            let written = output.write_all(&ready[..window_index(extent.bytes)]);
            written.map_err(|error| Error::os("write to", OUTPUT, error))?;
        }
        output.flush().map_err(|error| Error::os("write to", OUTPUT, error))?;
        Ok(books.close())
    }
}

/// Waits for a transfer, if there is one.
fn finish(in_flight: &mut Option<Ticket>, books: &mut Books) -> Result<()> {
    in_flight.take().map_or(Ok(()), |ticket| ticket.enter(books))
}

fn window_index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a window fits into memory")
}

fn too_long(target: &Location, bytes_max: u64) -> Error {
    let message = format!(
        "the stream is longer than {}, and its parts were chosen for that",
        Bytes(bytes_max)
    );
    target
        .error(ErrorKind::Invalid, "write", message)
        .with_hint("give its size, or more, as ⟦expected_size⟧")
}
