//! Eviction: removes the least recently used entries, and the drafts of killed processes.

use std::{io, time::Duration};

use rustix::{
    fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstatvfs, openat, statat},
    io::Errno,
};
use straightway_sys::folder::claim;

use crate::{
    cache::{Cache, SHARDS, shard_name},
    entry_name::{DRAFT_SUFFIX, parse},
};

/// If the cache holds more than `FULL` of its limit, entries are evicted down to `EMPTIED`. The margin is needed
/// because each of several processes adds 1/32 of the limit between two evictions.
const FULL: (u64, u64) = (7, 8);
const EMPTIED: (u64, u64) = (3, 4);

/// The free space to leave in the file system: 1/20 as in Mountpoint, at most 1 GiB.
const FREE_SHARE: u64 = 20;
const FREE_BYTES_MAX: u64 = 1 << 30;

/// The most entries that are considered. If there are more, the limit applies to these only.
const ENTRIES_MAX: usize = 4 << 20;

/// The lock file of the evicting process.
const LOCK: &str = "lock";

/// An entry that may be evicted.
#[derive(Debug)]
struct Candidate {
    used: Duration,
    bytes: u64,
    name: String,
}

/// Counts an added entry. Evicts old entries from time to time.
pub(crate) fn note_added(cache: &Cache, bytes: u64) {
    if cache.is_sweep_due(bytes)
        && let Err(error) = sweep(cache)
    {
        cache.note(&error);
    }
}

/// Evicts entries beyond the limits. Does nothing if another process is evicting.
fn sweep(cache: &Cache) -> io::Result<()> {
    let lock = cache.open_file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
    // On a file system without locks two processes may evict the same entries.
    if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Ok(());
    }
    let mut entries = Vec::new();
    for shard in 0..SHARDS {
        list(cache, &shard_name(shard), &mut entries)?;
    }
    let total: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let part = |(of, in_all): (u64, u64)| cache.bytes_max() / in_all * of;
    let too_much = if total > part(FULL) { total - part(EMPTIED) } else { 0 };
    let space = fstatvfs(cache)?;
    let wanted = (space.f_blocks * space.f_frsize / FREE_SHARE).min(FREE_BYTES_MAX);
    let missing = wanted.saturating_sub(space.f_bavail * space.f_frsize);
    let mut excess = too_much.max(missing);
    entries.sort_unstable_by_key(|entry| entry.used);
    for entry in entries {
        if excess == 0 {
            break;
        }
        cache.remove(&entry.name);
        excess = excess.saturating_sub(entry.bytes);
    }
    Ok(())
}

/// Lists the entries of a shard, and removes drafts of dead processes.
fn list(cache: &Cache, shard: &str, entries: &mut Vec<Candidate>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match openat(cache, shard, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        let path = format!("{shard}/{name}");
        if name
            .strip_suffix(DRAFT_SUFFIX)
            .is_some_and(|name| parse(name).is_some())
        {
            // A live writer holds the lock.
            let abandoned = cache.open_file(&path, OFlags::RDWR).is_ok_and(|draft| claim(&draft));
            if abandoned {
                cache.remove(&path);
            }
            continue;
        }
        if parse(name).is_none() || entries.len() == ENTRIES_MAX {
            continue;
        }
        let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            continue;
        }
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        entries.push(Candidate {
            used: Duration::new(seconds, nanoseconds),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            name: path,
        });
    }
    Ok(())
}
