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
    /// A number that follows from the host's bytes: if it is another when the copy runs, somebody
    /// used the slot while it was the copy's.
    pub(crate) fn fingerprint(self) -> u64 {
        // SAFETY: the host range is the caller's to give, and is pinned, so it is mapped.
        let bytes = unsafe { std::slice::from_raw_parts(self.host as *const u8, self.len) };
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
        all.fold(1, |sum, word| {
            (sum ^ word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        })
    }

    /// Moves the bytes. The caller has found the allocation that holds all of the device's.
    pub(crate) fn run(self, allocation: &Allocation) {
        let (device, host) = (allocation.behind(self.device), self.host as *mut u8);
        // SAFETY: the device range is the allocation's; the host range was the caller's to give,
        // and is pinned where it has to be; the two are different mappings.
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
    /// The event passes.
    Record {
        event: usize,
        generation: u64,
    },
    /// What follows waits for the event.
    Wait {
        event: usize,
        generation: u64,
    },
}

/// A stream.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ops: VecDeque<Op>,
    /// Destroyed by its owner: goes when it is empty.
    pub(crate) is_doomed: bool,
}

/// An event: how often it was recorded, and which of those has passed.
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
