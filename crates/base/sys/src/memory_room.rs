//! Whether host memory may be allocated, before it is.
//!
//! The kernel overcommits: it grants any amount, and kills the process when more is used than there is, or than the
//! control group of the process may use. Memory that was allocated and not yet used counts as used here, because it
//! will be.
//!
//! A check reads a few files of the kernel, about 0.1 ms. It is made for every 32 MiB that are allocated, and in a group
//! with a limit for every MiB.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use straightway_core::{Bytes, Error, ErrorKind, Result};

use crate::{free_memory::FreeMemory, root::Root};

/// The available memory of the machine is checked from this size on.
const MACHINE_BYTES_MIN: u64 = 1 << 30;

/// The limits of control groups are checked whenever this much was allocated since the last check: if there was no limit,
/// and if there was one.
const STEP_BYTES: u64 = 32 << 20;
const LIMITED_STEP_BYTES: u64 = 1 << 20;

/// Memory of a control group that is left for page tables, threads and queues.
const SPARE_BYTES: u64 = 8 << 20;

/// The host memory that was allocated and not freed.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// The least that `ALLOCATED` was since the last check.
static CHECKED: AtomicU64 = AtomicU64::new(0);

/// Whether there was a limit at the last check.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// Counts `bytes` of host memory as allocated, until [`release`]. Returns an error if there is not enough memory.
pub(crate) fn reserve(bytes: u64) -> Result<()> {
    if bytes >= MACHINE_BYTES_MIN {
        check_machine(bytes)?;
    }
    // Counted before the check, so that two threads cannot both be granted the same memory.
    let add = |allocated: u64| allocated.checked_add(bytes);
    let before = ALLOCATED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    let before = before.map_err(|_| refused(bytes, "it exceeds the address space".to_owned()))?;
    let after = before + bytes;
    let is_limited = IS_LIMITED.load(Ordering::Relaxed);
    let step = if is_limited { LIMITED_STEP_BYTES } else { STEP_BYTES };
    if after < CHECKED.load(Ordering::Relaxed).saturating_add(step) {
        return Ok(());
    }
    let free = FreeMemory::in_groups();
    IS_LIMITED.store(free.is_some(), Ordering::Relaxed);
    if let Some(free) = free {
        // Pages are resident from their first use on.
        let promised = before.saturating_sub(resident_bytes());
        check_group(bytes, promised, &free).inspect_err(|_| release(bytes))?;
    }
    CHECKED.store(after, Ordering::Relaxed);
    Ok(())
}

/// Counts memory as freed.
pub(crate) fn release(bytes: u64) {
    let before = ALLOCATED.fetch_sub(bytes, Ordering::Relaxed);
    CHECKED.fetch_min(before.saturating_sub(bytes), Ordering::Relaxed);
}

fn check_machine(bytes: u64) -> Result<()> {
    match FreeMemory::of_machine(&Root::machine()) {
        Some(free) if bytes > free.bytes => {
            Err(refused(bytes, format!("{} are available", Bytes(free.bytes)))
                .with_hint("ask for less, or free memory"))
        }
        _ => Ok(()),
    }
}

/// Compares memory with what the control groups leave, of which `promised` bytes will be used for earlier memory.
fn check_group(bytes: u64, promised: u64, free: &FreeMemory) -> Result<()> {
    // Page tables of small pages take 1/512.
    let spare = SPARE_BYTES + bytes / 512;
    let left = free.bytes.saturating_sub(promised).saturating_sub(spare);
    let Some(limit) = free.limit.as_ref().filter(|_| bytes > left) else {
        return Ok(());
    };
    let why = format!(
        "{} are left of the memory limit of its control group, {limit}",
        Bytes(left)
    );
    Err(refused(bytes, why).with_hint(
        "ask for less, or raise the limit (`docker run --memory`, `resources.limits.memory` of a pod, `MemoryMax=` of a \
         unit)",
    ))
}

fn refused(bytes: u64, why: String) -> Error {
    let target = format!("{} of host memory", Bytes(bytes));
    Error::new(ErrorKind::Transient, "allocate", target, why)
}

/// The resident memory of this process that belongs to no file. 0 if it is unknown, so that more counts as promised.
fn resident_bytes() -> u64 {
    let pages = || -> Option<u64> {
        let text = Root::machine().text("/proc/self/statm")?;
        let mut fields = text.split_whitespace().map(str::parse::<u64>);
        let (resident, of_files) = (fields.nth(1)?.ok()?, fields.next()?.ok()?);
        Some(resident.saturating_sub(of_files))
    };
    pages().unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::free_memory::GroupLimit;

    #[test]
    fn memory_beyond_the_limit_of_a_group_is_refused_with_the_limit_and_the_remedy() {
        let free = FreeMemory {
            bytes: 180 << 20,
            limit: Some(GroupLimit {
                file: "/sys/fs/cgroup/x/memory.max".into(),
                bytes: 200 << 20,
            }),
        };
        check_group(160 << 20, 0, &free).unwrap();
        check_group(100 << 20, 60 << 20, &free).unwrap();
        assert!(
            check_group(160 << 20, 60 << 20, &free).is_err(),
            "earlier memory counts"
        );
        let error = check_group(1 << 30, 0, &free).unwrap_err();
        let text = error.to_string();
        for part in [
            "1 GiB of host memory",
            "170 MiB are left",
            "200 MiB",
            "/sys/fs/cgroup/x/memory.max",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(error.hint().unwrap().contains("docker run --memory"));
    }

    #[test]
    fn resident_memory_is_counted() {
        let before = resident_bytes();
        let used = vec![1_u8; 64 << 20];
        assert!(resident_bytes() >= before + (60 << 20), "{}", used[7]);
    }
}
