//! The version of a namespace's content, as each host sees it.
//!
//! A host reads the version before and after a transfer. If both are equal, nothing else changed the content meanwhile:
//!
//! - A change by another program gives the file another stamp. Memory and block devices have no stamp.
//! - A change by another host is counted. The host's own changes are not, so that it can check what it wrote.
//!
//! Changes by hosts give the file another stamp too. After such changes, a new stamp does not show whether another
//! program changed the file as well, and the version stays the same.

use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    backing::{Stamp, stamp_clock_ns},
    host::HostIdentity,
};

/// The longest tick of the clock that stamps files: 10 ms in Linux. Two changes within a tick have the same stamp.
pub(crate) const STAMP_TICK: Duration = Duration::from_millis(11);

/// The maximum number of hosts whose own changes are counted. Changes of further hosts count as changes of others.
const WRITERS_MAX: usize = 4096;

/// 2^64 divided by the golden ratio. A product with an odd number is different for each count.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Distinguishes versions during a change from counts of changes.
const UNSETTLED: u64 = 1 << 63;

/// The version of a namespace's content.
#[derive(Debug)]
pub(crate) struct Version(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The version, without changes by hosts.
    base: u64,
    /// The stamp at the last look; `None` if there is nothing to look at.
    stamp: Option<Stamp>,
    /// The time when this stamp was first seen.
    stamp_since: Instant,
    /// [`State::marks`] at the last look.
    marks: u64,
    /// Whether a change right after the last look could leave the stamp as it is.
    is_unsettled: bool,
    /// Whether the last look failed.
    is_lost: bool,
    /// The number of versions that were given out during a change.
    unsettled: u64,
    all: Changes,
    own: BTreeMap<HostIdentity, Changes>,
}

/// Numbers of changes.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    begun: u64,
    ended: u64,
}

impl State {
    /// Increases at the begin and at the end of each change by a host.
    fn marks(&self) -> u64 {
        self.all.begun + self.all.ended
    }

    /// A version that no later one is equal to.
    fn unsettled(&mut self) -> u64 {
        self.unsettled += 1;
        self.base ^ (UNSETTLED | self.unsettled).wrapping_mul(SPREAD)
    }
}

impl Version {
    /// A version that begins with `base`. `stamp` is the stamp of the file, if its changes are to be noticed.
    pub(crate) fn new(base: u64, stamp: Option<Stamp>) -> Self {
        Self(Mutex::new(State {
            base,
            stamp,
            stamp_since: Instant::now(),
            marks: 0,
            is_unsettled: false,
            is_lost: false,
            unsettled: 0,
            all: Changes::default(),
            own: BTreeMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version that a host sees.
    pub(crate) fn seen_by(&self, host: &HostIdentity) -> u64 {
        let mut state = self.lock();
        let own = state.own.get(host).copied().unwrap_or_default();
        let begun = state.all.begun - own.begun;
        let ended = state.all.ended - own.ended;
        if begun != ended || state.is_unsettled {
            return state.unsettled();
        }
        state.base ^ ended.wrapping_mul(SPREAD)
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
        let is_full = state.own.len() >= WRITERS_MAX;
        match state.own.get_mut(host) {
            Some(own) => count(own),
            None if is_full => {}
            None => count(state.own.entry(host.clone()).or_default()),
        }
    }

    /// Compares the stamp of the file with that of the last look. Returns whether the file has to be looked at again
    /// after a tick, because another change could leave this stamp as it is.
    pub(crate) fn look(&self, stamp: impl FnOnce() -> io::Result<Stamp>) -> bool {
        let marks = {
            let state = self.lock();
            if state.stamp.is_none() {
                return false;
            }
            state.marks()
        };
        // The clock is read first: a change after the look is not stamped with an earlier time.
        let clock_ns = stamp_clock_ns();
        let stamp = stamp();
        let mut state = self.lock();
        let now = match stamp {
            Ok(now) => now,
            Err(error) => {
                if !state.is_lost {
                    tracing::warn!("cannot look at a served file: {error}");
                    state.is_lost = true;
                    state.base = state.unsettled();
                }
                return false;
            }
        };
        state.is_lost = false;
        if state.stamp != Some(now) {
            if state.marks == marks && state.marks() == marks {
                state.base = now.version();
            }
            state.stamp = Some(now);
            state.stamp_since = Instant::now();
        }
        state.marks = marks;
        // A file server may have another clock. If the stamp stays the same for a tick, it is settled anyway.
        let is_new = state.stamp_since.elapsed() < STAMP_TICK;
        state.is_unsettled = marks == 0 && is_new && now.is_since(clock_ns);
        state.is_unsettled
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use straightway_nvme::Nqn;

    use super::*;

    fn host(number: u8) -> HostIdentity {
        HostIdentity {
            nqn: Nqn::new("nqn.host").expect("a name"),
            id: [number; 16],
        }
    }

    #[test]
    fn a_host_sees_the_changes_of_others_and_not_its_own() {
        let version = Version::new(7, None);
        let (one, two) = (host(1), host(2));
        assert_eq!((version.seen_by(&one), version.seen_by(&two)), (7, 7));
        version.change(&one, || ());
        assert_eq!(version.seen_by(&one), 7);
        let first = version.seen_by(&two);
        assert_ne!(first, 7);
        version.change(&two, || ());
        assert_eq!(version.seen_by(&two), first);
        version.change(&one, || ());
        assert_ne!(version.seen_by(&two), first);
    }

    #[test]
    fn a_change_that_lasts_longer_than_a_transfer_is_seen() {
        let version = Version::new(7, None);
        let (one, two) = (host(1), host(2));
        version.change(&one, || {
            let before = version.seen_by(&two);
            assert_ne!(version.seen_by(&two), before);
            assert_eq!(version.seen_by(&one), 7);
        });
    }

    #[test]
    fn a_change_by_another_program_is_seen_unless_hosts_changed_the_file_too() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |byte: u8| {
            thread::sleep(STAMP_TICK);
            fs::write(file.path(), [byte; 512]).expect("small");
        };
        let stamp = || fs::metadata(file.path()).map(|meta| Stamp::of(&meta));
        write(1);
        let now = stamp().expect("it exists");
        let version = Version::new(now.version(), Some(now));
        let look = || {
            if version.look(stamp) {
                thread::sleep(STAMP_TICK);
                version.look(stamp);
            }
            version.seen_by(&host(1))
        };
        let first = look();
        assert_eq!(look(), first);
        write(2);
        let second = look();
        assert_ne!(second, first);
        version.change(&host(1), || write(3));
        assert_eq!(look(), second);
        write(4);
        assert_ne!(look(), second);
    }
}
