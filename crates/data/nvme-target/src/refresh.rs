//! Looks at served files when a host asks for their versions.
//!
//! The answer must come from a look that began after the request: an earlier one may have missed a change. Requests
//! that wait at the same time share their looks.
//!
//! Each file system has a thread for its looks. `fstat` does not return while a network file system hangs. Only the
//! versions of its own files are then missing: requests for others go on.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    convert::Infallible,
    io,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use straightway_core::Lock;

use crate::{table::Served, version::STAMP_TICK};

/// The longest wait for the looks and scans of one request. A host waits for an admin command no longer than its
/// keep-alive timeout, which is seconds.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);

/// The looks at the files of one file system.
type Job = Box<dyn FnOnce() + Send>;

/// The threads that look at files, by file system.
#[derive(Debug, Default)]
pub(crate) struct Refresh(Lock<BTreeMap<u64, Looker>>);

/// The thread of a file system. It ends with the target, or when its last call returns.
#[derive(Debug)]
struct Looker {
    jobs: mpsc::Sender<Job>,
    /// The time when its current job began.
    busy_since: Arc<Lock<Option<Instant>>>,
}

impl Refresh {
    /// Looks at files that were not looked at since a time. Returns when it is done, or at the deadline.
    pub(crate) fn look(&self, versions: &[(usize, Arc<Served>)], since: Instant, deadline: Instant) {
        let mut files: BTreeMap<u64, Vec<Arc<Served>>> = BTreeMap::new();
        for (_, served) in versions {
            if let Some(system) = served.version.file_system() {
                let own = files.entry(system).or_default();
                own.push(Arc::clone(served));
            }
        }
        let jobs = files.into_iter().map(|(system, files)| {
            let job: Job = Box::new(move || look_at(&files, since));
            (system, job)
        });
        self.run(jobs, Instant::now(), deadline);
    }

    /// Runs jobs on the threads of their file systems, at the time `now`. Returns when all have ended, or at the
    /// deadline.
    fn run(&self, jobs: impl IntoIterator<Item = (u64, Job)>, now: Instant, deadline: Instant) {
        let (ended, all_ended) = mpsc::channel::<Infallible>();
        for (system, job) in jobs {
            let ended = ended.clone();
            let job = Box::new(move || {
                job();
                drop(ended);
            });
            if let Err(error) = self.send(system, job, now) {
                tracing::warn!("cannot start a thread to look at served files: {error}");
            }
        }
        drop(ended);
        // Nothing is sent. The channel is closed when all jobs have ended.
        let _ = all_ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }

    /// Sends a job to the thread of a file system. A file system that hangs gets no more jobs, and is not waited for.
    fn send(&self, system: u64, job: Job, now: Instant) -> io::Result<()> {
        let mut lookers = self.0.lock();
        let looker = match lookers.entry(system) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Looker::start()?),
        };
        let since = *looker.busy_since.lock();
        if since.is_none_or(|since| now.saturating_duration_since(since) < WAIT_MAX) {
            let _ = looker.jobs.send(job);
        }
        Ok(())
    }
}

impl Looker {
    fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let busy_since = Arc::new(Lock::new(None));
        let since = Arc::clone(&busy_since);
        let thread = thread::Builder::new().name("nvme-files".to_owned());
        thread.spawn(move || {
            for job in queue {
                *since.lock() = Some(Instant::now());
                job();
                *since.lock() = None;
            }
        })?;
        Ok(Self { jobs, busy_since })
    }
}

/// Looks at files, and once more after a tick at those whose stamp was new.
fn look_at(files: &[Arc<Served>], since: Instant) {
    let new: Vec<_> = files.iter().filter(|file| file.look(since)).collect();
    if new.is_empty() {
        return;
    }
    thread::sleep(STAMP_TICK);
    let since = Instant::now();
    for file in new {
        file.look(since);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The most time for something that happens at once on an idle machine.
    const SOON: Duration = Duration::from_secs(20);

    /// A job that counts.
    fn look(looks: &Arc<AtomicUsize>) -> Job {
        let looks = Arc::clone(looks);
        Box::new(move || {
            looks.fetch_add(1, Ordering::SeqCst);
        })
    }

    #[test]
    fn a_file_system_that_hangs_delays_no_other_and_is_waited_for_once() {
        let refresh = Refresh::default();
        let [hanging, other] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let count = |looks: &AtomicUsize| looks.load(Ordering::SeqCst);
        let (announce, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let hang: Job = Box::new(move || {
            announce.send(()).expect("the test waits for it");
            let _ = released.recv();
        });
        let start = Instant::now();
        let wait = Duration::from_millis(100);
        refresh.run([(1, hang), (2, look(&other))], start, start + wait);
        assert!(start.elapsed() >= wait, "it returned although a job has not ended");
        begun.recv_timeout(SOON).expect("the job that hangs begins");
        // This file system has hung for as long as one is waited for. The wait is long, to be noticed.
        let later = Instant::now() + WAIT_MAX;
        let start = Instant::now();
        refresh.run([(1, look(&hanging)), (2, look(&other))], later, start + 3 * SOON);
        assert!(start.elapsed() < 2 * SOON, "it waited for the file system that hangs");
        assert_eq!(count(&other), 2, "the other file system is looked at");
        // Once it answers, it is looked at again. The job that came while it hung is not run.
        drop(release);
        let start = Instant::now();
        let again = Arc::new(AtomicUsize::new(0));
        while count(&again) == 0 {
            assert!(start.elapsed() < SOON, "it is not looked at again");
            refresh.run([(1, look(&again))], later, Instant::now() + SOON);
        }
        assert_eq!(count(&hanging), 0, "a job waited for a file system that hangs");
    }
}
