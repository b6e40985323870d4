//! The version of a namespace's content, as each host sees it.
//!
//! A host reads the version before and after a transfer. If both are equal, nothing else changed the content meanwhile:
//!
//! - A change by another program gives the file another stamp. Memory and block devices have no stamp.
//! - A change by another host is counted. The host's own changes are not, so that it can check what it wrote.
//!
//! Changes by hosts give the file another stamp too. After such changes, a new stamp does not show whether another
//! program changed the file as well, and the version stays the same.
//!
//! The stamp has the length of the file, so a version and the length that is sent with it come from one look. A file
//! that has another length than its entry in the index, or whose name belongs to another file, must be scanned again.
//!
//! A version is unsettled while the content may be changing, if the file could not be looked at in time, or if it must
//! be scanned again. An unsettled version is different each time that it is read.
//!
//! A sync that fails has lost data: the kernel drops the pages that it could not write, and reports that once, to any
//! caller. Each host that had writes in these pages owes the failure: its syncs fail until it acknowledges one. The
//! version changes too, because readers may get older data than before.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::MutexGuard,
    time::{Duration, Instant},
};

use straightway_core::{Lock, Signal};

use crate::{
    backing::{Stamp, stamp_clock_ns},
    host::HostIdentity,
};

/// The longest tick of the clock that stamps files: 10 ms in Linux. Two changes within a tick have the same stamp.
pub(crate) const STAMP_TICK: Duration = Duration::from_millis(11);

/// The maximum number of hosts whose own changes are counted. Beyond it, the host that has not written for the longest
/// time is forgotten: it sees its own changes as changes of others. Hosts without writes to sync are forgotten first.
const WRITERS_MAX: usize = 4096;

/// 2^64 divided by the golden ratio. A product with an odd number is different for each count.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Distinguishes unsettled versions from counts of changes.
const UNSETTLED: u64 = 1 << 63;

/// The version of a namespace's content.
#[derive(Debug)]
pub(crate) struct Version {
    state: Lock<State>,
    /// Signalled when a sync has ended.
    sync_ended: Signal,
}

#[derive(Debug)]
struct State {
    /// The version, without changes by hosts.
    base: u64,
    /// Distinguishes two openings of one file under a name that was another file in between.
    salt: u64,
    /// The stamp at the last look; `None` if there is nothing to look at.
    stamp: Option<Stamp>,
    /// The time when this stamp was first seen.
    stamp_since: Instant,
    /// Whether this stamp is certainly not that of a change by a host.
    is_foreign: bool,
    /// The time when the last look began.
    looked: Option<Instant>,
    /// [`State::marks`] at the last look.
    marks: u64,
    /// Whether a change right after the last look could leave the stamp as it is.
    is_unsettled: bool,
    /// What the last look found.
    found: Found,
    /// The number of unsettled versions that were given out.
    unsettled: u64,
    all: Changes,
    own: BTreeMap<HostIdentity, Writer>,
    /// The hosts that were forgotten while they had writes to sync, or a failure to be told of.
    forgotten: Debt,
    syncs: Syncs,
}

/// What a look at a file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The same file.
    Same,
    /// Another file under the name, or none.
    Replaced,
    /// Nothing: it failed.
    Nothing,
}

/// The syncs of a namespace.
#[derive(Debug, Default)]
struct Syncs {
    begun: u64,
    /// The numbers of those that have not ended.
    running: BTreeSet<u64>,
    failed: u64,
    /// [`State::marks`] up to which all writes are durable, or were counted as lost.
    synced: u64,
}

/// The writes of a host that a failed sync loses, or has lost.
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    /// [`State::marks`] at its last change.
    mark: u64,
    /// The number of the last failure that the host has not acknowledged; 0 if there is none.
    failure: u64,
}

impl Debt {
    /// Whether it has writes that are not durable, or a failure to be told of.
    fn is_open(self, synced: u64) -> bool {
        self.mark > synced || self.failure > 0
    }
}

/// A sync that failed, or that found an earlier failure which the host has not acknowledged.
#[derive(Debug)]
pub(crate) struct LostWrites {
    /// The number of the failure, for [`Version::acknowledge`].
    pub(crate) failure: u64,
    pub(crate) error: io::Error,
}

/// Numbers of changes.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    begun: u64,
    ended: u64,
}

impl Changes {
    fn is_over(self) -> bool {
        self.begun == self.ended
    }
}

/// A host that has changed the content.
#[derive(Debug, Default)]
struct Writer {
    changes: Changes,
    debt: Debt,
}

impl State {
    /// Increases at the begin and at the end of each change by a host.
    fn marks(&self) -> u64 {
        self.all.begun + self.all.ended
    }

    /// Whether the last look began at this time or later. If there is nothing to look at, this is always so.
    fn is_fresh(&self, since: Instant) -> bool {
        self.stamp.is_none() || self.looked.is_some_and(|at| at >= since)
    }

    /// Whether the last look found another file or another length.
    fn is_stale(&self, bytes: u64) -> bool {
        self.found == Found::Replaced || self.stamp.is_some_and(|stamp| stamp.bytes != bytes)
    }

    /// A version that no later one is equal to.
    fn unsettled(&mut self) -> u64 {
        self.unsettled += 1;
        self.base ^ (UNSETTLED | self.unsettled).wrapping_mul(SPREAD)
    }

    /// Forgets the host that has not written for the longest time. A host whose change has not ended stays: the end
    /// would be counted without the begin. A debt is not forgotten: every host that is not known has it from then on.
    fn forget_writer(&mut self) {
        let synced = self.syncs.synced;
        let over = self.own.iter().filter(|(_, own)| own.changes.is_over());
        let oldest = over.min_by_key(|(_, own)| (own.debt.is_open(synced), own.debt.mark));
        if let Some(host) = oldest.map(|(host, _)| host.clone())
            && let Some(Writer { debt, .. }) = self.own.remove(&host)
        {
            self.forgotten.mark = self.forgotten.mark.max(debt.mark);
            self.forgotten.failure = self.forgotten.failure.max(debt.failure);
        }
    }

    /// The record of a host. It is made if there is none.
    fn writer(&mut self, host: &HostIdentity) -> &mut Writer {
        if !self.own.contains_key(host) {
            if self.own.len() >= WRITERS_MAX {
                self.forget_writer();
            }
            // It may have been forgotten with this failure.
            let failure = self.forgotten.failure;
            let writer = Writer {
                debt: Debt { mark: 0, failure },
                ..Writer::default()
            };
            self.own.insert(host.clone(), writer);
        }
        self.own.get_mut(host).expect("it was inserted")
    }

    /// Counts a sync that failed. All writes that were not durable before may be lost.
    fn note_failure(&mut self) {
        self.syncs.failed += 1;
        let (failure, synced) = (self.syncs.failed, self.syncs.synced);
        for own in self.own.values_mut() {
            if own.debt.mark > synced || !own.changes.is_over() {
                own.debt.failure = failure;
            }
        }
        if self.forgotten.mark > synced {
            self.forgotten.failure = failure;
        }
        // A change by no host: readers may get older data from the drive.
        self.all.begun += 1;
        self.all.ended += 1;
    }

    /// The last failure that a host has not acknowledged; 0 if there is none.
    fn failure_of(&self, host: &HostIdentity) -> u64 {
        let own = self.own.get(host);
        own.map_or(self.forgotten.failure, |own| own.debt.failure)
    }
}

impl Version {
    /// A version that begins with `base`. `stamp` is the stamp of the file, if its changes are to be noticed.
    ///
    /// A name can be a file, then another one, then the first file again, which a link does without a change of their
    /// times. All three must have different versions, so a file that replaced another one gets a `salt`. It is 0 for
    /// the others: their version survives a restart of the target.
    pub(crate) fn new(base: u64, stamp: Option<Stamp>, salt: u64) -> Self {
        // Counts of changes are mixed in too, in the other order of bytes.
        let salt = salt.wrapping_mul(SPREAD).swap_bytes();
        let state = State {
            base: base ^ salt,
            salt,
            stamp,
            stamp_since: Instant::now(),
            is_foreign: true,
            looked: None,
            marks: 0,
            is_unsettled: false,
            found: Found::Same,
            unsettled: 0,
            all: Changes::default(),
            own: BTreeMap::new(),
            forgotten: Debt::default(),
            syncs: Syncs::default(),
        };
        Self {
            state: Lock::new(state),
            sync_ended: Signal::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The file system of the file; `None` if there is nothing to look at.
    pub(crate) fn file_system(&self) -> Option<u64> {
        self.lock().stamp.map(|stamp| stamp.device)
    }

    /// Whether a look began at this time or later. If there is nothing to look at, this is always so.
    pub(crate) fn is_fresh(&self, since: Instant) -> bool {
        self.lock().is_fresh(since)
    }

    /// Whether the file must be scanned again: the last look found another file, none, or another length than `bytes`.
    pub(crate) fn is_stale(&self, bytes: u64) -> bool {
        self.lock().is_stale(bytes)
    }

    /// The version that a host sees together with the length `bytes`. It is unsettled if the file was not looked at
    /// since a time, or if the look found another length.
    pub(crate) fn seen_by(&self, host: &HostIdentity, since: Instant, bytes: u64) -> u64 {
        let mut state = self.lock();
        let own = state.own.get(host).map(|own| own.changes);
        let own = own.unwrap_or_default();
        let others = Changes {
            begun: state.all.begun - own.begun,
            ended: state.all.ended - own.ended,
        };
        let is_same = state.found == Found::Same;
        let is_known = state.is_fresh(since) && is_same && !state.is_unsettled && !state.is_stale(bytes);
        if !is_known || !others.is_over() {
            return state.unsettled();
        }
        state.base ^ others.ended.wrapping_mul(SPREAD)
    }

    /// Changes the content for a host.
    pub(crate) fn change<T>(&self, host: &HostIdentity, change: impl FnOnce() -> T) -> T {
        // Counted twice: versions that were given out before, during and after the change all differ.
        self.count(host, |changes| changes.begun += 1);
        let done = change();
        self.count(host, |changes| changes.ended += 1);
        done
    }

    fn count(&self, host: &HostIdentity, count: impl Fn(&mut Changes)) {
        let mut guard = self.lock();
        let state = &mut *guard;
        count(&mut state.all);
        let mark = state.marks();
        let own = state.writer(host);
        count(&mut own.changes);
        own.debt.mark = mark;
    }

    /// Makes the content durable for a host. Fails if a sync failed since the host wrote, even one of another host,
    /// until the host acknowledges that failure. Several may run at once.
    pub(crate) fn sync(&self, host: &HostIdentity, sync: impl FnOnce() -> io::Result<()>) -> Result<(), LostWrites> {
        let (number, covered) = {
            let mut state = self.lock();
            let (number, covered) = (state.syncs.begun, state.marks());
            state.syncs.begun += 1;
            state.syncs.running.insert(number);
            (number, covered)
        };
        let done = sync();
        let mut state = self.lock();
        state.syncs.running.remove(&number);
        if done.is_err() {
            state.note_failure();
        }
        self.sync_ended.notify_all();
        if let Err(error) = done {
            let failure = state.syncs.failed;
            return Err(LostWrites { failure, error });
        }
        // The kernel reports a failure to one caller. A sync that was running until now may have got it instead of this
        // one, and is waited for. Later ones are not.
        let end = state.syncs.begun;
        let is_earlier = |state: &mut State| {
            let first = state.syncs.running.first();
            first.is_some_and(|first| *first < end)
        };
        let mut state = self.sync_ended.wait_while(state, is_earlier);
        state.syncs.synced = state.syncs.synced.max(covered);
        match state.failure_of(host) {
            0 => Ok(()),
            failure => {
                let why = "writes were lost when they were flushed before";
                let error = io::Error::other(why);
                Err(LostWrites { failure, error })
            }
        }
    }

    /// Records that a host received a failure of [`Version::sync`]. It knows that all writes before may be lost.
    pub(crate) fn acknowledge(&self, host: &HostIdentity, failure: u64) {
        let mut state = self.lock();
        if state.failure_of(host) <= failure {
            state.writer(host).debt.failure = 0;
        }
    }

    /// Compares the stamp of the file with that of the last look, unless that look began at `since` or later. Returns
    /// whether the file has to be looked at again after a tick, because another change could leave this stamp as it is.
    /// A file that was in this state before is being written to, and another look would not settle it.
    pub(crate) fn look(&self, since: Instant, stamp: impl FnOnce() -> io::Result<Stamp>) -> bool {
        let marks = {
            let state = self.lock();
            if state.is_fresh(since) {
                return false;
            }
            state.marks()
        };
        // The clocks are read first: a change after the look is not stamped with an earlier time.
        let (start, clock_ns) = (Instant::now(), stamp_clock_ns());
        let stamp = stamp();
        let mut state = self.lock();
        state.looked = Some(start);
        let now = match stamp {
            Ok(now) => now,
            Err(error) if is_missing(&error) => {
                state.found = Found::Replaced;
                return false;
            }
            Err(error) => {
                if state.found != Found::Nothing {
                    tracing::warn!("cannot look at a served file: {error}");
                }
                state.found = Found::Nothing;
                return false;
            }
        };
        if state.stamp.is_some_and(|was| !was.is_same_file(&now)) {
            state.found = Found::Replaced;
            return false;
        }
        state.found = Found::Same;
        if state.stamp != Some(now) {
            // No host has changed the file since the last look, and none is changing it.
            let is_idle = state.marks == marks && state.marks() == marks && state.all.is_over();
            state.is_foreign = is_idle;
            if is_idle {
                state.base = now.version() ^ state.salt;
            }
            state.stamp = Some(now);
            state.stamp_since = Instant::now();
        }
        state.marks = marks;
        // A file server may have another clock. If the stamp stays the same for a tick, it is settled anyway.
        let is_new = start.saturating_duration_since(state.stamp_since) < STAMP_TICK;
        let was_unsettled = state.is_unsettled;
        state.is_unsettled = state.is_foreign && is_new && now.is_since(clock_ns);
        state.is_unsettled && !was_unsettled
    }
}

/// Whether an error says that a path does not exist.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::mpsc, thread};

    use straightway_nvme::Nqn;

    use super::*;

    fn host(number: u32) -> HostIdentity {
        HostIdentity {
            nqn: Nqn::new("nqn.host").expect("a name"),
            id: u128::from(number).to_le_bytes(),
        }
    }

    /// The version of memory, which is never looked at.
    fn seen(version: &Version, host: &HostIdentity) -> u64 {
        version.seen_by(host, Instant::now(), 512)
    }

    /// Writes to a file with another stamp than before.
    fn write(path: &Path, byte: u8) {
        thread::sleep(STAMP_TICK);
        fs::write(path, [byte; 512]).expect("small");
    }

    fn stamp(path: &Path) -> io::Result<Stamp> {
        fs::metadata(path).map(|meta| Stamp::of(&meta))
    }

    /// The version of a file that exists.
    fn open(path: &Path) -> Version {
        let now = stamp(path).expect("it exists");
        Version::new(now.version(), Some(now), 0)
    }

    /// Looks at a file as the target does, and returns the version that a host sees.
    fn look(version: &Version, path: &Path, host: &HostIdentity) -> u64 {
        let since = Instant::now();
        if version.look(since, || stamp(path)) {
            thread::sleep(STAMP_TICK);
            version.look(Instant::now(), || stamp(path));
        }
        version.seen_by(host, since, 512)
    }

    #[test]
    fn a_host_sees_the_changes_of_others_and_not_its_own() {
        let version = Version::new(7, None, 0);
        let (one, two) = (host(1), host(2));
        assert_eq!((seen(&version, &one), seen(&version, &two)), (7, 7));
        version.change(&one, || ());
        assert_eq!(seen(&version, &one), 7);
        let first = seen(&version, &two);
        assert_ne!(first, 7);
        version.change(&two, || ());
        assert_eq!(seen(&version, &two), first);
        version.change(&one, || ());
        assert_ne!(seen(&version, &two), first);
    }

    #[test]
    fn a_change_that_lasts_longer_than_a_transfer_is_seen() {
        let version = Version::new(7, None, 0);
        let (one, two) = (host(1), host(2));
        version.change(&one, || {
            let before = seen(&version, &two);
            assert_ne!(seen(&version, &two), before);
            assert_eq!(seen(&version, &one), 7);
        });
    }

    fn fail() -> io::Result<()> {
        Err(io::Error::other("the drive is gone"))
    }

    fn is_durable(version: &Version, host: &HostIdentity) -> bool {
        version.sync(host, || Ok(())).is_ok()
    }

    #[test]
    fn a_failed_sync_is_reported_to_each_host_that_had_written_until_it_acknowledges_it() {
        let version = Version::new(7, None, 0);
        let [one, two, reader, later] = [1, 2, 3, 4].map(host);
        version.change(&one, || ());
        version.change(&two, || ());
        let failed = version.sync(&two, fail).unwrap_err();
        // The kernel reports nothing to the next caller.
        assert!(is_durable(&version, &reader));
        version.change(&later, || ());
        assert!(is_durable(&version, &later));
        for _ in 0..2 {
            let lost = version.sync(&one, || Ok(())).unwrap_err();
            assert!(lost.error.to_string().contains("lost"), "{lost:?}");
            assert!(!is_durable(&version, &two), "it may not have received it");
        }
        version.acknowledge(&two, failed.failure);
        assert!(is_durable(&version, &two));
        assert!(!is_durable(&version, &one));
        version.acknowledge(&one, failed.failure);
        assert!(is_durable(&version, &one));
    }

    #[test]
    fn an_acknowledgement_does_not_cover_a_later_failure() {
        let (version, own) = (Version::new(7, None, 0), host(1));
        version.change(&own, || ());
        let first = version.sync(&own, fail).unwrap_err();
        version.change(&own, || ());
        let second = version.sync(&own, fail).unwrap_err();
        version.acknowledge(&own, first.failure);
        assert!(!is_durable(&version, &own));
        version.acknowledge(&own, second.failure);
        assert!(is_durable(&version, &own));
    }

    #[test]
    fn a_failed_sync_is_not_reported_to_a_host_whose_writes_were_durable() {
        let version = Version::new(7, None, 0);
        let [durable, dirty, changing] = [1, 2, 3].map(host);
        version.change(&durable, || ());
        version.change(&changing, || {
            assert!(is_durable(&version, &durable));
            version.change(&dirty, || ());
            assert!(version.sync(&dirty, fail).is_err());
        });
        assert!(is_durable(&version, &durable));
        assert!(!is_durable(&version, &dirty));
        assert!(!is_durable(&version, &changing), "its write had begun");
    }

    #[test]
    fn a_failed_sync_changes_the_version_for_all_hosts() {
        let version = Version::new(7, None, 0);
        let hosts = [1, 2].map(host);
        version.change(&hosts[0], || ());
        let before = hosts.each_ref().map(|host| seen(&version, host));
        assert!(version.sync(&hosts[0], fail).is_err());
        for (host, before) in hosts.iter().zip(before) {
            let after = seen(&version, host);
            assert_ne!(after, before);
            assert_eq!(seen(&version, host), after, "it is settled");
        }
    }

    #[test]
    fn syncs_run_at_once_and_a_good_one_waits_for_a_failure_that_another_may_have_got() {
        const WAIT_MAX: Duration = Duration::from_secs(20);
        let version = Version::new(7, None, 0);
        let (one, two) = (host(1), host(2));
        version.change(&one, || ());
        version.change(&two, || ());
        let (begun, has_begun) = mpsc::channel();
        let (fails, may_fail) = mpsc::channel::<()>();
        let version = &version;
        thread::scope(|scope| {
            let bad = scope.spawn(move || {
                version.sync(&one, || {
                    begun.send(()).expect("it is waited for");
                    let _ = may_fail.recv_timeout(WAIT_MAX);
                    fail()
                })
            });
            has_begun.recv().expect("it begins");
            let (ended, has_ended) = mpsc::channel();
            let good = scope.spawn(move || {
                let done = version.sync(&two, || {
                    ended.send(()).expect("it is waited for");
                    Ok(())
                });
                done.is_ok()
            });
            // The second call runs while the first has not returned.
            has_ended.recv_timeout(WAIT_MAX).expect("it runs");
            fails.send(()).expect("it is waited for");
            assert!(bad.join().expect("no panic").is_err());
            assert!(!good.join().expect("no panic"), "its writes are lost");
        });
    }

    #[test]
    fn a_host_that_is_forgotten_with_lost_writes_is_told_of_them() {
        let version = Version::new(7, None, 0);
        let count = u32::try_from(WRITERS_MAX).expect("small");
        for number in 0..count {
            version.change(&host(number), || ());
        }
        let failed = version.sync(&host(count), fail).unwrap_err();
        // This host takes the place of the first.
        version.change(&host(count), || ());
        let first = host(0);
        assert!(!is_durable(&version, &first));
        version.change(&first, || ());
        assert!(!is_durable(&version, &first));
        version.acknowledge(&first, failed.failure);
        assert!(is_durable(&version, &first));
    }

    #[test]
    fn beyond_the_limit_only_the_version_of_the_host_that_wrote_first_changes() {
        let version = Version::new(7, None, 0);
        let count = u32::try_from(WRITERS_MAX).expect("small");
        for number in 0..count {
            version.change(&host(number), || ());
        }
        let (first, second, last) = (host(0), host(1), host(count));
        assert_eq!(seen(&version, &first), seen(&version, &second));
        let before = seen(&version, &last);
        version.change(&last, || ());
        assert_eq!(seen(&version, &last), before, "it sees its own change");
        // The first sees two further changes: its own and that of the last.
        assert_ne!(seen(&version, &first), seen(&version, &second));
    }

    #[test]
    fn a_change_by_another_program_is_seen_unless_hosts_changed_the_file_too() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        write(path, 1);
        let (version, own) = (open(path), host(1));
        let first = look(&version, path, &own);
        assert_eq!(look(&version, path, &own), first);
        write(path, 2);
        let second = look(&version, path, &own);
        assert_ne!(second, first);
        version.change(&own, || write(path, 3));
        assert_eq!(look(&version, path, &own), second);
        write(path, 4);
        assert_ne!(look(&version, path, &own), second);
    }

    #[test]
    fn a_host_does_not_see_its_own_change_that_lasts_longer_than_two_looks() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        write(path, 1);
        let (version, own) = (open(path), host(1));
        let first = look(&version, path, &own);
        version.change(&own, || {
            for byte in 2..4 {
                write(path, byte);
                assert_eq!(look(&version, path, &own), first);
            }
        });
        assert_eq!(look(&version, path, &own), first);
    }

    #[test]
    fn a_file_that_another_program_is_writing_to_is_unsettled_although_a_host_wrote_before() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        write(path, 1);
        let (version, own) = (open(path), host(1));
        version.change(&own, || write(path, 2));
        look(&version, path, &own);
        // A tick may end between a write and its look.
        let is_unsettled = (0..100).any(|_| {
            write(path, 3);
            version.look(Instant::now(), || stamp(path))
        });
        assert!(is_unsettled, "the next change could have this stamp too");
        // It is not waited for a second time.
        fs::write(path, [4; 512]).expect("small");
        assert!(!version.look(Instant::now(), || stamp(path)));
    }

    #[test]
    fn a_version_is_unsettled_unless_the_file_was_looked_at_in_time() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        write(path, 1);
        let (version, own) = (open(path), host(1));
        let first = look(&version, path, &own);
        let late = Instant::now();
        assert_ne!(version.seen_by(&own, late, 512), version.seen_by(&own, late, 512));
        assert_eq!(look(&version, path, &own), first);
        // Each look fails.
        for _ in 0..2 {
            let since = Instant::now();
            assert!(!version.look(since, || Err(io::Error::other("gone"))));
            assert!(version.is_fresh(since));
            assert_ne!(version.seen_by(&own, since, 512), version.seen_by(&own, since, 512));
        }
        assert_eq!(look(&version, path, &own), first, "it is the same file");
    }
}
