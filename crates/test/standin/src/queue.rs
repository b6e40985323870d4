//! A stream as a queue of copies, and an event as a mark in it.

use std::collections::VecDeque;

use crate::device::Allocation;

/// One copy, checked when it was queued and again when it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) host: usize,
    pub(crate) device: u64,
    pub(crate) len: usize,
    pub(crate) is_to_device: bool,
}

impl Copy {
    /// A hash of the host's bytes. If it differs when the copy runs, the slot was used while the copy
    /// owned it.
    pub(crate) fn fingerprint(self) -> u64 {
        // SAFETY: the caller provides the host range, and it is pinned, so it is mapped.
        let bytes = unsafe { std::slice::from_raw_parts(self.host as *const u8, self.len) };
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
        all.fold(1, |sum, word| {
            (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        })
    }

    /// Copies the bytes. The caller has found the allocation that contains the whole device range.
    pub(crate) fn run(self, allocation: &Allocation) {
        let (device, host) = (allocation.host_pointer(self.device), self.host as *mut u8);
        // SAFETY: the device range belongs to the allocation; the caller provides the host range, which is
        // pinned where it has to be; the two are different mappings.
        unsafe {
            if self.is_to_device {
                device.copy_from_nonoverlapping(host, self.len);
            } else {
                host.copy_from_nonoverlapping(device, self.len);
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Copy {
        copy: Copy,
        fingerprint: u64,
    },
    /// Marks the event as passed.
    Record {
        event: usize,
        generation: u64,
    },
    /// Blocks the following operations until the event has passed.
    Wait {
        event: usize,
        generation: u64,
    },
}

/// A stream.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ops: VecDeque<Op>,
    /// Destroyed by its owner. It is removed when it is empty.
    pub(crate) is_destroyed: bool,
}

/// An event: how often it was recorded, and which record has passed.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    pub(crate) recorded: u64,
    pub(crate) passed: u64,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }
}

impl Mark {
    pub(crate) fn is_passed(&self) -> bool {
        self.passed >= self.recorded
    }
}
