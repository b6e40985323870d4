//! What comes of a fetch: several threads read chunks into their rings, check them there, and copy what is wanted of
//! each to where it goes.

use std::sync::{PoisonError, atomic::Ordering};

use straightway_core::{Error, Kind, Receipt, Result};
use straightway_io::{Books, Tally};

use super::{
    fetch::{Bad, Fetch, Shared},
    fetcher::Fetcher,
};

/// What a thread counted, and the names of its engines.
type Counted = (Tally, Vec<&'static str>);

/// What was fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Which way the bytes went that were wanted, and are where they go.
    pub receipt: Receipt,
    /// Chunks that were read and checked.
    pub chunks: u64,
    /// Chunks that were damaged or lost and made anew from parity, in words.
    pub rebuilt: Vec<String>,
}

impl Fetch<'_> {
    /// Fetches everything, and enters it in the books. Answers how many chunks were checked, and which could not be had.
    pub(crate) fn run(&self, books: &mut Books) -> Result<(u64, Vec<Bad>)> {
        let threads = self.threads().min(self.scatter.tasks.len());
        let shared = Shared::default();
        let outcome: Result<Vec<Counted>> = std::thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| self.serve(&shared));
            let threads: Vec<_> = (0..threads).map(spawn).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Counted>>| {
                thread
                    .join()
                    .expect("what is wrong with a file is an error, not a panic")
            };
            // All of them are waited for, whatever the first says.
            let counted: Vec<_> = threads.into_iter().map(join).collect();
            counted.into_iter().collect()
        });
        let mut all = Tally::default();
        for (tally, engines) in &outcome? {
            all.add(tally);
            for engine in engines {
                books.name(engine);
            }
        }
        if self.progress.is_cancelled() {
            let target = format!("step {}", self.checkpoint.manifest().step);
            let message = "it was interrupted";
            return Err(Error::new(Kind::Cancelled, "read", target, message));
        }
        books.add_read(&all);
        let Shared { bad, chunks, .. } = shared;
        let bad = bad.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((chunks.into_inner(), bad))
    }

    fn serve(&self, shared: &Shared) -> Result<Counted> {
        let mut fetcher = Fetcher::new(self, shared)?;
        let outcome = fetcher.run();
        if outcome.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let engines = fetcher.engines();
        let (ring, tally) = fetcher.end();
        self.rings.give_back(ring);
        outcome.and(tally).map(|tally| (tally, engines))
    }
}
