//! Runs work on many items on several threads.

use std::{num::NonZero, sync::OnceLock};

use straightway_core::Lock;

/// Runs `work` on every item, on up to `threads` threads including the caller's, and returns the results in order.
pub fn each<I, T>(items: I, threads: usize, work: impl Fn(usize, I::Item) -> T + Sync) -> Vec<T>
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
    T: Send,
{
    let threads = threads.min(items.len());
    let items = Lock::new(items.enumerate());
    let run = || {
        let next = || items.lock().next();
        let done = |(number, item)| (number, work(number, item));
        std::iter::from_fn(next).map(done).collect::<Vec<_>>()
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut all = run();
        for other in others {
            all.extend(other.join().expect("failures are errors, not panics"));
        }
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, answer)| answer).collect()
}

/// The number of cores, at most `most`. The system is asked once: it reads the limits of control groups from files,
/// which for each of 2,000 small files took longer than parsing its header.
pub fn cores(most: usize) -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let count = || std::thread::available_parallelism().map_or(1, NonZero::get);
    (*CORES.get_or_init(count)).min(most)
}
