//! Runs work on many items on several threads.

use std::{
    convert::Infallible,
    num::NonZero,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use straightway_core::Lock;

/// Runs `work` on every item, on up to `threads` threads including the caller's, and returns the results in order.
pub fn each<I, T>(items: I, threads: usize, work: impl Fn(usize, I::Item) -> T + Sync) -> Vec<T>
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
    T: Send,
{
    let work = |(number, item)| Ok::<_, Infallible>(work(number, item));
    let Ok(all) = try_each(items.enumerate(), threads, work);
    all
}

/// The same for work that may fail. After an error no further item is started. Returns the results in order, or the
/// error of the first item that failed.
pub fn try_each<I, T, E>(items: I, threads: usize, work: impl Fn(I::Item) -> Result<T, E> + Sync) -> Result<Vec<T>, E>
where
    I: ExactSizeIterator + Send,
    I::Item: Send,
    T: Send,
    E: Send,
{
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.map(work).collect();
    }
    let items = Lock::new(items.enumerate());
    let has_failed = AtomicBool::new(false);
    let run = || {
        let next = || {
            let mut items = items.lock();
            items.next().filter(|_| !has_failed.load(Ordering::Relaxed))
        };
        let done = |(number, item)| {
            let result = work(item);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            (number, result)
        };
        std::iter::from_fn(next).map(done).collect::<Vec<_>>()
    };
    let mut all = thread::scope(|scope| {
        // If a thread cannot be started, the others do its work.
        let start = |_| thread::Builder::new().spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut all = run();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The number of cores, at most `most`. The system is asked once: it reads the limits of control groups from files,
/// which for each of 2,000 small files took longer than parsing its header.
pub fn cores(most: usize) -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let count = || thread::available_parallelism().map_or(1, NonZero::get);
    (*CORES.get_or_init(count)).min(most)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for threads in [0, 1, 3, 200] {
            let all = each(100..200, threads, |number, item| (number, item));
            assert_eq!(all, (0..100).zip(100..200).collect::<Vec<_>>());
        }
        assert_eq!(each(0..0, 8, |_, item: i32| item), []);
    }

    #[test]
    fn the_first_error_is_returned_and_ends_the_work() {
        for threads in [1, 4] {
            let started = AtomicUsize::new(0);
            let result = try_each(0..1000, threads, |item| {
                started.fetch_add(1, Ordering::Relaxed);
                if item >= 3 { Err(item) } else { Ok(item) }
            });
            assert_eq!(result, Err(3));
            assert!(started.into_inner() < 3 + 2 * 4);
        }
    }
}
